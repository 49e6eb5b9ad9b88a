"""What a request leaves out, filled in: the machine's card, the grid, the strategy's defaults."""

from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine import Machine, load_machine
from harness.spec.spec import Spec
from harness.strategy.admit import parse_grid
from harness.strategy.contract import Strategy
from harness.validation import shown, validated


def filled(root: Path, request: dict[str, Any], where: str) -> Spec:
    """The spec of a request that leaves nothing to be chosen."""
    asked = dict(request)
    for key in ("strategy", "dataset"):
        if key not in asked:
            raise UserError(f"{where}: {key} is missing.")
    choice = named(asked["strategy"])
    strategy = load_strategy(choice["name"])
    params = validated(strategy.Params, choice.get("params", {}), f"{where}: parameters of {choice['name']}")
    asked["strategy"] = {**choice, "params": params.model_dump(mode="json")}
    asked["grid"] = _grid(strategy, asked.get("grid"), asked.get("ranks", 1), where)
    cuts = strategy.parts_of_block(params)
    asked["dataset"] = _dataset(strategy, asked["dataset"], asked["grid"], cuts, where)
    asked["machine"] = _machine(root, asked.get("machine", "local"), where)
    return validated(Spec, asked, where)


def named(choice: Any) -> dict[str, Any]:
    """A strategy or a dataset that was asked for by its name alone, or with more."""
    return {"name": choice} if isinstance(choice, str) else dict(choice)


def _machine(root: Path, name: Any, where: str) -> Machine:
    if not isinstance(name, str):
        raise UserError(
            f"{where}: machine = {shown(name)} is not accepted: name a card, and say in machines/ what that machine is "
            "like."
        )
    return load_machine(root, name)


def _dataset(strategy: type[Strategy], dataset: Any, grid: Any, cuts: int, where: str) -> dict[str, Any]:
    """A partition that is asked for by its method alone has as many parts as the strategy cuts rows."""
    choice = named(dataset)
    partition = choice.get("partition", "block")
    if partition == "block" or choice.get("parts"):
        return choice
    axis = strategy.partitioned_over
    if axis is None:
        raise UserError(
            f"{where}: partition = {shown(partition)}: {strategy.name} has no use for a partition. Leave it out."
        )
    return {**choice, "parts": grid.get(axis, 0) * cuts}


def _grid(strategy: type[Strategy], grid: Any, ranks: Any, where: str) -> dict[AxisName, int] | Any:
    if not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"{where}: ranks = {shown(ranks)} is not accepted: a whole number from 1 on.")
    return grid if isinstance(grid, dict) else parse_grid(strategy, grid, ranks)
