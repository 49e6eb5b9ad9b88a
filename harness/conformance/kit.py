"""The conformance kit: runs the cases of a strategy and checks the results against every law.

It treats built-in strategies and plugins alike, and knows none by name.
"""

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Literal, get_args

import torch

from harness.conformance.batches import (
    check_unbiased_batches,
    check_unbiased_layers,
    check_unbiased_messages,
    find_multiplier,
)
from harness.conformance.case import DISTANCES, Case, RankResult, compute_nearby_losses, train_rank
from harness.conformance.laws import (
    Finding,
    check_all_memory,
    check_gradient_slopes,
    check_ledger_sums,
    check_memory,
    check_repeatable,
    check_replay,
    check_serial,
    check_wire_rounding,
    check_words,
    check_words_bound,
    report_broken,
    report_crash,
)
from harness.conformance.mismatch import Mismatch, find_own_frame
from harness.conformance.reference import Trained, train_densely
from harness.device import GPU
from harness.errors import RunError, UserError
from harness.graph.model import LabelTask, Weighting
from harness.ledger import AxisName
from harness.progress import OnStep, ignore_step, report_steps
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import Machine
from harness.spec.spec import ModelChoice, Spec, StrategyChoice, Training, format_grid
from harness.store.memory_store import MemoryStore
from harness.strategy import Strategy, admit, facts_of
from harness.validation import unknown_name_error

Runner = Callable[..., list[Any]]
"""`run(world, function, *arguments)` returns the function's results on every rank of a world."""

Extent = Literal["quick", "usual", "full"]
WORLDS: dict[Extent, tuple[int, ...]] = {
    "quick": (1, 3, 4),
    "usual": (1, 2, 3, 4, 6),
    "full": (*range(1, 13), 16),
}
LARGER: dict[Extent, dict[Extent, str]] = {
    "quick": {
        "usual": "other numbers of ranks, more grids, each parameter and each peculiarity of a model or graph in a "
        "case of its own, and a replay of every rank",
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
HERE = Machine(name="kit")
ON_GPUS = Machine(name="kit on GPUs", device=GPU, engine="nccl")
TRAINING = Training(epochs=EPOCHS, optimizer="sgd", lr=0.5)
"""Plain SGD: Adam would hide a gradient that is off by a constant factor."""
RECOMPUTED = TRAINING.model_copy(update={"recompute": True})
REPEATED, UNBIASED = COSTLY = ("same seed, same bits", "unbiased")
"""The laws that need a second training, or hundreds of samples on the host."""


def check(  # noqa: PLR0913  independent choices, the last two by name
    name: str,
    run: Runner,
    extent: Extent = "usual",
    machine: Machine = HERE,
    most: int | None = None,
    on_case: OnStep = ignore_step,
    *,
    known: Collection[str] = (),
    only: str | None = None,
) -> Iterator[Finding]:
    """Check every law on every case of a strategy, and yield the findings; `run` starts ranks on the machine.

    Worlds have at most `most` ranks, for example one for each GPU. Laws in COSTLY that are `known` to hold are skipped.
    With `only`, the case of this name is tried, or the cases whose names contain it.

    A quick check tries one grid of each size, combines the peculiarities in one case, and replays the first and the
    last rank alternately. A full check tries every grid of more sizes.
    """
    strategy = load_strategy(name)
    try:
        cases, impossible = _list_cases(name, strategy, extent, most)
    except UserError:
        raise
    except Exception as error:
        if frame := find_own_frame(strategy, _format_trace(error)):
            message = (
                f"{strategy.name} raised {type(error).__name__}: {error} before any training, in {frame}."
            )
            raise UserError(message) from error
        raise
    names = [case.name for case in (*cases, *impossible)]
    chosen = _choose_names(names, only) if only else set(names)
    numbered = [(number, case) for number, case in enumerate(cases) if case.name in chosen]
    for number, case in report_steps(numbered, lambda numbered: numbered[1].name, on_case):
        ranks, spec = range(case.spec.ranks), case.spec.model_copy(update={"machine": machine})
        replayed = ranks if extent != "quick" else [ranks[-(number % 2)]]
        yield from check_case(replace(case, spec=spec), run, replayed, known)
    yield from (_check_refusal(case) for case in impossible if case.name in chosen)


def _choose_names(names: Sequence[str], only: str) -> set[str]:
    """Return the name `only`, or all names that contain it."""
    chosen = {name for name in names if name == only} or {name for name in names if only in name}
    if not chosen:
        raise unknown_name_error("case", only, list(names))
    return chosen


def _list_cases(
    name: str, strategy: type[Strategy], extent: Extent, most: int | None
) -> tuple[list[Case], list[Case]]:
    """Return the cases to train, and the impossible ones, which must be refused."""
    worlds = WORLDS[extent]
    ample = _count_ample_ranks(strategy, extent)
    sizes = sorted({min(ranks, most or ranks) for ranks in (*worlds, ample)})
    grids = [grid for ranks in sizes for grid in _list_grids(strategy, ranks, extent)]
    if not grids:
        raise UserError(f"{strategy.name} has no grid for any of {', '.join(map(str, sizes))} ranks.")
    usual = [grid for grid in grids if prod(grid.values()) <= ample] or grids
    largest = [grid for grid in usual if prod(grid.values()) == prod(usual[-1].values())]
    peculiar = max(reversed(largest), key=_count_split_axes)
    peculiarities = _combine_peculiarities if extent == "quick" else _separate_peculiarities
    ordinary = [make_case(name, grid, "directed, prime, partial mask") for grid in grids]
    empty = _make_empty_rank(name, usual)
    cases = [*ordinary, *peculiarities(name, strategy, peculiar), *empty]
    return cases, list(_make_impossible(name, strategy, grids[-1]))


def _count_ample_ranks(strategy: type[Strategy], extent: Extent) -> int:
    """Return the ranks that split every axis in two; a quick check splits two axes, or a single axis in three."""
    if extent == "quick":
        return 3 if len(strategy.axes) == 1 and strategy.grids(3) else SMALL
    return max(SMALL, min(1 << len(strategy.axes), AMPLE))


def check_smallest(name: str, run: Runner, ranks: int, machine: Machine) -> Iterator[Finding]:
    """Check all but the COSTLY laws on a single case of a strategy: a small training on all of these ranks."""
    case = make_case(name, load_strategy(name).grids(ranks)[0], "directed, prime, partial mask")
    spec = case.spec.model_copy(update={"machine": machine})
    yield from check_case(replace(case, spec=spec), run, [0], COSTLY)


def _list_grids(strategy: type[Strategy], ranks: int, extent: Extent) -> list[dict[AxisName, int]]:
    grids = strategy.grids(ranks)
    if extent == "quick":
        return _choose_covering_grids(grids)
    return grids if extent == "full" or ranks <= SMALL else grids[:2]


def _choose_covering_grids(grids: list[dict[AxisName, int]]) -> list[dict[AxisName, int]]:
    """Return a few grids that together split every axis that any grid splits."""
    chosen: list[dict[AxisName, int]] = []
    missing = {axis for grid in grids for axis, size in grid.items() if size > 1}
    for grid in sorted(grids, key=_count_split_axes, reverse=True):
        if split := {axis for axis, size in grid.items() if size > 1} & missing:
            chosen, missing = [*chosen, grid], missing - split
    return chosen or grids[:1]


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


PECULIARITIES: list[dict[str, Any]] = [
    {"training": TRAINING.model_copy(update={"features": True})},
    {"order": {"permutation": "double"}},
    {"task": "multi-label"},
    {"weights": "normalised"},
]


def _combine_peculiarities(name: str, strategy: type[Strategy], small: dict[AxisName, int]) -> Iterator[Case]:
    """Yield, for each kind of model, a case with all peculiarities that the strategy accepts, and one without them."""
    for kind in strategy.models:
        model = (WHOLE if strategy.has_model_parts else MODEL).model_copy(update={"layers": 4, "kind": kind})
        accepted, refused = _accumulate(name, small, model, PECULIARITIES)
        what = ", ".join(["every part" if strategy.has_model_parts else "four layers", *(list(accepted)[1:])])
        yield replace(make_case(name, small, f"{kind}: {what}", **accepted), train_twice=True)
        if strategy.has_model_parts:
            bare = MODEL.model_copy(update={"layers": 4, "kind": kind})
            accepted, _ = _accumulate(name, small, bare, refused)
            if what := ", ".join(list(accepted)[1:]):
                yield make_case(name, small, f"{kind}: the bare model, {what}", **accepted)
    combine_first = MODEL.model_copy(update={"order": "combine_first"})
    yield make_case(name, small, "undirected, combine first", directed=False, model=combine_first)
    yield make_case(
        name, small, "aggregate first", model=MODEL.model_copy(update={"order": "aggregate_first"})
    )
    yield from _make_uneven_parts(name, strategy, small)
    yield from _make_recomputed(name, strategy, small)
    choices = list_choices(strategy)
    for wire in choices.pop("wire", []):  # separately: rounded numbers are only close to serial training
        yield replace(_make_case_with_params(name, small, {"wire": wire}), train_twice=False)
    while any(choices.values()):
        together: dict[str, Any] = {}
        for key, values in choices.items():
            if not values:
                continue
            combined = _make_case_with_params(name, small, together | {key: values[0]})
            if not together or _admit_or_none(combined):
                together[key] = values.pop(0)
        yield from _add_undirected(_make_case_with_params(name, small, together))


def _accumulate(
    name: str, small: dict[AxisName, int], model: ModelChoice, peculiarities: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the model with the peculiarities that the strategy accepts, added one by one, and the refused ones."""
    accepted: dict[str, Any] = {"model": model}
    refused = []
    for peculiarity in peculiarities:
        if _admit_or_none(make_case(name, small, "", **{**accepted, **peculiarity})):
            accepted |= peculiarity
        else:
            refused.append(peculiarity)
    return accepted, refused


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
    yield make_case(
        name, small, "features are trained", training=TRAINING.model_copy(update={"features": True})
    )
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


def check_case(
    case: Case, run: Runner, replayed: Sequence[int], known: Collection[str] = ()
) -> Iterator[Finding]:
    """Train a case, and yield a finding for each law.

    An error of the strategy breaks the law that was checked, and the other laws are checked all the same.
    """
    try:
        strategy = case.strategy()
    except UserError as refusal:
        yield Finding("refused with a reason", case.name, True, str(refusal))
        return
    except Exception as error:
        yield _report_error("refused with a reason", case, "before training", error)
        return
    try:
        ranks: list[RankResult] = run(case.spec.ranks, train_rank, case, EPOCHS)
    except Exception as error:
        yield _report_error("trains", case, f"training {EPOCHS} epochs", error)
        return

    def check_samples() -> Iterable[Finding]:
        return _check_samples(case, strategy) if UNBIASED not in known else ()

    def check_again() -> Finding:
        composed_from = 0 if case.spec.machine.engine == "gloo" else None
        chosen = [rank.chosen for rank in ranks]
        again = run(case.spec.ranks, train_rank, case, EPOCHS, composed_from, chosen)
        return check_repeatable(case, ranks, again)

    find = partial(_find_or_report_error, case)
    yield from find(
        "losses equal serial", "serial training", lambda: _check_training(case, strategy, ranks, run)
    )
    yield from find("unbiased", "its samples", check_samples)
    yield from find("elements equal the formula", "`words`", lambda: [check_words(case, ranks)])
    yield from find("elements reach the bound", "the bound", lambda: [check_words_bound(case, ranks)])
    if strategy.wire:
        yield check_wire_rounding(case, ranks)
    yield check_ledger_sums(case, ranks)
    yield from find("memory equals the formula", "`memory`", lambda: [check_memory(case, ranks)])
    yield check_all_memory(case, ranks)
    yield from check_replay(case, ranks, replayed)
    if case.train_twice and REPEATED not in known:
        yield from find(REPEATED, "training again", lambda: [check_again()])


def _find_or_report_error(
    case: Case, law: str, when: str, find: Callable[[], Iterable[Finding]]
) -> Iterator[Finding]:
    """Yield the findings of a check; or, if it raises an error, that the law is broken."""
    try:
        yield from find()
    except Exception as error:
        yield _report_error(law, case, when, error)


def _check_training(
    case: Case, strategy: Strategy, ranks: Sequence[RankResult], run: Runner
) -> Iterator[Finding]:
    """Compare a training with the dense reference, or its gradients with differences of its losses."""
    if serial := _train_serially(case, strategy):
        yield from check_serial(case, ranks, serial)
    elif not strategy.rounding:
        yield _check_gradients(case, ranks, run)


def _check_gradients(case: Case, ranks: Sequence[RankResult], run: Runner) -> Finding:
    """Return the finding at the first distance at which the law holds, or at the last."""
    for distance in DISTANCES:
        nearby = run(case.spec.ranks, compute_nearby_losses, case, distance)[0]
        finding = check_gradient_slopes(case, ranks, nearby, distance)
        if finding.holds:
            break
    return finding


def _check_samples(case: Case, strategy: Strategy) -> Iterator[Finding]:
    """Check that samples are unbiased, if the strategy promises it."""
    if strategy.effective_promise == "estimator" and not strategy.mini_batches:
        drawn_messages = strategy.transmit_rows(torch.zeros(1, 1), 0) is not None
        yield (
            check_unbiased_messages(case)
            if drawn_messages
            else check_unbiased_layers(case, find_multiplier(case))
        )
    unbiased_ones = strategy.mini_batches and strategy.effective_promise == "estimator" and not strategy.wire
    if unbiased_ones and (
        case.train_twice or case.weights or case.spec.strategy.params or case.spec.model.kind != "gcn"
    ):
        yield check_unbiased_batches(case)


def _report_error(law: str, case: Case, when: str, error: Exception) -> Finding:
    """Return the finding of a law that an error broke, on a rank or here."""
    if isinstance(
        error, RunError
    ):  # of the ranks: the message ends with the traceback of the first that failed
        message, _, trace = str(error).partition("\nTraceback (most recent call last):\n")
    else:
        message, trace = f"{type(error).__name__}: {error}", _format_trace(error)
    return report_crash(law, case, Mismatch(None, when, "", "no error", message), trace)


def _format_trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _train_serially(case: Case, strategy: Strategy) -> Trained | None:
    """Run the dense training that a strategy must equal, on the same samples. None if no matrix describes a step."""
    if strategy.mini_batches:  # they number vertices in the order of the store
        return train_densely(strategy, case.store(), EPOCHS)
    if multiplier := find_multiplier(case):
        serial = train_densely(strategy, MemoryStore(case.graph()), EPOCHS, multiplier)
        return serial.reorder(case.store().orders)
    return None


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


def _check_refusal(case: Case) -> Finding:
    facts = facts_of(case.store())
    try:
        admit(load_strategy(case.spec.strategy.name), case.spec, facts)
    except UserError as refusal:
        return Finding("refused with a reason", case.name, True, str(refusal))
    except Exception as error:
        return _report_error("refused with a reason", case, "before training", error)
    ready = Mismatch(None, "before training", "", "a refusal with its reason", "a strategy that is ready")
    return report_broken("refused with a reason", case, [ready])
