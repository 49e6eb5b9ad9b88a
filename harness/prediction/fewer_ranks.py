"""Compares advice with the fastest options on fewer ranks.

Not every strategy is tried on every number of ranks. Candidates are the strategies that could win: those whose time on
the requested ranks is within `NEAR` of the fastest, and those that have no time there, because no grid admits them or
the memory is too small, or because they need a single rank, as serial training does. On few ranks, all are candidates,
so that their answer hardly depends on the requested ranks. Each is tried on its `NEAR_GRIDS` grids that are most alike
to its fastest grid on the requested ranks. A replay ends as soon as it takes longer than the fastest options so far.
The two fastest that fit the memory are then predicted from all representative ranks, so their times equal the times
that `harness predict` prints.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, log
from typing import NamedTuple

from harness.base.errors import UserError
from harness.base.formatting import GB
from harness.base.progress import ignore_step
from harness.prediction.advice import (
    FINALISTS,
    Advice,
    FewerRanks,
    Option,
    Predictor,
    compare_options,
    compute_lower_bound,
    estimate_seconds,
    plan_grids,
    predict_first_rank,
)
from harness.prediction.epoch import CachingPredictor, Prediction
from harness.prediction.workers import ReportRemaining, run_pieces
from harness.registry import load_strategy
from harness.spec.machine_card import MachineCard
from harness.spec.spec import format_grid
from harness.strategy import Candidate, Ready

RATIO = 4
"""The ratio of two numbers of ranks that are compared."""
NEAR = 4.0
"""Strategies within this factor of the fastest are tried on fewer ranks."""
FEW = 16
"""All strategies are tried on at most as many ranks, where predictions are cheap."""
NEAR_GRIDS = 8
"""The most grids of a strategy that are tried on fewer ranks."""

AdmitOnRanks = Callable[[int, Collection[str]], Iterable[Candidate]]
"""Admits the strategies of these names on another number of ranks, each on all its grids."""


def list_fewer_ranks(ranks: int, card: MachineCard) -> list[int]:
    """Return the numbers of ranks to compare: a quarter, a sixteenth and so on, those of one node, and 1."""
    counts, left = {1}, ranks // RATIO
    while left:
        counts.add(left)
        left //= RATIO
    if card.links:
        counts.add(card.links.devices_per_node)
    return sorted((count for count in counts if count < ranks), reverse=True)


class _Found(NamedTuple):
    """The fastest option on fewer ranks, without its graph, so that a process can return it."""

    strategy: str
    grid: str
    prediction: Prediction


class _Search(NamedTuple):
    """The search for the fastest option on one number of ranks."""

    ranks: int
    mini_batches: bool
    names: tuple[str, ...]

    @property
    def label(self) -> str:
        kind = "mini-batches" if self.mini_batches else "the full graph"
        return f"{kind} on {self.ranks} ranks"


def find_fewer_ranks(
    advice: Advice,
    ranks: int,
    admit: AdmitOnRanks,
    predicts: Predictor | None = None,
    work: float = inf,
    processes: int = 0,
    report: ReportRemaining = ignore_step,
) -> Advice:
    """Return the advice with the fastest options on fewer ranks.

    Args:
        advice: The advice for `ranks` ranks.
        ranks: The requested number of ranks.
        admit: Admits strategies on another number of ranks.
        predicts: The function that predicts an option; by default, a `CachingPredictor`.
        work: The estimated core seconds of all predictions, divided evenly among the numbers of ranks.
        processes: The number of worker processes; 0 predicts in this process.
        report: Called with the progress and the estimated remaining time.
    """
    card, predict_option = advice.card, predicts or CachingPredictor()
    assert card, "the advice was not made by `advise`"
    searches = {search.label: search for search in _plan_searches(advice, ranks, card)}
    costs = {label: 1.0 + 0.02 * search.ranks for label, search in searches.items()}
    best = {False: advice.full_graph[:1], True: advice.mini_batch[:1]}
    nearest = {option.strategy.name: option for option in [*advice.mini_batch, *advice.full_graph][::-1]}

    def search(label: str) -> _Found | str:
        wanted = searches[label]
        admitted = [
            each
            for each in admit(wanted.ranks, wanted.names)
            if not each.ready or each.ready[0].strategy.mini_batches == wanted.mini_batches
        ]
        grids = plan_grids(admitted, work / len(searches))
        planned = [
            (each, _select_grids(each, nearest.get(each.name))[: grids.get(each.name, 0)])
            for each in sorted(admitted, key=lambda each: _rank_candidate(each, nearest))
        ]
        return _find_fastest(planned, card, predict_option)

    done = run_pieces(costs, search, processes, report)
    found = []
    for label, wanted in searches.items():
        outcome = done.results[label] if label in done.results else done.lost[label]
        found.append(_compare(wanted, outcome, best[wanted.mini_batches], admit, card))
    return replace(advice, fewer_ranks=tuple(found))


def _plan_searches(advice: Advice, ranks: int, card: MachineCard) -> Iterator[_Search]:
    refused = [each.strategy for each in advice.refused if _can_load(each.strategy)]
    without_time = {*refused, *(each.strategy.name for each in advice.too_large)}
    for options, mini_batches in ((advice.full_graph, False), (advice.mini_batch, True)):
        near = [each.strategy.name for each in options if each.cost <= NEAR * options[0].cost]
        others = [name for name in sorted(without_time) if load_strategy(name).mini_batches == mini_batches]
        for count in list_fewer_ranks(ranks, card) if near or others else ():
            known = near if count > FEW else [each.strategy.name for each in options]
            yield _Search(count, mini_batches, tuple(dict.fromkeys([*known, *others])))


def _can_load(name: str) -> bool:
    """Return False for a broken plugin."""
    try:
        load_strategy(name)
    except UserError:
        return False
    return True


def _find_fastest(
    planned: Iterable[tuple[Candidate, Sequence[Ready]]], card: MachineCard, predicts: Predictor
) -> _Found | str:
    """Return the fastest option that fits the memory, among the grids that are tried of each strategy; or why none."""
    quick, peaks, reasons = list[Option](), list[tuple[int, str]](), list[str]()
    for candidate, tried in planned:
        if not tried:
            reason = "not predicted (--exhaustive)" if candidate.ready else candidate.reason
            reasons.append(f"{candidate.name}: {reason}")
        for ready in tried:
            limit = _find_limit(quick, ready)
            if compute_lower_bound(ready, card) > limit:
                continue
            try:
                prediction = predict_first_rank(ready, card, predicts, limit)
            except UserError as refusal:
                reasons.append(f"{candidate.name}: {refusal}")
                continue
            if prediction is None:
                continue
            option = Option(ready, prediction)
            peaks.append((prediction.peak_bytes, candidate.name))
            if option.can_fit(card):
                quick = sorted([*quick, option], key=lambda each: each.cost)[:FINALISTS]
    if not quick:
        return _describe_smallest(peaks, card) or next(
            iter(reasons), "no strategy has a grid of that many ranks"
        )
    full = [replace(each, prediction=predicts(each.ready, card)) for each in quick]
    fastest = min((each for each in full if each.can_fit(card)), key=lambda each: each.cost, default=None)
    if fastest is None:
        return "none fits the memory"
    return _Found(fastest.strategy.name, fastest.grid, fastest.prediction)


def _describe_smallest(peaks: Sequence[tuple[int, str]], card: MachineCard) -> str:
    """Return the strategy with the lowest peak of memory, none of which fits; empty if there are none."""
    if not peaks:
        return ""
    smallest, name = min(peaks)
    return f"none fits: {name} needs {smallest / GB:.3g} GB of {card.memory_gb:g}"


def _rank_candidate(candidate: Candidate, nearest: dict[str, Option]) -> tuple[float, float]:
    """Order candidates by their time on the requested ranks; then by the time that their predictions take."""
    known = nearest.get(candidate.name)
    return (known.cost if known else inf), estimate_seconds(candidate, NEAR_GRIDS)


def _select_grids(candidate: Candidate, known: Option | None) -> Sequence[Ready]:
    """Return the grids to try: those most alike to the fastest grid on the requested ranks, or the first ones."""
    if known is None:
        return candidate.ready[:NEAR_GRIDS]
    shape, ranks = known.strategy.grid, known.strategy.spec.ranks

    def distance(ready: Ready) -> float:
        own, share = ready.strategy.grid, ready.strategy.spec.ranks / ranks
        shrink = log(share) / max(1, sum(size > 1 for size in shape.values()))
        return sum(abs(log(own[axis] / shape[axis]) - shrink * (shape[axis] > 1)) for axis in shape)

    return sorted(candidate.ready, key=distance)[:NEAR_GRIDS]


def _find_limit(quick: Sequence[Option], ready: Ready) -> float:
    """Return the seconds that an epoch must not exceed to be among the fastest options."""
    if len(quick) < FINALISTS:
        return inf
    visited = Option(ready, quick[-1].prediction).visited_vertices
    return quick[-1].cost * visited


def _compare(
    wanted: _Search,
    outcome: _Found | str,
    best: Sequence[Option],
    admit: AdmitOnRanks,
    card: MachineCard,
) -> FewerRanks:
    if isinstance(outcome, str):
        return FewerRanks(wanted.ranks, wanted.mini_batches, None, outcome)
    (candidate,) = admit(wanted.ranks, [outcome.strategy])
    ready = next(each for each in candidate.ready if format_grid(each.strategy.spec.grid) == outcome.grid)
    option = Option(ready, outcome.prediction)
    if not best:
        return FewerRanks(wanted.ranks, wanted.mini_batches, option, None)
    return FewerRanks(
        wanted.ranks,
        wanted.mini_batches,
        option,
        None,
        option.cost / best[0].cost,
        compare_options(best[0], option, card)[0],
    )
