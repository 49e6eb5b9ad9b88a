"""How much a rank receives, by strategy: the first figure of README.md. Counted by replay; no rank is started."""

from functools import cache

from benchmarks.finding_figures import draw_received
from benchmarks.plotting import read_recorded
from benchmarks.registry import Drawing, Results, Table, benchmark
from harness.experiment.known_graph import KnownGraph, facts_of_card
from harness.experiment.requests import admit_on_all_grids
from harness.replay import replay
from harness.spec.root import find_root
from harness.spec.spec import format_grid
from harness.store.catalog import load_card
from harness.strategy import Ready

STRATEGIES = ("cagnet-1d", "cagnet-1.5d", "cagnet-2d", "cagnet-3d", "g3", "plexus", "rdm")
"""Exact full-graph strategies whose messages follow from the card of a graph."""


@benchmark
def by_strategy(dataset: str = "reddit", ranks: int = 64, layers: int = 3, hidden: int = 128) -> Results:
    """Count the elements that a rank receives in an epoch, for each exact full-graph strategy on its best grid."""
    root = find_root()
    known = KnownGraph(facts_of_card(load_card(root, dataset)), None)
    model = {"layers": layers, "hidden": hidden, "order": "aggregate_first"}
    request = {"dataset": dataset, "ranks": ranks, "model": model}
    best = dict[str, tuple[float, str]]()
    for name in STRATEGIES:
        candidate = admit_on_all_grids(root, name, request, cache(lambda _: known), name)
        best[name] = min(
            (count_received(ready), format_grid(ready.strategy.spec.grid)) for ready in candidate.ready
        )
    table = Table("strategy", "grid", "elements received:,.0f", title=f"{dataset}, {ranks} ranks")
    rows = [
        (name, grid, elements) for name, (elements, grid) in sorted(best.items(), key=lambda item: item[1])
    ]
    yield table
    yield from rows
    yield Drawing("received", draw_received(table.to_frame(rows), f"{dataset} on {ranks} ranks"))


@benchmark
def redraw() -> Results:
    """Draw the figure from the recorded table of benchmarks/results/received.md."""
    table, *_ = read_recorded("received", "received.by-strategy")
    yield Drawing("received", draw_received(table, "reddit on 64 ranks"))


def count_received(ready: Ready) -> float:
    """Return the elements that rank 0 receives in an epoch. Its blocks are as large as those of any rank."""
    entries = replay(ready.strategy, 0, ready.blocks).entries
    return sum(amounts.words_received for amounts in entries.values())
