"""Advice: all strategies and grids for a graph on a machine, ranked by predicted time.

1. The grids of a strategy are predicted by their first rank alone, those with the fewest seconds for words first. A
   grid whose words alone take longer than the epochs of the fastest grids is left out.
2. The fastest grids of each strategy that fit into the memory are predicted in full, with their intervals.
3. Full-graph strategies are ranked by the time of an epoch, strategies of mini-batches by the time for each training
   vertex that is visited: their epochs differ in what a vertex learns from.

Two predictions share the constants of a card. Their order is decided only if neither what the model leaves out nor the
constants, within their intervals, can turn it; otherwise the two tie.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import inf, log, prod, sqrt
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Protocol

from harness.errors import UserError
from harness.launch.series import launch_series
from harness.ledger import Op
from harness.predict.budget import Budget, Keep, ReportLeft, work_through
from harness.predict.prediction import ALL_RANKS, RESIDUAL, STEPS, Prediction, predict
from harness.predict.pricing import constants, ring_seconds
from harness.progress import ignore_step
from harness.results.record import read_record
from harness.spec.machine_card import MachineCard
from harness.spec.spec import format_grid
from harness.strategy import BlockCounts, Candidate, Promise, Ready, ShapeBlocks, Strategy, Words

FULL = 2
"""The grids of each strategy that are predicted in full."""
TUNING_EPOCHS = 5

# Estimates of the seconds of a core, fitted on R-MAT graphs with 1,024 ranks. Predictions that are done correct them.
REPLAY_SECONDS, CALL_SECONDS = 0.05, 1.2e-3
"""Of a replay, and of its calls for each member of its axes."""
NONZERO_SECONDS = 1e-7
"""Of finding the rows that ranks need of each other."""
NEIGHBOURS, ENTRY_SECONDS = 1000, 3e-8
"""The entries in the mini-batch of a target, and the seconds of drawing an entry."""
PEER_SECONDS = 6e-3
"""Of drawing for another rank and of looking up its requests, beyond the entries, in a step."""
GB = 1 << 30


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
    def visited(self) -> int:
        """The training vertices that an epoch visits."""
        return max(1, self.strategy.facts.trained_on(self.strategy.spec.protocol))

    @property
    def cost(self) -> float:
        """Seconds of an epoch for each training vertex: epochs of one graph compare as their times do."""
        return self.prediction.seconds.value / self.visited

    def fits(self, card: MachineCard) -> bool:
        """False if the predicted peak is above the memory of a rank."""
        return card.memory_gb is None or self.prediction.peak_bytes <= card.memory_gb * GB


@dataclass(frozen=True)
class Refusal:
    """A strategy without a choice, and the reason."""

    strategy: str
    reason: str


@dataclass(frozen=True)
class Advice:
    """The choices, the fastest first; and the strategies that have none."""

    full_graph: list[Option]
    mini_batch: list[Option]
    refused: list[Refusal]
    too_large: list[Option]
    """The choices with the lowest peak of memory, of strategies all of whose grids are too large."""
    too_slow: dict[str, float]
    """The strategies that were not predicted in time, with the seconds that each is estimated to take."""
    partly: dict[str, "Partly"]
    """Those among them of which some grids were predicted. Their best grids so far are among the choices."""


class Partly(NamedTuple):
    """The grids of a strategy that were predicted in time."""

    predicted: int
    of: int


class Found(NamedTuple):
    """The choices of a strategy: numbers of its grids, and their predictions."""

    options: list[tuple[int, Prediction]]
    grids: int
    """The grids that were predicted, by one rank at least."""


class Predictor(Protocol):
    """A way to predict an epoch, by some ranks alone if asked."""

    def __call__(self, ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction: ...


def advise(
    candidates: Iterable[Candidate],
    card: MachineCard,
    predicts: Predictor = predict,
    seconds: float = inf,
    processes: int = 0,
    report: ReportLeft = ignore_step,
) -> Advice:
    """Ranks strategies, each on the grids that admit it.

    Predictions that do not fit into these seconds are left out; of a strategy whose time ends before all of its grids
    are predicted, the best so far are among the choices. Full-graph training comes before mini-batches, and in
    both the strategies that are estimated to be predicted the fastest come first. Processes, if there are any, predict
    at the same time, and are ended with the budget; without any, this process finishes what it has begun.
    """
    began = monotonic()
    named = {candidate.name: candidate for candidate in candidates}
    if processes:
        _read_once(named.values())
    costs = {name: estimated_seconds(candidate) for name, candidate in named.items()}
    order = sorted(costs, key=lambda name: (_is_mini_batch(named[name]), costs[name]))
    divisible = [name for name in order if processes and len(named[name].ready) > FULL]
    budget = Budget({name: costs[name] for name in order}, seconds, processes or 1, divisible)

    def work(name: str, keep: Keep) -> Found | Refusal:
        return _options_of(named[name], card, predicts, keep)

    done = work_through(budget, work, processes, report, lambda: monotonic() - began)
    chosen, refused, too_large = list[Option](), list[Refusal](), list[Option]()
    for name, candidate in named.items():
        if name in done.lost:
            refused.append(Refusal(name, done.lost[name]))
        found = done.results.get(name) or done.partial.get(name)
        if found is None:
            continue
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        options = [Option(candidate.ready[number], prediction) for number, prediction in found.options]
        fitting = [option for option in options if option.fits(card)]
        chosen += fitting
        if not fitting and name in done.results:
            too_large.append(min(options, key=lambda choice: choice.prediction.peak_bytes))
    ranked = sorted(chosen, key=lambda choice: choice.cost)
    return Advice(
        [choice for choice in ranked if not choice.mini_batches],
        [choice for choice in ranked if choice.mini_batches],
        refused,
        too_large,
        dict(sorted(done.left_out.items(), key=itemgetter(1))),
        {name: Partly(found.grids, len(named[name].ready)) for name, found in done.partial.items()},
    )


def estimated_seconds(candidate: Candidate) -> float:
    """The seconds of a core that the predictions of a strategy are estimated to take.

    A replay of a rank issues about as many calls as its axes have members. The second term is for lists of the rows
    that ranks need of each other. A rank whose features are in block rows follows the mini-batches of all ranks, in
    which the neighbours of some vertices are drawn hop after hop.
    """
    if not candidate.ready:
        return 0.0
    (strategy, blocks), *_ = candidate.ready
    ranks, facts = strategy.spec.ranks, strategy.facts
    quick, full = replays_of(candidate)
    calls = sum(sum(strategy.grid.values()) for strategy, _ in candidate.ready) / len(candidate.ready)
    seconds = (quick + full) * (REPLAY_SECONDS + CALL_SECONDS * calls)
    if blocks is None:
        return seconds
    if strategy.partitioned_over:
        seconds += NONZERO_SECONDS * facts.nonzeros * (quick + full)
    if strategy.mini_batches and strategy.partitioned_over:
        batch = min(strategy.spec.training.batch, facts.trained_on(strategy.spec.protocol) / ranks)
        entries = min(facts.nonzeros, NEIGHBOURS * batch)
        grids = min(len(candidate.ready), FULL)
        seconds += min(STEPS, strategy.steps) * ranks * (entries * ENTRY_SECONDS + grids * PEER_SECONDS)
    return seconds


def replays_of(candidate: Candidate) -> tuple[int, int]:
    """The ranks that are replayed in order to choose among grids, one of each; and to predict the choices in full."""
    grids = len(candidate.ready)
    full = sum(sorted(map(replayed_ranks_of, candidate.ready))[-FULL:])
    return (0 if grids <= FULL else grids), full


def replayed_ranks_of(ready: Ready) -> int:
    """About how many ranks are replayed of a world: all ranks of a small one, else the corners of the grid."""
    ranks, corners = ready.strategy.spec.ranks, prod(min(size, 2) for size in ready.strategy.grid.values())
    return ranks if ready.blocks is not None and ranks <= ALL_RANKS else corners


def _is_mini_batch(candidate: Candidate) -> bool:
    return any(ready.strategy.mini_batches for ready in candidate.ready)


def _read_once(candidates: Iterable[Candidate]) -> None:
    """Reads every graph, so that processes which are forked from this one share it.

    So they share the import of a second that torch makes for its first operators on shapes.
    """
    import_module("torch._dynamo")
    for blocks in {id(ready.blocks): ready.blocks for each in candidates for ready in each.ready}.values():
        if blocks is not None:
            blocks.adjacency(range(0), range(blocks.n))


def _options_of(
    candidate: Candidate, card: MachineCard, predicts: Predictor, keep: Keep = ignore_step
) -> Found | Refusal:
    """The fastest grids of a strategy in full; of one whose grids are all too large, the grids that were tried.

    Grids are numbered as the candidate lists them. What is found so far is kept after each of them.
    """
    quick, reasons = list[Option](), [candidate.reason]
    few = len(candidate.ready) <= FULL  # all of these are predicted in full anyway
    least = [0.0 if few else least_seconds(ready, card) for ready in candidate.ready]
    numbers = {id(ready): number for number, ready in enumerate(candidate.ready)}
    all_replays, replays = sum(replays_of(candidate)), 0

    def found(choices: Iterable[Option]) -> Found:
        return Found([(numbers[id(each.ready)], each.prediction) for each in choices], len(quick))

    def fastest() -> list[Option]:
        return sorted((choice for choice in quick if choice.fits(card)), key=lambda choice: choice.cost)

    for seconds, ready in sorted(zip(least, candidate.ready, strict=True), key=itemgetter(0)):
        if seconds > _to_beat(quick, card):
            break
        try:
            quick.append(Option(ready, predicts(ready, card, ranks=None if few else [0])))
        except UserError as refusal:
            reasons.append(str(refusal))
        replays += replayed_ranks_of(ready) if few else 1
        if quick:
            keep(replays / all_replays, found(fastest()[:FULL]))
    if not quick:
        return Refusal(candidate.name, reasons[-1])
    chosen = fastest()
    if few or not chosen:
        return found(chosen or quick)
    chosen = chosen[:FULL]
    total = replays + sum(replayed_ranks_of(each.ready) for each in chosen)
    for place, each in enumerate(chosen):
        chosen[place] = replace(each, prediction=predicts(each.ready, card))
        replays += replayed_ranks_of(each.ready)
        keep(replays / total, found(chosen))
    return found(chosen)


def least_seconds(ready: Ready, card: MachineCard) -> float:
    """The seconds in which the links carry the words of the first rank: no prediction for that rank is below.

    0 for mini-batches, of which the formulas of words would draw all. Messages between two ranks do not count.
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
    in_rings = Words(strategy.grid)
    in_rings.update({key: count for key, count in words.items() if key.op not in (Op.SEND, Op.RECV)})
    return ring_seconds(in_rings, strategy.grid, card.links, strategy.word_bytes)


def _to_beat(quick: Sequence[Option], card: MachineCard) -> float:
    """The seconds that a further grid must stay below; infinite while grids are missing that fit into the memory."""
    fitting = sorted(choice.prediction.seconds.value for choice in quick if choice.fits(card))
    return fitting[FULL - 1] if len(fitting) >= FULL else inf


def turned_by(one: Option, other: Option, card: MachineCard) -> tuple[bool, list[str]]:
    """Whether two choices tie, and the constants that alone could turn their order."""
    apart = abs(log(one.cost / other.cost))
    together, turning = log(RESIDUAL) ** 2, []
    for name, (within, _) in constants(card).items():
        first, second = (log(1 + each.prediction.shares[name] * (within - 1)) for each in (one, other))
        together += (first - second) ** 2
        if abs(first - second) >= apart:
            turning.append(name)
    return sqrt(together) >= apart, turning


def promises(accuracy: str | None) -> set[Promise]:
    """The promises that a wish for accuracy accepts."""
    accepted: dict[str | None, set[Promise]] = {
        None: set(Promise),
        "exact": {Promise.EXACT},
        "estimator": {Promise.EXACT, Promise.ESTIMATOR},
    }
    return accepted[accuracy]


def ties(choices: Sequence[Option], card: MachineCard) -> Iterator[bool]:
    """For each choice, whether it ties with the first."""
    for choice in choices:
        yield choice is not choices[0] and turned_by(choices[0], choice, card)[0]


class Tuned(NamedTuple):
    """An option that was predicted and run; no seconds if the run did not succeed."""

    strategy: str
    grid: str
    predicted: float
    measured: float | None
    why: str


def tuned(root: Path, runs: Path, count: int, advice: Advice, say: Callable[[str], None]) -> Iterator[Tuned]:
    """Runs the first options of each list for a few epochs; a run that has a record is not repeated."""
    best = [*advice.full_graph[:count], *advice.mini_batch[:count]]
    specs = [option.strategy.spec for option in best]
    shorter = [
        spec.model_copy(update={"training": spec.training.model_copy(update={"epochs": TUNING_EPOCHS})})
        for spec in specs
    ]
    outcomes = launch_series(shorter, root, runs, say, fresh=False)
    for option, outcome in zip(best, outcomes, strict=True):
        summary = read_record(outcome.folder).record["summary"] if outcome.folder else {}
        told = option.strategy.name, option.grid, option.prediction.seconds.value
        yield Tuned(*told, summary.get("epoch_seconds_median"), outcome.why or "the run did not succeed")
