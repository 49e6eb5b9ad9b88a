"""The conformance kit: the cases, the laws, and one page that says which hold.

It serves built-in and foreign strategies alike, and knows none of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from harness.check.case import Case, RankResult, train_rank
from harness.check.laws import (
    Finding,
    adds_up,
    equal_to_formula,
    equal_to_replay,
    equal_to_serial,
    memory_equal_to_formula,
    repeats,
)
from harness.check.reference import train_densely
from harness.errors import UserError
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.machine import Machine
from harness.spec.spec import ModelChoice, Spec, StrategyChoice, Training, grid_text
from harness.store.choice import DatasetChoice
from harness.strategy import Strategy, admit, facts_of

Runner = Callable[..., list[Any]]
"""`run(world, function, *arguments)`: the function's results on every rank of a world."""

WORLDS = (1, 2, 3, 4, 6)
EPOCHS = 5
VERTICES, FEW = 211, 5
MODEL = ModelChoice(layers=3, hidden=10)
HERE = Machine(name="kit")
TRAINING = Training(epochs=EPOCHS, optimizer="sgd", lr=0.5)
"""Plain descent: Adam would hide a gradient that is a multiple of the right one."""


def check(name: str, run: Runner, *, full: bool = False) -> Iterator[Finding]:
    """Every law on every case of a strategy, one finding at a time."""
    strategy = load_strategy(name)
    grids = [grid for ranks in WORLDS for grid in _grids(strategy, ranks, full)]
    if not grids:
        raise UserError(f"{strategy.name} has no grid for any of {', '.join(map(str, WORLDS))} ranks.")
    for case in _cases(name, grids):
        yield from _findings(case, run)
    yield from _refusals(name, strategy, grids[-1])


def _grids(strategy: type[Strategy], ranks: int, full: bool) -> list[dict[AxisName, int]]:
    grids = strategy.grids(ranks)
    return grids if full else grids[:2]


def _cases(name: str, grids: list[dict[AxisName, int]]) -> Iterator[Case]:
    """Every grid on the ordinary case, and each peculiarity on the largest grid of at most four ranks."""
    for grid in grids:
        yield _case(name, grid, "directed, prime, partial mask")
    small = [grid for grid in grids if _size(grid) <= 4][-1]
    yield _case(name, small, "combine first", model=MODEL.model_copy(update={"order": "combine_first"}))
    yield _case(name, small, "one layer", model=ModelChoice(layers=1, hidden=10))
    yield replace(_case(name, small, "five layers, twice", model=ModelChoice(layers=5, hidden=4)), again=True)
    yield _case(name, small, "undirected", directed=False)
    yield _case(name, small, "single permutation", permutation="single")
    yield _case(name, small, "faithful protocol", protocol="faithful")
    yield _case(name, small, "a rank without vertices", vertices=FEW)


def _case(
    name: str,
    grid: dict[AxisName, int],
    what: str,
    *,
    vertices: int = VERTICES,
    directed: bool = True,
    permutation: str = "none",
    **more: Any,
) -> Case:
    dataset = DatasetChoice.model_validate({"name": "check", "permutation": permutation, "seed": 3})
    fixed = {"model": MODEL, "training": TRAINING, "precision": "float64", "machine": HERE}
    settings = {"ranks": _size(grid), "grid": grid, "dataset": dataset, **fixed, **more}
    spec = Spec.model_validate({"strategy": StrategyChoice(name=name), **settings})
    return Case(f"{grid_text(grid)}: {what}", spec, vertices, directed)


def _findings(case: Case, run: Runner) -> Iterator[Finding]:
    try:
        strategy = case.strategy()
    except UserError as refusal:
        yield Finding("refused with a reason", case.name, True, str(refusal))
        return
    try:
        ranks: list[RankResult] = run(case.spec.ranks, train_rank, case, EPOCHS)
    except Exception as error:
        yield Finding("trains", case.name, False, f"{type(error).__name__}: {error}")
        return
    if strategy.promise == "exact":
        yield from equal_to_serial(case, ranks, train_densely(case.spec, case.store(), EPOCHS))
    yield equal_to_formula(case, ranks)
    yield adds_up(case, ranks)
    yield memory_equal_to_formula(case, ranks)
    yield from equal_to_replay(case, ranks)
    if case.again:
        yield repeats(case, ranks, run(case.spec.ranks, train_rank, case, EPOCHS))


def _refusals(name: str, strategy: type[Strategy], grid: dict[AxisName, int]) -> Iterator[Finding]:
    """Grids that cannot be: refused, and with a reason."""
    crowded = _case(name, grid, "more ranks than vertices", vertices=max(1, _size(grid) - 1))
    if _size(grid) > 1:
        yield _refused(crowded)
    foreign = next(axis for axis in AxisName if axis not in strategy.axes)
    yield _refused(_case(name, {foreign: 2}, "an axis it does not have"))
    for ranks in WORLDS:
        if not strategy.grids(ranks):
            yield _refused(_case(name, {strategy.axes[0]: ranks}, f"{ranks} ranks, for which it has no grid"))


def _refused(case: Case) -> Finding:
    facts = facts_of(case.store())
    try:
        admit(load_strategy(case.spec.strategy.name), case.spec, facts)
    except UserError as refusal:
        return Finding("refused with a reason", case.name, True, str(refusal))
    return Finding("refused with a reason", case.name, False, "was accepted")


def _size(grid: dict[AxisName, int]) -> int:
    size = 1
    for extent in grid.values():
        size *= extent
    return size
