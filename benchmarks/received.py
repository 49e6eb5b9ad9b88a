"""How much a rank receives, by strategy: the first figure of README.md. Counted by replay; no rank is started."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from benchmarks.fairness import (
    Comparison,
    Competitor,
    Received,
    count_on_rank,
    count_received,
    find_most,
    open_graphs,
)
from benchmarks.finding_figures import draw_received
from benchmarks.plotting import read_recorded
from benchmarks.registry import Drawing, Results, Row, Table, benchmark
from harness.base.errors import UserError
from harness.base.progress import ignore_step
from harness.experiment.known_graph import KnownGraph, admit_on_twins, facts_of_card
from harness.experiment.requests import admit_on_all_grids
from harness.graph.cards.catalog import load_card
from harness.prediction.epoch import representative_ranks
from harness.prediction.twins import SizeLaw, fit_growth
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.strategy import Ready

STRATEGIES = (
    *("bns-gcn", "cagnet-1d", "cagnet-1.5d", "cagnet-2d", "cagnet-3d", "cagnet-sa-1d", "cagnet-sa-1.5d"),
    *("compose", "g3", "neutronstar", "plexus", "rdm"),
)
"""The exact full-graph strategies. DistGNN's copies of vertices are not known from a card."""
TRAINING = 100
"""The epochs of a training, over which what arrives before training is spread."""
COMPARISON = Comparison(
    f"elements that a rank receives in {TRAINING} epochs and before them",
    tuple(map(Competitor, STRATEGIES)),
    {"layers": 3, "hidden": 128},
)


@benchmark
def by_strategy(
    dataset: str = "reddit", ranks: int = 64, scales: tuple[str, ...] = ("1/10", "1/7", "1/5")
) -> Results:
    """Count the elements that a rank receives, for each exact full-graph strategy with its best settings.

    Blocks are counted from the card of the graph. Parts by METIS are counted on three twins, whose communities are
    fitted to published cuts of the graph, and extrapolated.

    Args:
        scales: of the twins; none counts the parts of the graph itself
    """
    yield COMPARISON.describe()
    best = {each.strategy: min(list_counts(each, dataset, ranks, scales)) for each in COMPARISON.competitors}
    table = Table(
        *("strategy", "grid", "partition", "elements received:,.0f", "in an epoch:,.0f"),
        "before training:,.0f",
        title=f"{dataset}, {ranks} ranks",
    )
    rows: list[Row] = [
        (name, found.grid, found.partition, found.training, found.epoch, found.setup)
        for name, found in sorted(best.items(), key=lambda item: item[1])
    ]
    yield table
    yield from rows
    yield Drawing("received", draw_received(table.to_frame(rows), f"{dataset} on {ranks} ranks"))


@benchmark
def redraw() -> Results:
    """Draw the figure from the recorded table of benchmarks/results/received.md."""
    table, *_ = read_recorded("received", "received.by-strategy")
    yield Drawing("received", draw_received(table, "reddit on 64 ranks"))


class Count(NamedTuple):
    """What a rank receives with one setting of a strategy, in elements."""

    training: float
    """In an epoch times the epochs of a training, and before."""
    epoch: float
    setup: float
    grid: str
    partition: str


def list_counts(competitor: Competitor, dataset: str, ranks: int, scales: Sequence[str]) -> Iterator[Count]:
    """Yield what a rank receives with each of the settings of a competitor that can run."""
    look_up = look_up_card if scales else open_graphs()
    for request in COMPARISON.list_requests(competitor, dataset, ranks):
        candidate = admit_on_all_grids(
            find_root(), competitor.strategy, request, look_up, competitor.strategy
        )
        for ready in candidate.ready:
            if ready.strategy.spec.dataset.parts == 1:  # a whole graph, as with blocks
                continue
            received = count_on_twins(ready, scales) if scales else count_received(ready)
            if received is None:
                continue
            spec, total = ready.strategy.spec, TRAINING * received.epoch + received.setup
            yield Count(total, *received, format_grid(spec.grid), spec.dataset.partition)


@cache
def look_up_card(choice: DatasetChoice) -> KnownGraph:
    """Return what the card of a graph says of it, in any order of its vertices."""
    return KnownGraph(facts_of_card(load_card(find_root(), choice.name)), None)


def count_on_twins(ready: Ready, scales: Sequence[str]) -> Received | None:
    """Count blocks by the card of a graph, and extrapolate parts from three twins of it.

    Returns None for blocks whose rows depend on the edges, which the card does not have.
    """
    if not ready.strategy.spec.dataset.partitioned:
        try:
            return count_received(ready)
        except UserError:
            return None
    twins = admit_on_twins(find_root(), ready.strategy, scales, ignore_step)
    grow = fit_growth([each.strategy.facts.vertices for each in (*twins, ready)], is_slowing=True)
    counts = []
    for rank in representative_ranks(twins[-1]):
        on_twins = [count_on_rank(twin, rank) for twin in twins]
        counts.append(Received(*(_extrapolate(part, grow) for part in zip(*on_twins, strict=True))))
    return find_most(counts)


def _extrapolate(twins: Sequence[Mapping[str, float]], grow: SizeLaw) -> float:
    """Extrapolate each kind of message separately: sums of gradients do not grow with the graph, and rows do."""
    kinds = {kind for twin in twins for kind in twin}
    return sum(grow([twin.get(kind, 0.0) for twin in twins]) for kind in kinds)
