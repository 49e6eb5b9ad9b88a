"""Lays out a figure: facets in rows and columns, titles above, the legend and a note below.

matplotlib's constrained layout keeps texts apart. What it guarantees is held by tests/figures/test_geometry.py.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from harness.report.figures.marks.facet import Facet, Mark
from harness.report.figures.palette import MUTED
from harness.report.figures.wrapping import LETTER, LINE, longest_line, wrap_text

COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0
"""The widths of a figure in inches: a column of a paper, and its page."""
MAX_COLUMNS = 3
BOLD_LETTER = 1.15 * LETTER
TITLE_PAD = 5
"""The points between the axes and what is above them."""
HANDLE_WIDTH = 0.5
"""Inches of the handle of a legend entry, with the space around it."""


def compose_figure(facets: Sequence[Facet], mark: Mark, note: str = "", title: str = "") -> Figure:
    """Draw every facet by the mark, and lay the figure out."""
    sizes = [mark.measure(facet) for facet in facets]
    widest = max(width for width, _ in sizes)
    columns = max(1, min(MAX_COLUMNS, len(facets), int(PAGE_WIDTH / widest)))
    page = PAGE_WIDTH if columns > 1 or widest > COLUMN_WIDTH else COLUMN_WIDTH
    cells = [*zip(facets, sizes, strict=True)]
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(height for _, (_, height) in row) for row in rows]
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)  # all layouts measure texts by one renderer, which remembers their sizes
    grid: Any = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for axes_of_row, row in zip(grid, rows, strict=True):
        for axes, (facet, _) in zip(axes_of_row, row, strict=False):
            mark.draw(axes, facet)
        for axes in axes_of_row[len(row) :]:
            axes.remove()
    _share_limits(zip(figure.axes, facets, strict=True))
    _add_legend(figure, page, wrap_text(title, int(page / LETTER / 1.45)))
    if note:
        note = wrap_text(note, int(page / LETTER) - 4)
        figure.supxlabel(note, x=0.01, ha="left", size=7, color=MUTED)
    figure.set_size_inches(page, sum(heights) + len(rows) + 2.0)
    _add_titles(figure, facets, columns)
    _set_heights(figure, [height for _, height in sizes], columns)
    return figure


def _share_limits(drawn: Iterable[tuple[Axes, Facet]]) -> None:
    """Give the facets of the same runs the same x axis."""
    groups: dict[int, list[Axes]] = {}
    for axes, facet in drawn:
        groups.setdefault(id(facet.panel.runs), []).append(axes)
    for group in groups.values():
        ends = [axes.get_xlim() for axes in group]
        for axes in group:
            axes.set_xlim(min(low for low, _ in ends), max(high for _, high in ends))


def _lay_out(figure: Figure) -> None:
    engine = figure.get_layout_engine()
    assert engine
    engine.execute(figure)


def _add_titles(figure: Figure, facets: Sequence[Facet], columns: int) -> None:
    """Title the axes, with the headline below the title.

    Both begin above the axes, and end where the labels of the axes on their right begin.
    """
    if not any(facet.title or facet.headline for facet in facets):
        return
    _lay_out(figure)
    starts = [axes.get_position().x0 * figure.bbox.width for axes in figure.axes]
    lefts = [box.x0 for axes in figure.axes if (box := axes.get_tightbbox())]
    for number, (axes, facet) in enumerate(zip(figure.axes, facets, strict=True)):
        last = (number + 1) % columns == 0 or number + 1 == len(facets)
        end = figure.bbox.width if last else lefts[number + 1]
        width = (end - starts[number]) / figure.dpi
        headline = wrap_text(facet.headline, int(width / BOLD_LETTER) - 1)
        lines = headline.count("\n") + 1 if headline else 0
        axes.set_title(
            wrap_text(facet.title, int(width / BOLD_LETTER) - 1), pad=TITLE_PAD + 72 * LINE * lines
        )
        # The headline takes the place of a centred title, which may be as wide as it wants.
        axes.title.set(text=headline, x=0, ha="left", weight="normal")
        pad = ScaledTranslation(0, TITLE_PAD / 72, figure.dpi_scale_trans)
        axes.title.set_transform(axes.transAxes + pad)


def _set_heights(figure: Figure, heights: Sequence[float], columns: int) -> None:
    """Set the height of the figure and of all axes. The layout tells how much all texts take.

    Axes that are less high than others of their row are at its top.
    """
    rows = [max(heights[start : start + columns]) for start in range(0, len(heights), columns)]
    page, height = figure.get_size_inches()
    for _ in range(2):  # a new height can move texts a little
        _lay_out(figure)
        height += sum(rows) - height * sum(axes.get_position().height for axes in figure.axes[::columns])
        height = round(height, 4)
        figure.set_size_inches(page, height)
    for number, (axes, own) in enumerate(zip(figure.axes, heights, strict=True)):
        if own < rows[number // columns] - 0.01:
            axes.set_anchor("N")
            axes.set_box_aspect(own / (axes.get_position().width * page))


def _add_legend(figure: Figure, page: float, title: str) -> None:
    """Add a legend of all labelled artists, each label once, below the title.

    The title belongs to the legend because constrained layout would let them overlap.
    """
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        if title:
            figure.suptitle(title, x=0.01, ha="left", weight="bold", size=9)
        return
    found = dict(sorted(found.items(), key=lambda entry: _stacking_key(entry[1])))
    labels = [wrap_text(label, int(page / LETTER) - 10) for label in found]
    columns = int(page / (HANDLE_WIDTH + LETTER * longest_line(labels)))
    figure.legend(
        list(found.values()),
        labels,
        loc="outside upper left",
        ncols=max(1, min(len(found), columns)),
        title=title or None,
        alignment="left",
        title_fontproperties={"weight": "bold", "size": 9},
    )


def _stacking_key(handle: Any) -> float:
    """Return the order of an entry of a legend: bars as they are stacked, then all others from front to back."""
    return float(handle[0].get_zorder() if isinstance(handle, BarContainer) else 1e3 - handle.get_zorder())
