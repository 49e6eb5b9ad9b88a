"""Draws who holds what of A and of H, asked of the strategies themselves: the pictures of docs/strategies.

python docs/strategies/draw_layouts.py
"""

from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.comm.layout import coordinates
from harness.figures.drawing import rendered, styled
from harness.figures.palette import COLOURS, INK, PAPER
from harness.files import replace_files
from harness.parallel.row_strategy import RowStrategy
from harness.registry import load_strategy
from harness.spec.spec import Spec
from harness.strategies.plexus.plexus import Plexus
from harness.strategy import Facts

HERE = Path(__file__).parent / "pictures"
VERTICES, WIDTH = 24, 8
FACTS = Facts(VERTICES, 4 * VERTICES, WIDTH, WIDTH, False, VERTICES, VERTICES)
DRAWN = {
    "cagnet-1d": {"p": 4},
    "cagnet-1.5d": {"row": 4, "col": 2},
    "cagnet-2d": {"row": 2, "col": 2},
    "cagnet-2d-rectangular": {"row": 2, "col": 3},
    "cagnet-3d": {"row": 2, "col": 2, "fibre": 2},
    "plexus": {"x": 2, "y": 2, "z": 2},
}

Holders = dict[tuple[range, range], list[int]]


def main() -> None:
    for name, grid in DRAWN.items():
        strategy = strategy_of(name.removesuffix("-rectangular"), grid)
        with styled():
            figure = drawn(strategy) if isinstance(strategy, RowStrategy) else drawn_by_layer(strategy)
            path = HERE / f"{name}.svg"
            path.parent.mkdir(exist_ok=True)
            replace_files({path: rendered(figure, "svg", name, "layouts of the strategies")})
        print(path.relative_to(Path.cwd()))


def strategy_of(name: str, grid: dict[str, int]) -> RowStrategy | Plexus:
    ranks = prod(grid.values())
    asked: dict[str, Any] = {"strategy": name, "dataset": "any", "ranks": ranks, "grid": grid}
    spec = Spec.model_validate({**asked, "model": {"layers": 3, "hidden": WIDTH}, "machine": {"name": "any"}})
    strategy = load_strategy(name)(spec, FACTS)
    assert isinstance(strategy, RowStrategy | Plexus)
    return strategy


def drawn(strategy: RowStrategy) -> Figure:
    """A beside H; a rectangle has the numbers of the ranks that hold it."""
    A: Holders = defaultdict(list)
    H: Holders = defaultdict(list)
    for rank in range(strategy.spec.ranks):
        at = coordinates(strategy.grid, rank)
        for rows, cols in strategy.multiplied(at):
            A[rows, cols].append(rank)
        H[strategy.rows(at), strategy.columns(at, WIDTH)].append(rank)
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[VERTICES, WIDTH])
    draw(left, A, (VERTICES, VERTICES), "A")
    draw(right, H, (VERTICES, WIDTH), "H")
    return figure


def drawn_by_layer(strategy: Plexus) -> Figure:
    """A, the input H and the weights of three layers: the next ones begin again."""
    figure = Figure(figsize=(5.6, 8.2), layout="constrained")
    for layer, row in enumerate(figure.subplots(3, 3, width_ratios=[VERTICES, WIDTH, WIDTH])):
        A: Holders = defaultdict(list)
        H: Holders = defaultdict(list)
        W: Holders = defaultdict(list)
        for rank in range(strategy.spec.ranks):
            at = coordinates(strategy.grid, rank)
            share = strategy.shares(at)[layer]
            A[share.N, share.K].append(rank)
            H[share.K, share.F].append(rank)
            W[strategy.weight(strategy.weights[layer], at)].append(rank)
        R, S, T = share.roles
        draw(row[0], A, (VERTICES, VERTICES), f"layer {layer}: R = {R}, S = {S}, T = {T}\nA")
        draw(row[1], H, (VERTICES, WIDTH), "H")
        draw(row[2], W, (WIDTH, WIDTH), "W")
    return figure


def draw(axes: Axes, holders: Holders, shape: tuple[int, int], title: str) -> None:
    for (rows, cols), ranks in holders.items():
        colour = COLOURS[ranks[0] % len(COLOURS)]
        corner = (cols.start, rows.start)
        axes.add_patch(
            Rectangle(
                corner, len(cols), len(rows), facecolor=colour, alpha=0.35, edgecolor=PAPER, linewidth=1.5
            )
        )
        middle = cols.start + len(cols) / 2, rows.start + len(rows) / 2
        axes.text(*middle, ", ".join(map(str, ranks)), ha="center", va="center", fontsize=7, color=INK)
    axes.set_xlim(0, shape[1])
    axes.set_ylim(shape[0], 0)
    axes.set_aspect("equal")
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


if __name__ == "__main__":
    main()
