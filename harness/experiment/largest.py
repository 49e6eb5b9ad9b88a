"""Search for `largest`: the largest grid, or the largest value of a counting parameter, that fits a rank's memory.

The search compares the predicted peak of the first rank (`harness.prediction.epoch`) with the memory:

1. Of the grids that fit, choose the one on which a rank holds the most.
2. Increase each counting parameter until the memory is full or a larger value changes nothing.

Sizes come from the dataset's card, so the result does not depend on which graphs are built. The spec records it.
"""

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.formatting import GB
from harness.base.validation import format_value
from harness.experiment.defaults import LARGEST, Request, count_ranks, fill_defaults
from harness.experiment.known_graph import facts_of_card
from harness.graph.cards.catalog import load_card
from harness.registry import load_strategy
from harness.spec.machine_card import load_machine_card
from harness.spec.spec import format_grid
from harness.strategy import BlockCounts, Ready, ShapeBlocks, Strategy, admit


def replace_largest(root: Path, request: Request, where: str) -> Request:
    """Replace every `largest` of a request by what fits the memory of a rank.

    The memory is the request's own key `memory_gb`, or that of the machine's card.
    """
    result = dict(request)
    memory_gb = result.pop("memory_gb", None)
    params = result["strategy"].get("params", {})
    open_params = [key for key, value in params.items() if value == LARGEST]
    if result.get("grid") != LARGEST and not open_params:
        if memory_gb is not None:
            raise UserError(
                f"{where}: memory_gb = {format_value(memory_gb)}, and nothing is `{LARGEST}`: leave it out."
            )
        return result
    budget = _find_budget(root, result, memory_gb, where)
    peaks = _PeakMemory(root, result, where)
    result = _with_params(result, dict.fromkeys(open_params, 1))
    if result.get("grid") == LARGEST:
        result = _choose_grid(result, peaks, budget, where)
    _check_fit(peaks.predict_bytes(result), budget, where)
    for key in open_params:
        result = _choose_param(result, key, peaks, budget)
    return result


def _find_budget(root: Path, request: Request, memory_gb: Any, where: str) -> float:
    """Return the memory of a rank in bytes, from the request or from the machine's card."""
    machine = request.get("machine", "local")
    if memory_gb is None:
        memory_gb = load_machine_card(root, machine).memory_gb
    if memory_gb is None:
        raise UserError(
            f"{where}: `{LARGEST}` needs the memory of a rank, and config/machines/{machine}.yaml does not say it. Set "
            "memory_gb there or here, as memory_gb: 40."
        )
    if not isinstance(memory_gb, int | float) or not memory_gb > 0:
        raise UserError(f"{where}: memory_gb = {format_value(memory_gb)} is not accepted: a number above 0.")
    return memory_gb * GB


class _PeakMemory:
    """Predicts the peak memory of the first rank from the dataset's card.

    One peak is predicted for each grid. For other values of a parameter, the strategy's formulas give the difference:
    they count what a replay holds (`harness check`). Samplers of partitioned graphs cannot be predicted without the
    edges, so only their formulas count.
    """

    def __init__(self, root: Path, request: Request, where: str) -> None:
        self._root, self._where = root, where
        self._facts = facts_of_card(load_card(root, request["dataset"]["name"]), root)
        self._counts, self._transient = BlockCounts(ShapeBlocks(self._facts)), dict[str, int]()

    def predict_bytes(self, request: Request) -> int:
        """Return the predicted peak."""
        strategy = self._admit(request)
        grid = format_grid(strategy.spec.grid)
        if grid not in self._transient:
            self._transient[grid] = self._count_transient_bytes(strategy)
        return self._count_held_bytes(strategy) + self._transient[grid]

    def count_held_bytes(self, request: Request) -> int:
        """Return the bytes that are held from step to step."""
        return self._count_held_bytes(self._admit(request))

    def _admit(self, request: Request) -> Strategy:
        spec = fill_defaults(self._root, request, self._where)
        return admit(load_strategy(spec.strategy.name), spec, self._facts)

    def _count_held_bytes(self, strategy: Strategy) -> int:
        held = strategy.memory(strategy.coordinates(0), self._counts)
        return sum(held.values()) + strategy.sample_bytes(self._counts)

    def _count_transient_bytes(self, strategy: Strategy) -> int:
        """Return the activations, gradients and messages of a step; 0 for samplers that cannot be predicted."""
        from harness.prediction.epoch import compute_peak_bytes, replay_ranks

        try:
            first = replay_ranks(Ready(strategy), [0], steps=1)
        except UserError:
            return 0
        return compute_peak_bytes(first) - self._count_held_bytes(strategy)


def _choose_grid(request: Request, peaks: _PeakMemory, budget: float, where: str) -> Request:
    """Return the request on the fitting grid that holds the most."""
    strategy = load_strategy(request["strategy"]["name"])
    candidates = [{**request, "grid": grid} for grid in strategy.grids(count_ranks(request, where))]
    if not candidates:
        return {**request, "grid": None}  # `parse_grid` refuses the request and gives the reason
    for candidate in sorted(candidates, key=peaks.count_held_bytes, reverse=True):
        if peaks.predict_bytes(candidate) <= budget:
            return candidate
    _check_fit(min(map(peaks.predict_bytes, candidates)), budget, where)
    raise AssertionError("one of the grids fits")


def _check_fit(smallest: int, budget: float, where: str) -> None:
    if smallest > budget:
        raise UserError(
            f"{where}: even the smallest choice for `{LARGEST}` takes {smallest / GB:.3g} GB a rank, and "
            f"memory_gb = {budget / GB:.3g}: allow more memory, or more ranks."
        )


def _choose_param(request: Request, key: str, peaks: _PeakMemory, budget: float) -> Request:
    """Return the request with the largest value of a parameter that fits; of equal sizes, the smallest value.

    The value 1 fits, and sizes never decrease.
    """

    def predict_bytes(value: int) -> int:
        return peaks.predict_bytes(_with_params(request, {key: value}))

    top = 1
    while predict_bytes(top) <= budget and predict_bytes(2 * top) > predict_bytes(top):
        top *= 2
    fits = bisect_right(range(1, 2 * top + 1), budget, key=predict_bytes)
    smallest = bisect_left(range(1, fits + 1), predict_bytes(fits), key=predict_bytes) + 1
    return _with_params(request, {key: smallest})


def _with_params(request: Request, params: dict[str, int]) -> Request:
    choice = request["strategy"]
    return {**request, "strategy": {**choice, "params": {**choice.get("params", {}), **params}}}
