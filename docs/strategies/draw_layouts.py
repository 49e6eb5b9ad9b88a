"""Draw the pictures of docs/strategies: the blocks of A and H on each rank, computed by the strategies.

    python docs/strategies/draw_layouts.py

A test compares the pictures with the output of this script.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.base.files import replace_files
from harness.comm.layout import coordinates
from harness.graph.model import Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.memory_store import MemoryStore
from harness.kernels import row_indices
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.report.figures.drawing import render_figure, style_context
from harness.report.figures.palette import COLOURS, INK, PAPER
from harness.spec.spec import Spec
from harness.strategies.plexus.plexus import Plexus
from harness.strategies.scalegnn.scalegnn import ScaleGNN
from harness.strategy import BlockCounts, Facts
from harness.strategy.parallel.row_strategy import RowStrategy

HERE = Path(__file__).parent / "pictures"
VERTICES, WIDTH = 24, 8
FACTS = Facts(VERTICES, 4 * VERTICES, WIDTH, WIDTH, False, VERTICES, VERTICES)

Holders = dict[tuple[range, range], list[int]]
Answer = Callable[[], Figure]


def main() -> None:
    for path, data in made().items():
        path.parent.mkdir(exist_ok=True)
        replace_files({path: data})
        print(path.relative_to(Path.cwd()))


def made() -> dict[Path, bytes]:
    """Return every picture, by its file."""
    files = {}
    for name, draws in PICTURES.items():
        with style_context():
            files[HERE / f"{name}.svg"] = render_figure(draws(), "svg", name, "layouts of the strategies")
    return files


def strategy_of(name: str, grid: dict[str, int], params: dict[str, Any] | None = None) -> Any:
    ranks, kind = prod(grid.values()), load_strategy(name)
    asked = {
        "strategy": {"name": name, "params": params or {}},
        "dataset": "any",
        "ranks": ranks,
        "grid": grid,
    }
    training = {"batch": 3 if kind.mini_batches else 0}
    model = {"layers": 3, "hidden": WIDTH}
    return kind(
        Spec.model_validate({**asked, "model": model, "training": training, "machine": {"name": "any"}}),
        FACTS,
    )


# The blocks of A and of H; a rectangle has the numbers of the ranks that hold it.


def block_figure(name: str, grid: dict[str, int]) -> Figure:
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    draw_blocks(figure.subplots(1, 2, width_ratios=[VERTICES, WIDTH]), strategy_of(name, grid))
    return figure


def table_of_blocks(dense: str, *rows: tuple[str, str, dict[str, int], dict[str, Any]]) -> Figure:
    """Draw a row with A and the dense matrix for each strategy, with a title."""
    figure = Figure(figsize=(4.6, 2.75 * len(rows)), layout="constrained")
    for axes, (title, name, grid, params) in zip(
        figure.subplots(len(rows), 2, width_ratios=[VERTICES, WIDTH]), rows, strict=True
    ):
        draw_blocks(axes, strategy_of(name, grid, params), title, dense)
    return figure


def draw_blocks(axes: Any, strategy: RowStrategy, title: str = "A", dense: str = "H") -> None:
    A: Holders = defaultdict(list)
    H: Holders = defaultdict(list)
    for rank in range(strategy.spec.ranks):
        at = coordinates(strategy.grid, rank)
        for rows, cols in strategy.matrix_pieces(at):
            A[rows, cols].append(rank)
        H[strategy.input_piece(at)].append(rank)
    draw(axes[0], A, (VERTICES, VERTICES), title)
    draw(axes[1], H, (VERTICES, WIDTH), dense)


def layer_figure(name: str, grid: dict[str, int]) -> Figure:
    """Draw A, the input H and the weights of three layers, after which the layouts repeat."""
    strategy: Plexus | ScaleGNN = strategy_of(name, grid)
    figure = Figure(figsize=(5.6, 8.2), layout="constrained")
    for layer, row in enumerate(figure.subplots(3, 3, width_ratios=[VERTICES, WIDTH, WIDTH])):
        A: Holders = defaultdict(list)
        H: Holders = defaultdict(list)
        W: Holders = defaultdict(list)
        for rank in range(strategy.spec.ranks):
            at = coordinates(strategy.grid, rank)
            share = strategy.layout.shares(at)[layer]
            A[share.N, share.K].append(rank)
            H[share.K, share.F].append(rank)
            W[strategy.weight_piece(strategy.weights[layer], at)].append(rank)
        R, S, T = share.roles
        draw(row[0], A, (VERTICES, VERTICES), f"layer {layer}: R = {R}, S = {S}, T = {T}\nA")
        draw(row[1], H, (VERTICES, WIDTH), "H")
        draw(row[2], W, (WIDTH, WIDTH), "W")
    return figure


def draw(axes: Axes, holders: Holders, shape: tuple[int, int], title: str) -> None:
    for (rows, cols), ranks in holders.items():
        shade(axes, rows, cols, COLOURS[ranks[0] % len(COLOURS)])
        middle = cols.start + len(cols) / 2, rows.start + len(rows) / 2
        text = ", ".join(map(str, ranks)) if len(ranks) < MANY else f"all {len(ranks)} ranks"
        axes.text(*middle, text, ha="center", va="center", fontsize=7, color=INK)
    bare(axes, shape, title)


MANY = 5
"""From this number of ranks on, a rectangle of all of them says so in words."""


def shade(axes: Axes, rows: range, cols: range, colour: str) -> None:
    corner = (cols.start, rows.start)
    axes.add_patch(
        Rectangle(corner, len(cols), len(rows), facecolor=colour, alpha=0.35, edgecolor=PAPER, linewidth=1.5)
    )


def bare(axes: Axes, shape: tuple[int, int], title: str) -> None:
    axes.set_xlim(0, shape[1])
    axes.set_ylim(shape[0], 0)
    axes.set_aspect("equal")
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


# The rows at the boundary: which rows of H a rank needs of the others follows from the edges.


def boundary_figure(name: str, ranks: int) -> Figure:
    """Draw the nonzeros of a ring of four communities, and the rows that each rank sends and receives."""
    strategy: RowStrategy = strategy_of(name, {"p": ranks})
    store = MemoryStore(communities(ranks))
    A, counts = store.adjacency(range(store.n), range(store.n)), BlockCounts(store)
    row, col = row_indices(A).numpy(), A.col.numpy()
    figure = Figure(figsize=(5.6, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[VERTICES, VERTICES])
    for rank, rows in enumerate(strategy.blocks()):
        colour, halo = COLOURS[rank % len(COLOURS)], strategy.boundary({AxisName.P: rank}, counts)
        shade(left, rows, range(VERTICES), colour)
        shade(right, rows, range(VERTICES), colour)
        mine = (row >= rows.start) & (row < rows.stop)
        own = mine & (col >= rows.start) & (col < rows.stop)
        left.plot(col[own] + 0.5, row[own] + 0.5, ".", color=INK, markersize=3)
        left.plot(
            col[mine & ~own] + 0.5, row[mine & ~own] + 0.5, "o", color=INK, markersize=4, fillstyle="none"
        )
        arrives, leaves = halo.incoming_rows(), halo.outgoing_rows()
        lines = [f"rank {rank} has rows {rows.start} to {rows.stop - 1}"]
        lines += [f"receives {count_of(arrives)}", f"sends {count_of(leaves)}"]
        right.text(
            0.7, rows.start + len(rows) / 2, "\n".join(lines), ha="left", va="center", fontsize=7, color=INK
        )
    bare(left, (VERTICES, VERTICES), "A: ● own columns, ○ columns of others")
    bare(right, (VERTICES, VERTICES), "rows of H on the way, in every layer")
    return figure


def count_of(rows: dict[int, int]) -> str:
    """Return the numbers of rows, each with the rank that sends or receives them."""
    some = {peer: number for peer, number in rows.items() if number}
    return ", ".join(f"{number} (rank {peer})" for peer, number in some.items()) or "none"


def communities(parts: int) -> Graph:
    """Return a graph of equal paths with some chords, joined into a ring by single edges, with one edge across."""
    size = VERTICES // parts
    edges = [(i, i + 1) for part in range(parts) for i in range(part * size, (part + 1) * size - 1)]
    edges += [(part * size, part * size + 3) for part in range(parts)]
    ends = [part * size + size - 1 for part in range(parts)]
    edges += [*pairwise([end for end in ends for end in (end, (end + 1) % VERTICES)])][::2]
    edges += [(1, VERTICES // 2 + 2), (2, VERTICES // 2 + 2)]
    source, target = np.array(edges).T
    A, counts = normalise_adjacency(RawGraph(VERTICES, source, target), False)
    X, y = torch.zeros(VERTICES, WIDTH), torch.zeros(VERTICES, dtype=torch.int64)
    return Graph(A, X, y, torch.ones(VERTICES, dtype=torch.uint8), WIDTH, False, counts)


PICTURES: dict[str, Answer] = {
    "cagnet-1d": lambda: block_figure("cagnet-1d", {"p": 4}),
    "cagnet-1.5d": lambda: block_figure("cagnet-1.5d", {"row": 4, "col": 2}),
    "cagnet-2d": lambda: block_figure("cagnet-2d", {"row": 2, "col": 2}),
    "cagnet-2d-rectangular": lambda: block_figure("cagnet-2d", {"row": 2, "col": 3}),
    "cagnet-3d": lambda: block_figure("cagnet-3d", {"row": 2, "col": 2, "fibre": 2}),
    "plexus": lambda: layer_figure("plexus", {"x": 2, "y": 2, "z": 2}),
    "scalegnn": lambda: layer_figure("scalegnn", {"d": 2, "x": 2, "y": 1, "z": 2}),
    "boundary": lambda: boundary_figure("bns-gcn", 4),
    "bulk-sampling": lambda: table_of_blocks(
        "X",
        ("graph=replicated: A", "bulk-sage", {"row": 2, "col": 2}, {}),
        ("graph=partitioned: A", "bulk-sage", {"row": 2, "col": 2}, {"graph": "partitioned"}),
    ),
    "baselines": lambda: table_of_blocks(
        "X, without caches",
        ("graphsage, graphsaint-node: A", "graphsage", {"d": 4}, {}),
        ("quiver, salient: A", "quiver", {"p": 4}, {}),
        ("distdgl, massivegnn: A", "distdgl", {"p": 4}, {}),
        ("cluster-gcn: A", "cluster-gcn", {"p": 4}, {}),
    ),
}


if __name__ == "__main__":
    main()
