"""How much a rank receives, by strategy: the first figure of README.md. Counted by replay; no rank is started."""

from collections.abc import Mapping
from functools import cache

from matplotlib.figure import Figure

from benchmarks.registry import Drawing, Results, Table, benchmark
from harness.experiment.known_graph import KnownGraph, facts_of_card
from harness.experiment.requests import admit_on_all_grids
from harness.figures.drawing import style_context
from harness.figures.palette import look_of
from harness.formatting import format_si
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
    request = {"dataset": dataset, "ranks": ranks, "model": {"layers": layers, "hidden": hidden}}
    best = dict[str, tuple[float, str]]()
    for name in STRATEGIES:
        candidate = admit_on_all_grids(root, name, request, cache(lambda _: known), name)
        best[name] = min(
            (count_received(ready), format_grid(ready.strategy.spec.grid)) for ready in candidate.ready
        )
    yield Table("strategy", "grid", "elements received:,.0f", title=f"{dataset}, {ranks} ranks")
    for name, (elements, grid) in sorted(best.items(), key=lambda item: item[1]):
        yield name, grid, elements
    yield Drawing("received", draw_bars(best, f"{dataset} on {ranks} ranks"))


def count_received(ready: Ready) -> float:
    """Return the elements that rank 0 receives in an epoch. Its blocks are as large as those of any rank."""
    entries = replay(ready.strategy, 0, ready.blocks).entries
    return sum(amounts.words_received for amounts in entries.values())


@style_context()
def draw_bars(best: Mapping[str, tuple[float, str]], case: str) -> Figure:
    """Draw a bar for each strategy, the shortest first, with its grid and its number."""
    rows = sorted(best.items(), key=lambda item: item[1][0])
    values = [elements for _, (elements, _) in rows]
    figure = Figure(figsize=(7.0, 2.5), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(range(len(rows)), values, color=[look_of(name).colour for name, _ in rows])
    axes.bar_label(bars, [format_si(value) for value in values], padding=3)
    axes.set_yticks(range(len(rows)), [f"{name}   {grid}" for name, (_, grid) in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * max(values))
    axes.xaxis.set_major_formatter(lambda value, _: format_si(value))
    axes.set_xlabel("elements that a rank receives in one epoch")
    axes.set_title(
        f"Same training, up to {max(values) / min(values):.0f} times the communication: {case}", loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure
