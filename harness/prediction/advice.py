"""Ranks all strategies and grids for a graph on a machine by predicted time.

1. Every grid of a strategy is predicted from its first rank only, in order of the time to send its words. A grid is
   skipped if sending its words takes longer than the epochs of the fastest grids, and its replay ends as soon as the
   replayed part does (`harness.prediction.event_prices.EpochLimit`).
2. The fastest grids of each strategy that fit the memory are predicted from all representative ranks.
3. Full-graph strategies are ranked by epoch time. Mini-batch strategies are ranked by time per visited training vertex,
   because the lengths of their epochs differ.

Two options tie if the errors of their predictions could reverse their order (`harness.prediction.ratio_error`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log, prod
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from harness.base.errors import UserError
from harness.base.formatting import GB
from harness.base.progress import ignore_step
from harness.ledger import Op
from harness.prediction.card_status import CardStatus, describe_card
from harness.prediction.epoch import (
    MAX_REPLAYED_RANKS,
    REPLAYED_STEPS,
    CachingPredictor,
    Prediction,
)
from harness.prediction.pricing import price_rings
from harness.prediction.ratio_error import PredictedTime, compute_ratio_error
from harness.prediction.replay import preload_torch
from harness.prediction.run_command import make_run_command
from harness.prediction.workers import ReportRemaining, run_pieces
from harness.results.record import read_record
from harness.results.table_schema import NULLABLE, REAL, TEXT, TRUTH, Column, TableSchema
from harness.runtime.launch.series import launch_series
from harness.spec.machine_card import MachineCard
from harness.spec.spec import format_grid
from harness.strategy import BlockCounts, Candidate, Promise, Ready, ShapeBlocks, Strategy, Words

if TYPE_CHECKING:
    import pandas as pd

FINALISTS = 2
"""The number of grids of each strategy that are predicted from all representative ranks."""
TUNING_EPOCHS = 5

# Estimates of core seconds, fitted on R-MAT graphs with 1,024 ranks.
REPLAY_SECONDS, CALL_SECONDS = 0.03, 0.8e-3
"""The time of a replay, and of its calls for each member of its axes."""
NONZERO_SECONDS = 1e-7
"""The time for each nonzero to find the rows that ranks need from each other."""
NEIGHBOURS, ENTRY_SECONDS = 1000, 3e-8
"""The entries that a target vertex adds to a mini-batch, and the time to sample an entry."""
PEER_SECONDS = 6e-3
"""The time in a step to sample for another rank and to look up its requests, in addition to the entries."""


class Assumptions(NamedTuple):
    """The model and the settings that a prediction assumes. `harness run` has the same defaults."""

    kind: str
    """The kind of convolution."""
    widths: tuple[int, ...]
    """The numbers of features, of each hidden layer, and of classes."""
    precision: str
    optimizer: str
    batch: int | None
    """The vertices in a mini-batch; None for full-graph training."""
    fanouts: tuple[int, ...] | None
    """The neighbours that a sampler draws in each layer; None if it has no such setting."""
    partition: str | None
    """How vertices are assigned to parts; None if the strategy has no use for a partition."""

    def describe(self) -> str:
        """Return the assumptions as text, such as GCN 602-16-16-41, float32, adam."""
        parts = [f"{self.kind.upper()} {'-'.join(map(str, self.widths))}", self.precision, self.optimizer]
        if self.batch is not None:
            parts.append(f"batches of {self.batch}")
        if self.fanouts is not None:
            parts.append(f"fan-outs {', '.join(map(str, self.fanouts))}")
        if self.partition is not None:
            parts.append(f"partition {self.partition}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Option:
    """A strategy on a grid, and its prediction."""

    ready: Ready
    prediction: Prediction

    @property
    def strategy(self) -> Strategy:
        return self.ready.strategy

    @property
    def grid(self) -> str:
        return format_grid(self.strategy.spec.grid)

    @property
    def mini_batches(self) -> bool:
        return self.strategy.mini_batches

    @property
    def visited_vertices(self) -> int:
        """The number of training vertices that an epoch visits."""
        return max(1, self.strategy.facts.count_trained_vertices(self.strategy.spec.protocol))

    @property
    def cost(self) -> float:
        """Seconds per visited training vertex. For full-graph training, this ranks options like their epoch times."""
        return self.prediction.seconds.value / self.visited_vertices

    def as_row(self) -> dict[str, Any]:
        """Return the option as a row of a table, by column."""
        return {
            "strategy": self.strategy.name,
            "ranks": self.strategy.spec.ranks,
            "grid": self.grid,
            "mini_batches": self.mini_batches,
            **self.prediction.as_row(),
            "seconds_per_vertex": self.cost,
        }

    @property
    def assumptions(self) -> "Assumptions":
        """The model and the settings that the prediction assumes."""
        spec, facts = self.strategy.spec, self.strategy.facts
        widths = facts.features, *[spec.model.width] * (spec.model.layers - 1), facts.classes
        fanouts = getattr(self.strategy.params, "fanouts", None)
        return Assumptions(
            spec.model.kind,
            widths,
            spec.precision,
            spec.training.optimizer,
            spec.training.batch if self.mini_batches else None,
            tuple(fanouts) if self.mini_batches and fanouts else None,
            spec.dataset.partition if self.strategy.partitioned_over else None,
        )

    @property
    def command(self) -> list[str]:
        """The words of the command that trains this option."""
        return make_run_command(self.strategy.spec)

    def can_fit(self, card: MachineCard) -> bool:
        """Return True if the predicted peak memory fits the memory of a rank, or if the card does not give it."""
        return card.memory_gb is None or self.prediction.peak_bytes <= card.memory_gb * GB


@dataclass(frozen=True)
class Refusal:
    """A strategy that cannot be predicted, and the reason."""

    strategy: str
    reason: str


ADVICE = TableSchema(
    "advice",
    "one option, or one strategy without an option",
    (
        Column("strategy", TEXT, "the strategy"),
        Column("ranks", NULLABLE, "number of ranks"),
        Column("grid", TEXT, "the grid"),
        Column("mini_batches", TRUTH, "whether the strategy samples mini-batches"),
        Column("status", TEXT, "ok, oom if no grid fits the memory, refused, or not predicted"),
        Column("epoch_seconds", REAL, "predicted epoch time"),
        Column("epoch_seconds_low", REAL, "lower end of its interval"),
        Column("epoch_seconds_high", REAL, "upper end of its interval"),
        Column(
            "seconds_per_vertex", REAL, "epoch time divided by the training vertices that an epoch visits"
        ),
        Column("waiting_seconds", REAL, "part of the epoch in which the rank waits"),
        Column("elements_received", REAL, "elements that the rank receives in an epoch"),
        Column("peak_bytes", NULLABLE, "peak memory of a rank"),
        Column("limited_by", TEXT, "constant of the machine card with the largest share of the epoch"),
        Column("rank_id", NULLABLE, "number of the rank that ends last"),
        Column("message", TEXT, "why a strategy is refused"),
    ),
)
"""An advice as a data frame."""


@dataclass(frozen=True)
class Advice:
    """The options of all strategies, the fastest first, and the strategies without an option."""

    full_graph: list[Option]
    mini_batch: list[Option]
    refused: list[Refusal]
    too_large: list[Option]
    """For each strategy that does not fit the memory on any grid, the option with the lowest peak memory."""
    too_slow: dict[str, float]
    """The strategies that were not predicted, with the estimated core seconds of their first grid."""
    partly: dict[str, "PartialSearch"]
    """The strategies of which some grids were not predicted. The best of the others are among the options."""

    card: MachineCard | None = None
    """The card of the machine; None in advice that was not made by `advise`."""
    fewer_ranks: "tuple[FewerRanks, ...]" = ()
    """The fastest options on fewer ranks (`harness.prediction.fewer_ranks`), most ranks first: those of full-graph
    training before those of mini-batches."""
    partitions: "tuple[PartitionChoice, ...]" = ()
    """What another partition changes, for strategies that split the vertices into parts."""

    @property
    def card_status(self) -> CardStatus | None:
        """What is known about the errors of predictions with the card."""
        return describe_card(self.card) if self.card else None

    def to_frame(self) -> "pd.DataFrame":
        """Return a data frame with a row for each option, the fastest first, and for each strategy without an option.

        Full-graph strategies come before mini-batch strategies. `ADVICE` describes the columns.
        """
        import pandas as pd

        from harness.results.parquet import conform_frame

        options = {"ok": [*self.full_graph, *self.mini_batch], "oom": self.too_large}
        rows = [{**each.as_row(), "status": status} for status, some in options.items() for each in some]
        rows += [
            {"strategy": each.strategy, "status": "refused", "message": each.reason} for each in self.refused
        ]
        rows += [{"strategy": name, "status": "not predicted"} for name in self.too_slow]
        return conform_frame(pd.DataFrame(rows, columns=ADVICE.names), ADVICE)


@dataclass(frozen=True)
class FewerRanks:
    """The fastest option on fewer ranks, compared with the fastest on the requested number."""

    ranks: int
    mini_batches: bool
    """True for mini-batches, False for full-graph training."""
    option: Option | None
    """The fastest option that fits the memory."""
    reason: str | None
    """Why there is no option."""
    speedup: float | None = None
    """How many times as fast the requested number of ranks is; for mini-batches, by the time for a training vertex."""
    is_tied: bool = False
    """True if the error of the model or the constants could reverse the order (`compare_options`)."""

    def describe(self, more: int) -> str:
        """Return a sentence that compares these ranks with the requested `more` ranks."""
        noun = "rank" if self.ranks == 1 else "ranks"
        if self.speedup is None:
            return f"{self.ranks} {noun}: {self.reason}"
        if self.is_tied:
            return f"{more} ranks and {self.ranks} {noun} are too close to call"
        if self.speedup >= 1:
            return f"{more} ranks are {_format_ratio(self.speedup)} times as fast as {self.ranks}"
        verb = "is" if self.ranks == 1 else "are"
        return f"{self.ranks} {noun} {verb} {_format_ratio(1 / self.speedup)} times as fast as {more}"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:.0f}"


@dataclass(frozen=True)
class PartitionChoice:
    """The fastest option of a strategy with another partition of the vertices."""

    strategy: str
    assumed: str
    """The partition that the advice assumes."""
    other: str
    """The other partition."""
    option: Option | None
    """The fastest option with the other partition; None if it was not predicted."""
    reason: str | None
    """Why it was not predicted, with the command that changes this."""
    speedup: float | None = None
    """How many times as fast the strategy is with the other partition."""


class PartialSearch(NamedTuple):
    """How many grids of a strategy were predicted, and how many it has."""

    predicted: int
    of: int


class SearchResult(NamedTuple):
    """The best grids of a strategy, as indices into its candidates, with their predictions."""

    options: list[tuple[int, Prediction]]
    grids: int
    """The number of grids that were tried."""
    is_complete: bool
    """Whether no other grid can be faster."""


class Predictor(Protocol):
    """A function that predicts an epoch, optionally from given ranks only."""

    def __call__(self, ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction: ...


def advise(
    candidates: Iterable[Candidate],
    card: MachineCard,
    predicts: Predictor | None = None,
    work: float = inf,
    processes: int = 0,
    report: ReportRemaining = ignore_step,
) -> Advice:
    """Rank strategies, each on the grids that it admits.

    The amount of work decides beforehand what is predicted (`plan_grids`), so the answer does not depend on the speed
    or the load of this machine.

    Args:
        candidates: The strategies, each on all grids that it admits.
        card: The card of the machine.
        predicts: The function that predicts an option; by default, a `CachingPredictor`.
        work: The estimated core seconds of all predictions. What exceeds them is left out.
        processes: The number of worker processes. With 0, this process predicts.
        report: Called with the progress and the estimated remaining time.
    """
    predict = predicts or CachingPredictor()
    named = {candidate.name: candidate for candidate in candidates}
    if processes:
        _preload_graphs(named.values())
    grids = plan_grids(named.values(), work)
    costs = {name: estimate_seconds(named[name], most) for name, most in grids.items()}

    def search(name: str) -> SearchResult | Refusal:
        return _search_grids(named[name], card, predict, grids[name])

    done = run_pieces(costs, search, processes, report)
    chosen, refused, too_large = list[Option](), list[Refusal](), list[Option]()
    partly = dict[str, PartialSearch]()
    for name, candidate in named.items():
        if name in done.lost:
            refused.append(Refusal(name, done.lost[name]))
        found = done.results.get(name)
        if found is None:
            continue
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        if not found.is_complete:
            partly[name] = PartialSearch(found.grids, len(candidate.ready))
        options = [Option(candidate.ready[number], prediction) for number, prediction in found.options]
        fitting = [option for option in options if option.can_fit(card)]
        chosen += fitting
        if not fitting and found.is_complete:
            too_large.append(min(options, key=lambda choice: choice.prediction.peak_bytes))
    ranked = sorted(chosen, key=lambda choice: choice.cost)
    left_out = {name: estimate_seconds(each, 1) for name, each in named.items() if name not in grids}
    return Advice(
        [choice for choice in ranked if not choice.mini_batches],
        [choice for choice in ranked if choice.mini_batches],
        refused,
        too_large,
        dict(sorted(left_out.items(), key=itemgetter(1))),
        partly,
        card,
    )


def plan_grids(candidates: Iterable[Candidate], work: float = inf) -> dict[str, int]:
    """Return how many grids of each strategy are predicted within an amount of work, in estimated core seconds.

    One grid of each strategy comes first, the cheapest to predict before the others, and then more grids in the same
    order. Strategies whose first grid exceeds the work are left out.
    """
    cheapest = sorted(candidates, key=lambda each: (estimate_seconds(each, 1), each.name))
    chosen, spent = dict[str, int](), 0.0
    for candidate in cheapest:
        if spent + (cost := estimate_seconds(candidate, 1)) <= work:
            chosen[candidate.name], spent = min(1, len(candidate.ready)), spent + cost
    for candidate in cheapest:
        if candidate.name not in chosen:
            continue
        spent -= estimate_seconds(candidate, 1)
        counts = range(1, len(candidate.ready) + 1)
        affordable = [count for count in counts if spent + estimate_seconds(candidate, count) <= work]
        chosen[candidate.name] = max(affordable, default=chosen[candidate.name])
        spent += estimate_seconds(candidate, chosen[candidate.name])
    return chosen


def choose_ranks(options: Sequence[Option], card: MachineCard) -> Option:
    """Return the fastest of options on several numbers of ranks, or what ties with it on the fewest ranks."""
    fastest = min(options, key=lambda option: option.cost)
    tied = [each for each in options if each is fastest or compare_options(fastest, each, card)[0]]
    return min(tied, key=lambda option: option.strategy.spec.ranks)


def estimate_seconds(candidate: Candidate, grids: int) -> float:
    """Estimate the core seconds to predict a strategy on some of its grids.

    The number of calls in a replay is about the number of members of all axes. The term with `NONZERO_SECONDS` is the
    time to list the rows that ranks need from each other. A rank whose features are in block rows samples the
    mini-batches of all ranks.
    """
    if not candidate.ready:
        return 0.0
    (strategy, blocks), *_ = candidate.ready
    ranks, facts = strategy.spec.ranks, strategy.facts
    quick, full = count_replays(candidate, grids)
    calls = sum(sum(strategy.grid.values()) for strategy, _ in candidate.ready) / len(candidate.ready)
    seconds = (quick + full) * (REPLAY_SECONDS + CALL_SECONDS * calls)
    if blocks is None:
        return seconds
    if strategy.partitioned_over:
        seconds += NONZERO_SECONDS * facts.nonzeros * (quick + full)
    if strategy.mini_batches and strategy.partitioned_over:
        batch = min(
            strategy.spec.training.batch, facts.count_trained_vertices(strategy.spec.protocol) / ranks
        )
        entries = min(facts.nonzeros, NEIGHBOURS * batch)
        seconds += (
            min(REPLAYED_STEPS, strategy.steps)
            * ranks
            * (entries * ENTRY_SECONDS + min(grids, FINALISTS) * PEER_SECONDS)
        )
    return seconds


def count_replays(candidate: Candidate, grids: int) -> tuple[int, int]:
    """Return the numbers of replays to choose among some grids, and to predict the chosen grids in full."""
    full = sum(sorted(map(count_replayed_ranks, candidate.ready))[-min(grids, FINALISTS) :])
    return (0 if grids <= FINALISTS else grids), full


def count_replayed_ranks(ready: Ready) -> int:
    """Return the approximate number of ranks that are replayed: all of a small world, otherwise the corners."""
    ranks, corners = ready.strategy.spec.ranks, prod(min(size, 2) for size in ready.strategy.grid.values())
    return ranks if ready.blocks is not None and ranks <= MAX_REPLAYED_RANKS else corners


def _preload_graphs(candidates: Iterable[Candidate]) -> None:
    """Read every graph once, so that forked processes share it, as they share what replays import."""
    preload_torch()
    for blocks in {id(ready.blocks): ready.blocks for each in candidates for ready in each.ready}.values():
        if blocks is not None:
            blocks.adjacency(range(0), range(blocks.n))


def _search_grids(
    candidate: Candidate, card: MachineCard, predicts: Predictor, most: int
) -> SearchResult | Refusal:
    """Search the fastest of up to `most` grids of a strategy; if none fits the memory, return all predicted grids."""
    quick, reasons = list[Option](), [candidate.reason]
    few = min(most, len(candidate.ready)) <= FINALISTS  # all of them are predicted in full anyway
    is_ordered = not few or most < len(candidate.ready)
    bounds = [compute_lower_bound(each, card) if is_ordered else 0.0 for each in candidate.ready]
    numbers = {id(ready): number for number, ready in enumerate(candidate.ready)}
    in_order = sorted(zip(bounds, candidate.ready, strict=True), key=_order_grids)
    grids, is_complete = 0, most >= len(in_order)
    for seconds, ready in in_order[:most]:
        limit = _find_cutoff(quick, card)
        if seconds > limit:
            is_complete = True
            break
        grids += 1
        tried = _try_option(ready, card, predicts, inf if few else limit, all_ranks=few)
        if isinstance(tried, Option):
            quick.append(tried)
        else:
            reasons.append(tried)
    if not quick:
        return Refusal(candidate.name, reasons[-1])
    fitting = sorted((option for option in quick if option.can_fit(card)), key=lambda option: option.cost)
    chosen = fitting if few else fitting[:FINALISTS]
    if not few:
        chosen = [replace(each, prediction=predicts(each.ready, card)) for each in chosen]
    options = [(numbers[id(each.ready)], each.prediction) for each in chosen or quick]
    return SearchResult(options, grids, is_complete)


def _order_grids(bounded: tuple[float, Ready]) -> tuple[float, int]:
    """Order grids by their lower bounds; mini-batches, which have none, by the number of their steps."""
    seconds, ready = bounded
    return seconds, ready.strategy.steps


def _try_option(
    ready: Ready, card: MachineCard, predicts: Predictor, limit: float, *, all_ranks: bool
) -> Option | str:
    """Predict an option from all representative ranks or from the first rank, or return why there is none."""
    try:
        if all_ranks:
            return Option(ready, predicts(ready, card))
        prediction = predict_first_rank(ready, card, predicts, limit)
    except UserError as refusal:
        return str(refusal)
    return Option(ready, prediction) if prediction else f"It takes longer than {limit} s."


def predict_first_rank(
    ready: Ready, card: MachineCard, predicts: Predictor, limit: float = inf
) -> Prediction | None:
    """Predict an epoch from its first rank; None if it is known to take longer than `limit` seconds."""
    if isinstance(predicts, CachingPredictor):
        return predicts.predict_first_rank(ready, card, limit)
    return predicts(ready, card, ranks=[0])


def compute_lower_bound(ready: Ready, card: MachineCard) -> float:
    """Return a lower bound on the predicted seconds of the first rank: the time to send its words over the links.

    Messages between two ranks are not included. The bound is 0 for mini-batches, whose formulas would sample all of
    them.
    """
    strategy, blocks = ready
    spec, facts = strategy.spec, strategy.facts
    if strategy.mini_batches or not card.links:
        return 0.0
    counts = BlockCounts(blocks or ShapeBlocks(facts, spec.dataset.permutation))
    try:
        words = strategy.words_of_epoch(strategy.coordinates(0), counts, strategy.transient_epochs)
    except UserError:
        return 0.0
    collectives = Words(strategy.grid)
    collectives.update({key: count for key, count in words.items() if key.op not in (Op.SEND, Op.RECV)})
    return price_rings(collectives, strategy.grid, card.links, strategy.word_bytes)


def _find_cutoff(quick: Sequence[Option], card: MachineCard) -> float:
    """Return the seconds that a further grid must not exceed; infinite until enough grids fit the memory."""
    fitting = sorted(choice.prediction.seconds.value for choice in quick if choice.can_fit(card))
    return fitting[FINALISTS - 1] if len(fitting) >= FINALISTS else inf


def compare_options(one: Option, other: Option, card: MachineCard) -> tuple[bool, list[str]]:
    """Return whether two options tie, and the constants that could reverse their order by themselves."""
    distance = abs(log(one.cost / other.cost))
    error = compute_ratio_error(
        *(PredictedTime(each.strategy.name, card, each.prediction) for each in (one, other))
    )
    reversing = [name for name, change in error.by_constant.items() if abs(change) >= distance]
    return error.deviation >= distance, reversing


def list_accepted_promises(accuracy: str | None) -> set[Promise]:
    """Return the promises of strategies that a requested accuracy accepts."""
    accepted: dict[str | None, set[Promise]] = {
        None: set(Promise),
        "exact": {Promise.EXACT},
        "estimator": {Promise.EXACT, Promise.ESTIMATOR},
    }
    return accepted[accuracy]


def find_ties(options: Sequence[Option], card: MachineCard) -> Iterator[bool]:
    """Yield for each option whether it ties with the first."""
    for option in options:
        yield option is not options[0] and compare_options(options[0], option, card)[0]


class TunedOption(NamedTuple):
    """An option with its predicted and measured seconds; `measured` is None if the run did not succeed."""

    strategy: str
    grid: str
    predicted: float
    measured: float | None
    why: str


def tune_options(
    root: Path, runs: Path, count: int, advice: Advice, report: Callable[[str], None]
) -> Iterator[TunedOption]:
    """Run the first `count` options of each list for a few epochs. Runs that are already recorded are not repeated."""
    best = [*advice.full_graph[:count], *advice.mini_batch[:count]]
    specs = [option.strategy.spec for option in best]
    shorter = [
        spec.model_copy(update={"training": spec.training.model_copy(update={"epochs": TUNING_EPOCHS})})
        for spec in specs
    ]
    outcomes = launch_series(shorter, root, runs, report, fresh=False)
    for option, outcome in zip(best, outcomes, strict=True):
        summary = read_record(outcome.folder).record["summary"] if outcome.folder else {}
        yield TunedOption(
            option.strategy.name,
            option.grid,
            option.prediction.seconds.value,
            summary.get("epoch_seconds_median"),
            outcome.why or "the run did not succeed",
        )
