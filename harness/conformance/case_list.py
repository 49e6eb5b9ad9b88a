"""The cases on which a strategy is checked: its grids, its parameters, and each peculiarity of a model or graph."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple, get_args

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.conformance.batches import find_multiplier
from harness.conformance.case import Case
from harness.conformance.pairs import Combination, Covering, cover_pairs
from harness.graph.model import LabelTask, Weighting
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import Machine
from harness.spec.spec import ModelChoice, Spec, StrategyChoice, Training, format_grid
from harness.strategy import Strategy

Extent = Literal["quick", "usual", "full"]
WORLDS: dict[Extent, tuple[int, ...]] = {
    "quick": (1, 3, 4),
    "usual": (1, 2, 3, 4, 6),
    "full": (*range(1, 13), 16),
}
COMBINED: dict[Extent, int] = {"quick": 6, "usual": 9, "full": 12}
"""The most ranks on which choices are combined: enough to split two axes in two and three, in three, or in four."""
LARGER: dict[Extent, dict[Extent, str]] = {
    "quick": {
        "usual": "other numbers of ranks, more grids, a case for each parameter and for each peculiarity of a model or "
        "graph, more combinations of choices, and each rank's replay and memory",
        "full": "every grid of up to 16 ranks",
    },
    "usual": {"full": "every grid of up to 16 ranks"},
    "full": {},
}
"""What larger checks try in addition to a check."""
SMALL = 4
"""Up to this number of ranks every grid is tried; for more ranks, only the first two grids."""
AMPLE = 8
"""The largest number of ranks for cases that are tried on a single grid."""
EPOCHS = 3
VERTICES = 211
MODEL = ModelChoice(layers=3, hidden=10)
WHOLE = ModelChoice(layers=4, hidden=10, projection=True, norm=True, dropout=0.3, residual=True)
HERE = Machine(name="check")
TRAINING = Training(epochs=EPOCHS, optimizer="sgd", lr=0.5)
"""Plain SGD: Adam would hide a gradient that is off by a constant factor."""
RECOMPUTED = TRAINING.model_copy(update={"recompute": True})


class CaseList(NamedTuple):
    """The cases of a check."""

    trained: list[Case]
    impossible: list[Case]
    """Cases that must be refused."""
    covering: Covering
    """How the choices of a strategy were combined."""


def list_cases(name: str, strategy: type[Strategy], extent: Extent, most: int | None) -> CaseList:
    """Return the cases of a check, on at most `most` ranks, those first that find most mistakes.

    The smallest grid finds mistakes of the computation, and combinations most of the others (benchmarks/mutants.py).
    """
    worlds = [
        ranks for ranks in WORLDS[extent] if extent != "quick" or len(strategy.axes) == 1 or ranks < SMALL
    ]
    sizes = sorted({min(ranks, most or ranks) for ranks in (*worlds, _count_ample_ranks(strategy, extent))})
    grids = [grid for ranks in sizes for grid in _list_grids(strategy, ranks, extent)]
    if not grids:
        raise UserError(f"{strategy.name} has no grid for any of {', '.join(map(str, sizes))} ranks.")
    combined = choose_combined_grids(strategy, min(COMBINED[extent], most or COMBINED[extent]))
    smallest, *others = [make_case(name, grid, "directed, prime, partial mask") for grid in grids]
    combinations, covering = combine_choices(name, strategy, combined)
    cases = [smallest, *combinations, *others]
    if extent == "quick":
        cases += [_make_trained_features(name, combined[0]), *_make_rounded(name, strategy, combined[0])]
    else:
        cases += _separate_peculiarities(name, strategy, _choose_peculiar_grid(grids, strategy, extent))
    impossible = list(_make_impossible(name, strategy, grids[-1]))
    return CaseList([*cases, *_make_empty_rank(name, grids)], impossible, covering)


def _choose_peculiar_grid(
    grids: Sequence[dict[AxisName, int]], strategy: type[Strategy], extent: Extent
) -> dict[AxisName, int]:
    """Return the grid of the cases with one peculiarity: the one of ample ranks with the most split axes."""
    ample = _count_ample_ranks(strategy, extent)
    usual = [grid for grid in grids if prod(grid.values()) <= ample] or grids
    largest = [grid for grid in usual if prod(grid.values()) == prod(usual[-1].values())]
    return max(reversed(largest), key=_count_split_axes)


def _count_ample_ranks(strategy: type[Strategy], extent: Extent) -> int:
    """Return the ranks that split every axis in two; a quick check splits a single axis in three."""
    if extent == "quick":
        return 3
    return max(SMALL, min(1 << len(strategy.axes), AMPLE))


def choose_combined_grids(strategy: type[Strategy], most: int) -> list[dict[AxisName, int]]:
    """Return grids of up to `most` ranks that split as many axes as possible, each axis in all possible sizes.

    Of two axes, each is also split alone, which some parameters need.
    """
    first = min(3, most) if len(strategy.axes) == 1 else most
    grids = next(
        found for ranks in (*range(first, 0, -1), *range(first, most + 1)) if (found := strategy.grids(ranks))
    )
    widest = max(map(_count_split_axes, grids))
    chosen = _choose_covering_grids([grid for grid in grids if _count_split_axes(grid) == widest])
    if len(strategy.axes) == 2 and widest == 2:
        chosen += [grid for grid in strategy.grids(3) if _count_split_axes(grid) == 1]
    return chosen


def _list_grids(strategy: type[Strategy], ranks: int, extent: Extent) -> list[dict[AxisName, int]]:
    grids = strategy.grids(ranks)
    if extent == "quick":
        return _choose_covering_grids(grids)
    return grids if extent == "full" or ranks <= SMALL else grids[:2]


def _choose_covering_grids(grids: list[dict[AxisName, int]]) -> list[dict[AxisName, int]]:
    """Return a few grids that together split every axis into every size into which a grid splits it."""
    chosen: list[dict[AxisName, int]] = []
    missing = {split for grid in grids for split in _list_splits(grid)}
    while missing:
        grid = max(grids, key=lambda grid: (len(_list_splits(grid) & missing), _count_split_axes(grid)))
        chosen, missing = [*chosen, grid], missing - _list_splits(grid)
    return chosen or grids[:1]


def _list_splits(grid: dict[AxisName, int]) -> set[tuple[AxisName, int]]:
    return {(axis, size) for axis, size in grid.items() if size > 1}


def _count_split_axes(grid: dict[AxisName, int]) -> int:
    return sum(size > 1 for size in grid.values())


def _make_case_with_params(name: str, small: dict[AxisName, int], params: dict[str, Any]) -> Case:
    choices = ", ".join(f"{key} = {value}" for key, value in params.items())
    strategy = StrategyChoice(name=name, params=params)
    return replace(make_case(name, small, choices, strategy=strategy), train_twice=True)


def _add_undirected(case: Case) -> Iterator[Case]:
    """Yield the case, and if no matrix describes its steps, the same case of an undirected graph.

    Then A is symmetric although a rank's block of it need not be.
    """
    yield case
    if (strategy := _admit_or_none(case)) and not strategy.mini_batches and find_multiplier(case) is None:
        yield replace(case, name=f"{case.name}, undirected", directed=False, train_twice=False)


Factor = list[dict[str, Any]]
"""The settings of each level of a choice; the first are the usual ones."""


def list_factors(strategy: type[Strategy], grids: Sequence[dict[AxisName, int]]) -> list[Factor]:
    """Return all choices: the grid, the model, the graph, the training, and the strategy's parameters."""
    projection, others = {"projection": True, "residual": True}, {"norm": True, "dropout": 0.3}
    orders: list[dict[str, Any]] = [{}, {"permutation": "double"}]
    if strategy.partitioned_over:
        orders.append({"partition": "metis"})
    factors: dict[str, Factor] = {
        "grid": [{"grid": grid} for grid in grids],
        "model": [{"model": {"kind": kind}} for kind in strategy.models],
        "projection": [{}, {"model": projection}] if strategy.has_model_parts else [],
        "other parts": [{}, {"model": others}] if strategy.has_model_parts else [],
        "direction": [{}, {"directed": False}],
        "task": [{}, {"task": "multi-label"}],
        "weights": [{}, {"weights": "normalised"}],
        "features": [{}, {"training": {"features": True}}],
        "order of products": [
            {},
            *({"model": {"order": order}} for order in ("combine_first", "aggregate_first")),
        ],
        "vertices": [{"order": order} for order in orders],
        "recomputed": [{}, {"training": {"recompute": True}}] if strategy.can_recompute else [],
        "protocol": [{}, {"protocol": "faithful"}],
    }
    params = {
        key: [{}, *({"params": {key: value}} for value in values)]
        for key, values in list_choices(strategy).items()
        if key != "wire"  # rounded numbers are only close to serial training
    }
    named = [*factors.items(), *params.items()]
    return [levels for name, levels in named if len(levels) > 1 or name == "grid"]


def combine_choices(
    name: str, strategy: type[Strategy], grids: Sequence[dict[AxisName, int]]
) -> tuple[list[Case], Covering]:
    """Return cases in which every two levels of two choices meet, if the strategy accepts them together."""
    factors = list_factors(strategy, grids)

    def make(combination: Combination) -> Case:
        return _make_combined(
            name, strategy, [levels[level] for levels, level in zip(factors, combination, strict=True)]
        )

    def accepts(combination: Combination) -> bool:
        try:
            return bool(make(combination).strategy())
        except (UserError, ValidationError):
            return False
        except Exception:  # the check of a case reports it
            return True

    covering = cover_pairs([*map(len, factors)], accepts)
    cases = []
    for number, combination in enumerate(covering.combinations, 1):
        case = make(combination)
        params = "".join(f", {key} = {value}" for key, value in case.spec.strategy.params.items())
        cases.append(replace(case, name=f"{case.name} {number}{params}", train_twice=number <= 2))
    return cases, covering


def _make_combined(name: str, strategy: type[Strategy], chosen: Sequence[dict[str, Any]]) -> Case:
    """Make a case of the settings of all choices."""
    merged: dict[str, Any] = {"model": {}, "training": {}, "order": {}, "params": {}}
    for settings in chosen:
        for key, value in settings.items():
            merged[key] = merged[key] | value if key in ("model", "training", "order", "params") else value
    grid, params, order = merged.pop("grid"), merged.pop("params"), merged["order"]
    if "partition" in order:
        assert strategy.partitioned_over
        order["parts"] = grid[strategy.partitioned_over] * strategy.parts_per_block(strategy.Params(**params))
    merged["model"] = MODEL.model_copy(update={"layers": 4, **merged["model"]})
    merged["training"] = TRAINING.model_copy(update=merged["training"])
    return make_case(name, grid, "combination", strategy=StrategyChoice(name=name, params=params), **merged)


def _make_trained_features(name: str, grid: dict[AxisName, int]) -> Case:
    """Make a case whose first layer needs the gradient of its input, without a projection before it."""
    return make_case(
        name, grid, "features are trained", training=TRAINING.model_copy(update={"features": True})
    )


def _make_rounded(name: str, strategy: type[Strategy], grid: dict[AxisName, int]) -> Iterator[Case]:
    for wire in list_choices(strategy).get("wire", []):
        yield replace(_make_case_with_params(name, grid, {"wire": wire}), train_twice=False)


def _admit_or_none(case: Case) -> Strategy | None:
    """Return the strategy of a case, or None if it refuses the case."""
    try:
        return case.strategy()
    except UserError:
        return None


def _make_uneven_parts(name: str, strategy: type[Strategy], small: dict[AxisName, int]) -> Iterator[Case]:
    if strategy.partitioned_over:
        parts = small[strategy.partitioned_over] * strategy.parts_per_block(strategy.Params())
        yield make_case(name, small, "uneven parts", order={"partition": "metis", "parts": parts})


def _separate_peculiarities(
    name: str, strategy: type[Strategy], small: dict[AxisName, int]
) -> Iterator[Case]:
    """Yield a case for each non-default value of a parameter, and for each peculiarity."""
    for key, values in list_choices(strategy).items():
        for value in values:
            yield from _add_undirected(_make_case_with_params(name, small, {key: value}))
    yield make_case(name, small, "combine first", model=MODEL.model_copy(update={"order": "combine_first"}))
    yield make_case(
        name, small, "aggregate first", model=MODEL.model_copy(update={"order": "aggregate_first"})
    )
    yield make_case(name, small, "one layer", model=ModelChoice(layers=1, hidden=10))
    yield replace(
        make_case(name, small, "five layers, twice", model=ModelChoice(layers=5, hidden=4)), train_twice=True
    )
    for kind in strategy.models[1:]:
        model = MODEL.model_copy(update={"kind": kind})
        yield make_case(name, small, f"model {kind}", model=model)
        whole = WHOLE.model_copy(update={"kind": kind}) if strategy.has_model_parts else model
        yield make_case(name, small, f"model {kind}, undirected", model=whole, directed=False)
    if strategy.has_model_parts:
        yield make_case(name, small, "every part of a model", model=WHOLE)
        yield make_case(name, small, "dropout alone", model=MODEL.model_copy(update={"dropout": 0.4}))
    yield make_case(name, small, "many classes a vertex", task="multi-label")
    yield make_case(name, small, "undirected", directed=False)
    yield make_case(name, small, "weighted edges", weights="normalised")
    yield make_case(name, small, "weighted edges as given, undirected", weights="raw", directed=False)
    yield _make_trained_features(name, small)
    yield make_case(name, small, "single permutation", order={"permutation": "single"})
    for directed in (True, False):
        kind = "directed" if directed else "undirected"
        yield make_case(
            name,
            small,
            f"double permutation, {kind}",
            order={"permutation": "double"},
            directed=directed,
            model=ModelChoice(layers=4, hidden=10),
        )
    yield from _make_uneven_parts(name, strategy, small)
    yield from _make_recomputed(name, strategy, small)
    yield make_case(name, small, "faithful protocol", protocol="faithful")


def _make_recomputed(name: str, strategy: type[Strategy], small: dict[AxisName, int]) -> Iterator[Case]:
    """Yield a case whose layers are recomputed in the backward pass, with every part of a model."""
    if strategy.can_recompute:
        model = (WHOLE if strategy.has_model_parts else MODEL).model_copy(
            update={"kind": strategy.models[-1]}
        )
        yield make_case(name, small, "layers are recomputed", model=model, training=RECOMPUTED)


def _make_empty_rank(name: str, grids: list[dict[AxisName, int]]) -> Iterator[Case]:
    """Yield the case of the largest grid with the fewest vertices on which some rank has none."""
    for grid in reversed(grids):
        ranks = prod(grid.values())
        for vertices in range(ranks, 3 * ranks):
            case = make_case(name, grid, "a rank without vertices", vertices=vertices)
            if _has_empty_rank(case):
                yield case
                return


def _has_empty_rank(case: Case) -> bool:
    strategy = _admit_or_none(case)
    return strategy is not None and any(
        not strategy.output_piece(strategy.coordinates(rank)).rows for rank in range(case.spec.ranks)
    )


def list_choices(strategy: type[Strategy]) -> dict[str, list[Any]]:
    """List the non-default values of each parameter, or its examples if its type has too many values."""
    choices = {}
    for name, field in strategy.Params.model_fields.items():
        values = field.examples or ([False, True] if field.annotation is bool else get_args(field.annotation))
        choices[name] = [value for value in values if value != field.default]
    return choices


def make_case(
    name: str,
    grid: dict[AxisName, int],
    what: str,
    *,
    vertices: int = VERTICES,
    directed: bool = True,
    order: dict[str, Any] | None = None,
    task: LabelTask = "single-label",
    **more: Any,
) -> Case:
    weights: Weighting | None = more.pop("weights", None)
    dataset = DatasetChoice.model_validate({"name": "check", "seed": 3, **(order or {})})
    usual = {
        "strategy": StrategyChoice(name=name),
        "model": MODEL,
        "training": TRAINING,
        "precision": "float64",
        "machine": HERE,
    }
    settings = {"ranks": prod(grid.values()), "grid": grid, "dataset": dataset, **usual, **more}
    if load_strategy(name).mini_batches:
        # Two full steps per epoch, and a third with the few vertices that are left. Mini-batches are drawn from the
        # whole graph, or from the third of it that is in the training split.
        groups = grid.get(AxisName.D, 3 * prod(grid.values()))
        batch = max(1, 9 * vertices // (16 * groups))
        settings["training"] = settings["training"].model_copy(update={"batch": batch})
    spec = Spec.model_validate(settings)
    return Case(f"{format_grid(grid)}: {what}", spec, vertices, directed, task, weights)


def _make_impossible(name: str, strategy: type[Strategy], grid: dict[AxisName, int]) -> Iterator[Case]:
    """Yield cases that a strategy must refuse with a reason."""
    too_many_ranks = make_case(
        name, grid, "more ranks than vertices", vertices=max(1, prod(grid.values()) - 1)
    )
    if prod(grid.values()) > 1:
        yield too_many_ranks
    foreign = next(axis for axis in AxisName if axis not in strategy.axes)
    yield make_case(name, {foreign: 2}, "an axis it does not have")
    if not strategy.can_recompute:
        yield make_case(name, grid, "layers are recomputed", training=RECOMPUTED)
    if strategy.partitioned_over and prod(grid.values()) > 1:
        parts = grid[strategy.partitioned_over] + 1
        yield make_case(
            name, grid, "a partition into other parts", order={"partition": "metis", "parts": parts}
        )
    for ranks in WORLDS["usual"]:
        if not strategy.grids(ranks):
            yield make_case(name, {strategy.axes[0]: ranks}, f"{ranks} ranks, for which it has no grid")
