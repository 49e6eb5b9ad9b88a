"""Defaults: fill the missing keys of a request from the machine card, the grid and the strategy's own defaults."""

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.validation import format_value, validate
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine_card import Machine, load_machine
from harness.spec.spec import Spec
from harness.strategy.admit import parse_grid
from harness.strategy.contract import Strategy

Request = dict[str, Any]
"""The keys of a spec, with cards by name. All but strategy and dataset may be missing."""

BEST, LARGEST = "best", "largest"
"""The words for a searched grid (`requests`), and for a grid or parameter that fills the memory (`largest`)."""


def fill_defaults(root: Path, request: Request, where: str) -> Spec:
    """Return the spec of a request whose strategy and dataset are mappings and whose searches are done."""
    filled = dict(request)
    choice = filled["strategy"]
    strategy = load_strategy(choice["name"])
    params = validate(strategy.Params, choice.get("params", {}), f"{where}: parameters of {choice['name']}")
    filled["strategy"] = {**choice, "params": params.model_dump(mode="json")}
    filled["ranks"] = count_ranks(filled, where)
    filled["grid"] = _fill_grid(strategy, filled.get("grid"), filled["ranks"], where)
    cuts = strategy.parts_per_block(params)
    filled["dataset"] = _fill_parts(strategy, filled["dataset"], filled["grid"], cuts, where)
    filled["machine"] = _load_machine(root, filled.get("machine", "local"), where)
    return validate(Spec, filled, where)


def read_choice(request: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return the strategy or dataset of a request as a mapping; a request may give only its name."""
    if key not in request:
        raise UserError(f"{where}: {key} is missing.")
    choice = {"name": request[key]} if isinstance(request[key], str) else request[key]
    if not isinstance(choice, dict) or not isinstance(choice.get("name"), str):
        raise UserError(
            f"{where}: {key} = {format_value(request[key])} is not accepted: a name, or a mapping with the key name."
        )
    if not isinstance(choice.get("params", {}), dict):
        raise UserError(
            f"{where}: params = {format_value(choice['params'])} is not accepted: a mapping of parameters."
        )
    return dict(choice)


def count_ranks(request: Mapping[str, Any], where: str) -> int:
    """Return the number of ranks of a request: by default the product of its grid, or 1 if the grid is a word."""
    ranks = request.get("ranks", _count_ranks_of_grid(request.get("grid")))
    if not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"{where}: ranks = {format_value(ranks)} is not accepted: a whole number from 1 on.")
    return ranks


def _count_ranks_of_grid(grid: Any) -> int:
    sizes = grid.values() if isinstance(grid, dict) else map(int, re.findall(r"\d{1,9}", str(grid)))
    return prod(size for size in sizes if isinstance(size, int))


def _fill_grid(
    strategy: type[Strategy], grid: Any, ranks: int, where: str
) -> dict[AxisName, int] | dict[str, Any]:
    if not isinstance(grid, str | dict | None):
        raise UserError(
            f"{where}: grid = {format_value(grid)} is not accepted: sizes as 2x2, a mapping of axes to sizes, all, "
            f"{BEST} or {LARGEST}."
        )
    return grid if isinstance(grid, dict) else parse_grid(strategy, grid, ranks)


def _fill_parts(
    strategy: type[Strategy], choice: dict[str, Any], grid: Mapping[Any, Any], cuts: int, where: str
) -> dict[str, Any]:
    """Give a partition without `parts` as many parts as the strategy divides the rows into."""
    partition = choice.get("partition", "block")
    if partition == "block" or choice.get("parts"):
        return choice
    axis = strategy.partitioned_over
    if axis is None:
        raise UserError(
            f"{where}: partition = {format_value(partition)}: {strategy.name} has no use for a partition. Leave it out."
        )
    return {**choice, "parts": grid.get(axis, 0) * cuts}


def _load_machine(root: Path, name: Any, where: str) -> Machine:
    if not isinstance(name, str):
        raise UserError(
            f"{where}: machine = {format_value(name)} is not accepted: name a card, and describe the machine in "
            "config/machines/."
        )
    return load_machine(root, name)
