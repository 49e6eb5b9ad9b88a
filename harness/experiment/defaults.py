"""A request becomes a whole spec: `best` and `largest` become grids and numbers, and defaults fill the missing keys."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from math import inf, prod
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.experiment.known_graph import KnowGraph, KnownGraph, facts_of_card
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine_card import Machine, load_machine, load_machine_card
from harness.spec.spec import Spec, grid_text
from harness.store.catalog import load_card
from harness.strategy import BlockCounts, Candidate, Ready, ShapeBlocks, admit
from harness.strategy.admit import parse_grid
from harness.strategy.contract import Strategy
from harness.validation import format_value, validate

# The defaults of missing keys: the machine's card, the grid, the strategy's own defaults.


def filled(root: Path, request: dict[str, Any], where: str) -> Spec:
    """The spec of a request that names its strategy and dataset by mappings and has no `largest`."""
    asked = dict(request)
    choice = asked["strategy"]
    strategy = load_strategy(choice["name"])
    params = validate(strategy.Params, choice.get("params", {}), f"{where}: parameters of {choice['name']}")
    asked["strategy"] = {**choice, "params": params.model_dump(mode="json")}
    asked["ranks"] = ranks_of(asked, where)
    asked["grid"] = _grid(strategy, asked.get("grid"), asked["ranks"], where)
    cuts = strategy.parts_per_block(params)
    asked["dataset"] = _dataset(strategy, asked["dataset"], asked["grid"], cuts, where)
    asked["machine"] = _machine(root, asked.get("machine", "local"), where)
    return validate(Spec, asked, where)


def named(request: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The mapping of a strategy or a dataset, which a request may give by name alone."""
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


def _machine(root: Path, name: Any, where: str) -> Machine:
    if not isinstance(name, str):
        raise UserError(
            f"{where}: machine = {format_value(name)} is not accepted: name a card, and describe the machine in "
            "config/machines/."
        )
    return load_machine(root, name)


def _dataset(
    strategy: type[Strategy], choice: dict[str, Any], grid: Any, cuts: int, where: str
) -> dict[str, Any]:
    """A partition without `parts` has as many parts as the strategy cuts rows."""
    partition = choice.get("partition", "block")
    if partition == "block" or choice.get("parts"):
        return choice
    axis = strategy.partitioned_over
    if axis is None:
        raise UserError(
            f"{where}: partition = {format_value(partition)}: {strategy.name} has no use for a partition. Leave it out."
        )
    return {**choice, "parts": grid.get(axis, 0) * cuts}


def ranks_of(request: Mapping[str, Any], where: str) -> int:
    """The number of ranks of a request: without one, the ranks of its grid, or 1 if the grid is a word too."""
    ranks = request.get("ranks", _ranks_of_grid(request.get("grid")))
    if not isinstance(ranks, int) or ranks < 1:
        raise UserError(f"{where}: ranks = {format_value(ranks)} is not accepted: a whole number from 1 on.")
    return ranks


def _ranks_of_grid(grid: Any) -> int:
    sizes = grid.values() if isinstance(grid, dict) else map(int, re.findall(r"\d{1,9}", str(grid)))
    return prod(size for size in sizes if isinstance(size, int))


def _grid(strategy: type[Strategy], grid: Any, ranks: int, where: str) -> dict[AxisName, int] | Any:
    if not isinstance(grid, str | dict | None):
        raise UserError(
            f"{where}: grid = {format_value(grid)} is not accepted: sizes as 2x2, a mapping of axes to sizes, all, "
            f"{BEST} or {LARGEST}."
        )
    return grid if isinstance(grid, dict) else parse_grid(strategy, grid, ranks)


# `best`: the grid that is predicted to be the fastest. `largest`: a grid, or a parameter that counts, as large as the
# memory of a rank allows, by the peak that is predicted for the rank (`harness.predict.prediction`).
#
#   1. The grid on which a rank holds most.
#   2. Each such parameter, up to the number from which on more changes nothing.
#
# Sizes are those of the dataset's card, so the choice does not depend on any build. The spec records the choice.

BEST, LARGEST = "best", "largest"
GB = 1 << 30

Request = dict[str, Any]


def chosen(root: Path, request: Request, where: str) -> Request:
    """The request with `best` and every `largest` replaced; its strategy and dataset are mappings."""
    asked = {**request, **{key: named(request, key, where) for key in ("strategy", "dataset")}}
    memory = asked.pop("memory_gb", None)
    params = asked["strategy"].get("params", {})
    open_params = [key for key, value in params.items() if value == LARGEST]
    if asked.get("grid") == BEST:
        asked = best_grid(root, asked, where)
    if asked.get("grid") != LARGEST and not open_params:
        if memory is not None:
            raise UserError(
                f"{where}: memory_gb = {format_value(memory)}, and nothing is `{LARGEST}`: leave it out."
            )
        return asked
    budget = _budget(root, asked, memory, where)
    need = _Need(root, asked, where)
    asked = _with_params(asked, dict.fromkeys(open_params, 1))
    if asked.get("grid") == LARGEST:
        asked = _largest_grid(asked, need, budget, where)
    _check_fit(need.bytes_of(asked), budget, where)
    for key in open_params:
        asked = _largest_param(asked, key, need, budget)
    return asked


def best_grid(root: Path, asked: Request, where: str) -> Request:
    """The request on the grid that is predicted to be the fastest of those that fit, by the cards."""
    from harness.predict.prediction import check_card, predict

    card = load_machine_card(root, asked.get("machine", "local"))
    check_card(card)
    name = asked["strategy"]["name"]
    expected = KnownGraph(facts_of_card(load_card(root, asked["dataset"]["name"])), None)
    found = on_all_grids(root, name, asked, lambda _: expected, where)
    if not found.ready:
        raise UserError(f"{where}: grid = {BEST}: {found.reason}")
    predicted = [(predict(each, card, ranks=[0]), each.strategy.spec.grid) for each in found.ready]
    budget = inf if card.memory_gb is None else card.memory_gb * GB
    smallest = min(one.peak_bytes for one, _ in predicted)
    if smallest > budget:
        raise UserError(
            f"{where}: grid = {BEST}: {name} takes {smallest / GB:.3g} GB a rank on its smallest grid, and "
            f"{card.name} has {card.memory_gb:.3g}: take more ranks."
        )
    fitting = [(one.seconds.value, grid) for one, grid in predicted if one.peak_bytes <= budget]
    return {**asked, "grid": dict(min(fitting, key=itemgetter(0))[1])}


def on_all_grids(root: Path, name: str, request: Request, know: KnowGraph, where: str) -> Candidate:
    """A strategy on every grid that admits the request."""
    ready, reasons = list[Ready](), list[str]()
    try:
        strategy = load_strategy(name)
        grids = strategy.grids(ranks_of(request, where))
    except UserError as refusal:  # a plugin that is broken keeps no other from being listed
        return Candidate(name, [], str(refusal))
    for grid in grids:
        choice = {**request.get("strategy", {}), "name": name}
        try:
            spec = make_spec(root, {**request, "strategy": choice, "grid": grid}, where)
            graph = know(spec.dataset)
            ready.append(Ready(admit(strategy, spec, graph.facts), graph.blocks))
        except UserError as refusal:
            reasons.append(str(refusal))
    none = f"{name} has no grid of {ranks_of(request, where)} ranks."
    return Candidate(name, ready, reasons[0] if reasons else none)


def _budget(root: Path, asked: Request, memory: Any, where: str) -> float:
    """The bytes of a rank, by the request or by the machine's card."""
    machine = asked.get("machine", "local")
    if memory is None:
        memory = load_machine_card(root, machine).memory_gb
    if memory is None:
        raise UserError(
            f"{where}: `{LARGEST}` needs the memory of a rank, and config/machines/{machine}.yaml does not say it. Set "
            "memory_gb there or here, as memory_gb: 40."
        )
    if not isinstance(memory, int | float) or not memory > 0:
        raise UserError(f"{where}: memory_gb = {format_value(memory)} is not accepted: a number above 0.")
    return memory * GB


class _Need:
    """The memory that the first rank needs, by the card of a graph: the predicted peak of the rank.

    A peak is predicted once for each grid. The strategy's formulas carry it from one value of a parameter to others:
    what they count is what a replay holds (`harness check`). Samplers of partitioned graphs have no prediction without
    the edges, so for these the formulas count alone.
    """

    def __init__(self, root: Path, asked: Request, where: str) -> None:
        self._root, self._where = root, where
        self._facts = facts_of_card(load_card(root, asked["dataset"]["name"]))
        self._counts, self._beside = BlockCounts(ShapeBlocks(self._facts)), dict[str, int]()

    def bytes_of(self, request: Request) -> int:
        """The predicted peak."""
        strategy = self._strategy(request)
        grid = grid_text(strategy.spec.grid)
        if grid not in self._beside:
            self._beside[grid] = self._beside_formulas(strategy)
        return self._held(strategy) + self._beside[grid]

    def held(self, request: Request) -> int:
        """The bytes that are held from step to step."""
        return self._held(self._strategy(request))

    def _strategy(self, request: Request) -> Strategy:
        spec = filled(self._root, request, self._where)
        return admit(load_strategy(spec.strategy.name), spec, self._facts)

    def _held(self, strategy: Strategy) -> int:
        held = strategy.memory(strategy.coordinates(0), self._counts)
        return sum(held.values()) + strategy.sample_bytes(self._counts)

    def _beside_formulas(self, strategy: Strategy) -> int:
        """The activations, gradients and messages of a training step; 0 for samplers without a prediction."""
        from harness.predict.prediction import peak_bytes, replayed_ranks

        try:
            first = replayed_ranks(Ready(strategy), [0], steps=1)
        except UserError:
            return 0
        return peak_bytes(first) - self._held(strategy)


def _largest_grid(asked: Request, need: _Need, budget: float, where: str) -> Request:
    """The request on the grid that holds most, among the grids that fit."""
    strategy = load_strategy(asked["strategy"]["name"])
    on_grid = [{**asked, "grid": grid} for grid in strategy.grids(ranks_of(asked, where))]
    if not on_grid:
        return {**asked, "grid": None}  # `parse_grid` refuses the request, with the reason
    for one in sorted(on_grid, key=need.held, reverse=True):
        if need.bytes_of(one) <= budget:
            return one
    _check_fit(min(map(need.bytes_of, on_grid)), budget, where)
    raise AssertionError("one of the grids fits")


def _check_fit(smallest: int, budget: float, where: str) -> None:
    if smallest > budget:
        raise UserError(
            f"{where}: even the smallest choice for `{LARGEST}` takes {smallest / GB:.3g} GB a rank, and "
            f"memory_gb = {budget / GB:.3g}: allow more memory, or more ranks."
        )


def _largest_param(asked: Request, key: str, need: _Need, budget: float) -> Request:
    """The request with the largest number that fits, or with the smallest number that gives the same size.

    The number 1 fits, and sizes never fall.
    """

    def bytes_of(count: int) -> int:
        return need.bytes_of(_with_params(asked, {key: count}))

    top = 1
    while bytes_of(top) <= budget and bytes_of(2 * top) > bytes_of(top):
        top *= 2
    fits = bisect_right(range(1, 2 * top + 1), budget, key=bytes_of)
    smallest = bisect_left(range(1, fits + 1), bytes_of(fits), key=bytes_of) + 1
    return _with_params(asked, {key: smallest})


def _with_params(asked: Request, params: dict[str, int]) -> Request:
    choice = asked["strategy"]
    return {**asked, "strategy": {**choice, "params": {**choice.get("params", {}), **params}}}


def make_spec(root: Path, request: dict[str, Any], where: str) -> Spec:
    """The spec of a request: the keys of a spec, with the names of cards, and a grid in words."""
    return filled(root, chosen(root, request, where), where)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The request of dotted keys and their values: training.epochs is the key epochs of training."""
    request: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, key = path.split(".")
        place = request
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UserError(
                    f"{format_value(path)} = {format_value(value)}: {parent} has no keys of its own."
                )
        place[key] = value
    return request
