"""Page layout: positions axes by the measured size of every label, so that text never overlaps or leaves the page.

A figure has the width of one or two columns of a paper and the height that it needs. From top to bottom it has a
legend, sections of cells side by side, and a note. A cell is one pair of axes. Positions are computed in inches from
the extents of the labels, so text keeps its size at the printed width, whatever the number of panels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar

import pandas as pd
from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox, ScaledTranslation

from harness.figures.palette import MUTED

# Text: measuring, shortening and wrapping.

FONT_SIZE = 7.0  # points, for all text
DPI = 150


@lru_cache(maxsize=4096)
def text_width(text: str, bold: bool = False) -> float:
    """Return the width of a line of text in inches."""
    canvas: Any = _measuring_canvas()
    renderer = canvas.get_renderer()
    font = FontProperties(family=["DejaVu Sans"], size=FONT_SIZE, weight="bold" if bold else "normal")
    width, _, _ = renderer.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / DPI


@lru_cache(maxsize=1)
def _measuring_canvas() -> FigureCanvasAgg:
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=DPI))


LONGEST_WORD, MOST_WORDS = 80, 300
"""The most characters of a word and the most words of a text that are drawn. The CSV of the figure has them all."""


def elide_word(word: str) -> str:
    """Replace the middle of a long word by a digest, which keeps long words distinct."""
    if len(word) <= LONGEST_WORD:
        return word
    middle = f"…{sha256(word.encode(errors='replace')).hexdigest()[:6]}…"
    end = (LONGEST_WORD - len(middle)) // 2
    return f"{word[:end]}{middle}{word[-end:]}"


def wrap_text(text: str, width: float, bold: bool = False) -> list[str]:
    """Wrap text to lines of at most `width` inches. Words that are wider than a line are broken.

    Every text whose length a user chooses passes through this function, so it bounds how much text is drawn.
    """
    lines, words = [""], text.split(" ")
    if len(words) > MOST_WORDS:
        words = [*words[: MOST_WORDS // 2], "…", *words[-MOST_WORDS // 2 :]]
    for word in map(elide_word, words):
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, bold) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        rest = word
        while rest and text_width(rest, bold) > width:
            fitting = next(
                n for n in range(len(rest), 0, -1) if n == 1 or text_width(rest[:n], bold) <= width
            )
            breaks = [index + 1 for index, character in enumerate(rest[:fitting]) if character in "-_@/."]
            cut = max(breaks, default=fitting)
            lines[-1], rest = rest[:cut], rest[cut:]
            lines.append("")
        lines[-1] = rest
    return [line for line in lines if line] or [""]


# Cells, sections and the page.

COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0  # widths in inches
LINE_HEIGHT = 0.128  # inches
MARGIN, COLUMN_GAP, ROW_GAP = 0.05, 0.2, 0.14
LAYOUT_PASSES = 2  # positions depend on labels, and tick labels on positions


class Cell(NamedTuple):
    """One pair of axes: its title, the function that draws its content, and the height of the axes in inches."""

    title: str
    draw: Callable[[Axes], None]
    height: float


class Section(NamedTuple):
    """Cells in a number of columns, under an optional title. With `share_x`, all cells share their x axis."""

    cells: Sequence[Cell]
    columns: int
    title: str = ""
    share_x: bool = False


class Overhang(NamedTuple):
    """How far labels reach beyond their axes, in inches."""

    left: float
    right: float
    bottom: float
    top: float


PageText = tuple[float, float, str, dict[str, Any]]
"""A text on the page: its x and y as shares of the page, the text, and its properties."""


def pair_single_cells(sections: Sequence[Section]) -> list[Section]:
    """Put sections that have a single cell side by side in rows of two. Their titles become titles of the cells."""
    if len(sections) == 1:
        return list(sections)
    paired: list[Section] = []
    for section in sections:
        if len(section.cells) > 1:
            paired.append(section)
            continue
        cell = section.cells[0]._replace(title=section.title or section.cells[0].title)
        if paired and paired[-1].columns == 2 and not paired[-1].title:
            paired[-1] = paired[-1]._replace(cells=[*paired[-1].cells, cell])
        else:
            paired.append(Section([cell], 2))
    return paired


def arrange_small_multiples(
    title: str, facets: Sequence[tuple[str, Callable[..., None]]], height: float, most: int = 4
) -> Section:
    """Arrange small axes in a grid of at most `most` columns whose rows are about equally full.

    A facet is a title and a function that draws axes. The function takes `label_y`, true in the first column, and
    `label_x`, true for the last axes of each column.
    """
    columns = -(-len(facets) // -(-len(facets) // most))
    cells = [
        Cell(
            label,
            partial(draw, label_y=number % columns == 0, label_x=number + columns >= len(facets)),
            height,
        )
        for number, (label, draw) in enumerate(facets)
    ]
    return Section(cells, columns, title)


def compose_figure(
    sections: Sequence[Section], handles: Sequence[Artist] = (), note: str = "", stacked_width: float = 0.0
) -> Figure:
    """Compose a figure of a legend, sections and a note.

    With `stacked_width`, sections of a single cell stay one below the other, and the figure has this width in inches.
    """
    parts = list(sections) if stacked_width else pair_single_cells(sections)
    wide = any(section.columns > 1 for section in parts)
    width = stacked_width or (PAGE_WIDTH if wide else COLUMN_WIDTH)
    figure = Figure(figsize=(width, 10), dpi=DPI, layout="constrained")
    figure.set_layout_engine("none")  # without a placeholder, saving would take the engine of the style
    FigureCanvasAgg(figure)
    placed = []
    for section in parts:
        cells: list[Axes] = []
        for cell in section.cells:
            axes = figure.add_axes((0.2, 0.4, 0.8 / section.columns * 0.6, cell.height / 10))
            if section.share_x and cells:
                axes.sharex(cells[0])
            cell.draw(axes)
            cells.append(axes)
        placed.append(cells)
    legend = _add_legend(figure, handles, width)
    notes = wrap_text(note, width - 2 * MARGIN) if note else []
    for _ in range(LAYOUT_PASSES):
        _position_axes(figure, parts, placed, legend, notes, width)
        for axes in (axes for cells in placed for axes in cells):
            _widen_for_annotations(axes)
    for x, y, text, properties in _position_axes(figure, parts, placed, legend, notes, width):
        figure.text(x, y, text, va="top", linespacing=1.25, **properties)
    return figure


def _position_axes(
    figure: Figure,
    parts: Sequence[Section],
    placed: Sequence[Sequence[Axes]],
    legend: float,
    notes: Sequence[str],
    width: float,
) -> list[PageText]:
    """Position all axes and set the height of the figure. Return the titles and the note, with their positions."""
    boxes: list[tuple[Axes, float, float, float, float]] = []
    titles_at: list[tuple[float, float, str, str]] = []
    y = MARGIN + legend  # from the top
    for number, (section, cells) in enumerate(zip(parts, placed, strict=True)):
        y += ROW_GAP if number and section.title else 0.0
        if section.title:
            lines = wrap_text(section.title, width - 2 * MARGIN, bold=True)
            titles_at.append((MARGIN, y, "\n".join(lines), "bold"))
            y += LINE_HEIGHT * len(lines) + 0.04
        overhangs = [measure_overhang(axes) for axes in cells]
        columns = [overhangs[start :: section.columns] for start in range(section.columns)]
        left = [max((each.left for each in column), default=0.0) for column in columns]
        right = [max((each.right for each in column), default=0.0) for column in columns]
        free = width - 2 * MARGIN - sum(left) - sum(right) - COLUMN_GAP * (section.columns - 1)
        inner = max(free / section.columns, 0.3)
        weight = "normal" if section.title else "bold"
        for start in range(0, len(cells), section.columns):
            row = range(start, min(start + section.columns, len(cells)))
            begins = [
                MARGIN + sum(left[:c]) + sum(right[:c]) + (inner + COLUMN_GAP) * c
                for c in range(section.columns)
            ]
            titles = [
                wrap_text(
                    section.cells[n].title, left[n - start] + inner + right[n - start], weight == "bold"
                )
                if section.cells[n].title
                else []
                for n in row
            ]
            deep = max(map(len, titles))
            for n, lines in zip(row, titles, strict=True):
                titles_at.append(
                    (begins[n - start], y + LINE_HEIGHT * (deep - len(lines)), "\n".join(lines), weight)
                )
            y += LINE_HEIGHT * deep + (0.05 if deep else 0.0) + max(overhangs[n].top for n in row)
            for n in row:
                height = section.cells[n].height
                boxes.append((cells[n], begins[n - start] + left[n - start], y, inner, height))
            y += max(section.cells[n].height + overhangs[n].bottom for n in row) + ROW_GAP
    note_at = y - ROW_GAP + 0.08
    total = note_at + LINE_HEIGHT * len(notes) + MARGIN if notes else y - ROW_GAP + MARGIN
    figure.set_size_inches(width, total)
    for axes, x, top, wide, high in boxes:
        axes.set_position((x / width, 1 - (top + high) / total, wide / width, high / total))
    texts: list[PageText] = [
        (x / width, 1 - at / total, text, {"weight": weight}) for x, at, text, weight in titles_at if text
    ]
    if notes:
        texts.append((MARGIN / width, 1 - note_at / total, "\n".join(notes), {"color": MUTED}))
    for one in figure.legends:
        one.set_bbox_to_anchor((MARGIN / width, 1 - MARGIN / total), transform=figure.transFigure)
    return texts


def measure_overhang(axes: Axes) -> Overhang:
    """Measure how far labels reach beyond their axes. Annotations of bars lie within the axes and do not count."""
    figure: Any = axes.figure
    renderer = figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    outside = [axes.xaxis.get_tightbbox(renderer), axes.yaxis.get_tightbbox(renderer)]
    outside += [text.get_window_extent(renderer) for text in axes.texts if not isinstance(text, Annotation)]
    box = Bbox.union([inside, *(each for each in outside if each is not None)])
    edges = inside.x0 - box.x0, box.x1 - inside.x1, inside.y0 - box.y0, box.y1 - inside.y1
    return Overhang(*(edge / figure.dpi for edge in edges))


def _widen_for_annotations(axes: Axes) -> None:
    """Widen a linear x axis, and the axes that share it, until the annotation of each bar ends within the axes."""
    figure: Any = axes.figure
    furthest = 0.0
    for one in axes.get_shared_x_axes().get_siblings(axes):
        total = one.get_window_extent(figure.canvas.get_renderer()).width
        annotations = [text for text in one.texts if isinstance(text, Annotation)]
        if not annotations or one.get_xscale() != "linear":
            return
        for text in annotations:
            need = (
                text.get_window_extent(figure.canvas.get_renderer()).width
                + ANNOTATION_GAP / 72 * figure.dpi
                + 4
            )
            furthest = max(furthest, float(text.xy[0]) / max(0.1, 1 - need / total))
    if furthest > 0:
        axes.set_xlim(0, furthest)
    axes.xaxis.set_major_locator(
        MaxNLocator(max(1, min(6, int(total / figure.dpi / 0.33))), steps=[1, 2, 5, 10])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


LEGEND_LINE_WIDTH = 0.36  # inches of a legend's line and the gap after it
LEGEND_LINE_EXTRA = 0.13  # inches more where the marker covers a part of the dashes
LEGEND_GAP = 0.2


def _add_legend(figure: Figure, handles: Sequence[Artist], width: float) -> float:
    """Add one legend for all panels, in as many columns as fit. Return its height with the gap below, in inches."""
    if not handles:
        return 0.0
    longer = LEGEND_LINE_EXTRA if any(map(_has_covered_dashes, handles)) else 0.0
    line, room = LEGEND_LINE_WIDTH + longer, width - 2 * MARGIN
    for handle in handles:
        handle.set_label("\n".join(wrap_text(str(handle.get_label()), room - line)))
    sizes = [line + max(map(text_width, str(handle.get_label()).split("\n"))) for handle in handles]
    count = len(handles)
    columns = next((n for n in range(min(count, 8), 1, -1) if _measure_legend(sizes, n) <= room), 1)
    legend = figure.legend(
        handles=list(handles),
        loc="upper left",
        ncols=columns,
        borderaxespad=0,
        borderpad=0,
        handlelength=rcParams["legend.handlelength"] + 72 * longer / FONT_SIZE,
    )
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    return float(legend.get_window_extent(renderer).height) / DPI + 0.1


def _has_covered_dashes(handle: Artist) -> bool:
    return isinstance(handle, Line2D) and handle.is_dashed() and handle.get_marker() not in ("", "None")


def _measure_legend(sizes: Sequence[float], columns: int) -> float:
    """Return the width of a legend with entries of these widths, which fill one column after the other."""
    longer, rest = divmod(len(sizes), columns)
    ends, widths = 0, []
    for column in range(columns):
        begin, ends = ends, ends + longer + (column < rest)
        widths.append(max(sizes[begin:ends], default=0.0))
    return sum(widths) + LEGEND_GAP * (columns - 1)


# The logarithmic axes of a scaling figure: ticks at the tried numbers of ranks, and at powers of two of a unit.

TICK_SPACING = 0.2  # inches between ticks of a y axis


def set_tried_ticks(axes: Axes, tried: Sequence[int], label: str = "ranks", width: float = 2.6) -> None:
    """Put the ticks of the x axis at the tried numbers, with labels where they fit on an axis of `width` inches."""
    axes.set_xscale("log", base=2)
    pad = 2.0 if len(tried) == 1 else 2**0.4
    low, high = tried[0] / pad, tried[-1] * pad
    axes.set_xlim(low, high)
    labelled = _choose_labelled_ticks(tried, width / math.log2(high / low))
    axes.xaxis.set_major_locator(FixedLocator(list(tried)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:,}" if p in labelled else "" for p in tried]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def set_octave_ticks(
    axes: Axes,
    values: Sequence[float],
    label: str,
    strip: float = 0.0,
    inches: float = 1.75,
    vertical: bool = True,
) -> None:
    """Put ticks at powers of two around these values. `strip`, a share of the height, stays free at the top."""
    low, high = _octave_range(values)
    top = low + (high - low) / (1 - strip)
    most = max(2, int(inches * (1 - strip) / TICK_SPACING)) if vertical else max(2, int(inches / 0.34))
    powers = range(math.ceil(low), math.floor(high) + 1, math.ceil((high - low) / most))
    axis = axes.yaxis if vertical else axes.xaxis
    (axes.set_yscale if vertical else axes.set_xscale)("log", base=2)
    (axes.set_ylim if vertical else axes.set_xlim)(2**low, 2**top)
    axis.set_major_locator(FixedLocator([2.0**power for power in powers] if values else []))
    axis.set_major_formatter(FixedFormatter([_format_tick(2.0**power) for power in powers]))
    axis.set_minor_locator(NullLocator())
    axis.set_label_text(label)
    axes.grid(visible=True, axis="y" if vertical else "x")


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.10g}"


def _choose_labelled_ticks(tried: Sequence[int], octave: float) -> set[int]:
    """Choose numbers whose labels do not touch on an axis with `octave` inches per octave, powers of two first."""
    chosen: set[int] = set()

    def fit_together(one: int, other: int) -> bool:
        room = (text_width(f"{one:,}") + text_width(f"{other:,}")) / 2 + 0.05
        return abs(math.log2(one / other)) * octave > room

    for number in sorted(tried, key=lambda number: (number & (number - 1) > 0, number)):
        if all(fit_together(number, other) for other in chosen):
            chosen.add(number)
    return chosen


def _octave_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the binary logarithms of the limits of an axis that shows these values and at least two ticks."""
    if not values:
        return 0.0, 1.0
    low, high = math.log2(min(values)) - 0.3, math.log2(max(values)) + 0.3
    if math.floor(high) - math.ceil(low) < 1:
        low, high = math.floor(low), math.ceil(high)
    return low, high


# Rows of bars from top to bottom, in groups with a label on the left.

GROUP_GAP = 0.35  # rows
BAR_HEIGHT = 0.15  # inches of a row
LABEL_WIDTH = 1.3  # inches at which the label of a group is wrapped
MAX_COLUMN_HEIGHT = 4.0  # inches
ANNOTATION_GAP = 3.0  # points between a bar and its annotation

T = TypeVar("T")


class BarGroup(NamedTuple, Generic[T]):
    """Bars with a common label."""

    label: str
    bars: Sequence[T]


def _count_rows(group: BarGroup[T]) -> float:
    """Return the height of a group in rows: its bars, or the lines of its label."""
    return max(float(len(group.bars)), 0.86 * len(wrap_text(group.label, LABEL_WIDTH)))


def height_in_rows(groups: Sequence[BarGroup[T]]) -> float:
    """Return the height of the groups in rows."""
    return sum(_count_rows(group) + GROUP_GAP for group in groups)


def height_in_inches(groups: Sequence[BarGroup[T]]) -> float:
    """Return the height of the axes of the groups in inches."""
    return BAR_HEIGHT * (height_in_rows(groups) + 0.2)


def position_bars(groups: Sequence[BarGroup[T]]) -> Iterator[tuple[float, str, list[tuple[float, T]]]]:
    """Yield for each group the y of its first bar, its label, and each bar with its y. The topmost bar is at 0."""
    y = 0.0
    for group in groups:
        yield y, group.label, [(y + number, bar) for number, bar in enumerate(group.bars)]
        y += _count_rows(group) + GROUP_GAP


def label_bar_groups(
    axes: Axes,
    groups: Sequence[BarGroup[T]],
    ticks: Sequence[tuple[float, str]],
    show_labels: bool = True,
    heading: str = "ranks",
) -> None:
    """Set the limits of axes with bars, and label them: groups on the far left, then bars, under a heading."""
    axes.set_ylim(height_in_rows(groups) - GROUP_GAP - 0.3, -0.6)
    axes.set_yticks([at for at, _ in ticks], [label if show_labels else "" for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    if not show_labels:
        return
    figure = axes.figure
    group_label_x = max([text_width(label) for _, label in ticks] + [text_width(heading)]) + 0.15

    def write_left(x: float, y: float, text: str, **properties: Any) -> None:
        transform = axes.get_yaxis_transform() + ScaledTranslation(-x, 0, figure.dpi_scale_trans)
        axes.text(0, y, text, transform=transform, ha="right", **properties)

    if any(label for _, label in ticks):
        write_left(3.5 / 72, -0.95, heading, va="center_baseline", color=MUTED)
    for top, label, _ in position_bars(groups):
        lines = wrap_text(label, LABEL_WIDTH)
        if len(lines) == 1:
            write_left(group_label_x, top, label, va="center_baseline")
        else:
            write_left(group_label_x, top - 0.42, "\n".join(lines), va="top", linespacing=1.15)


def arrange_in_columns(title: str, groups: Sequence[BarGroup[T]], draw: Callable[..., None]) -> Section:
    """Arrange groups in one column, or in two that share their x axis if one is too tall. `draw` takes `groups`."""
    parts = [groups]
    if height_in_inches(groups) > MAX_COLUMN_HEIGHT:
        tops = [top for top, _, _ in position_bars(groups)]
        cut = min(range(1, len(groups)), key=lambda n: abs(tops[n] - height_in_rows(groups) / 2), default=0)
        parts = [groups[:cut], groups[cut:]] if cut else parts
    cells = [Cell("", partial(draw, groups=part), height_in_inches(part)) for part in parts]
    return Section(cells, len(cells), title, share_x=True)


def annotate_bar(axes: Axes, text: str, x: float, y: float) -> None:
    """Write text to the right of a point, on the baseline of the tick label."""
    axes.annotate(text, (x, y), xytext=(ANNOTATION_GAP, 0), textcoords="offset points", va="center_baseline")


def format_ranks_or_grid(run: "pd.Series[Any]") -> str:
    """Format the number of ranks, or the sizes of the axes of their grid if it has several: 2×2×1."""
    sizes = [int(run[name]) for name in run.index if str(name).startswith("grid.") and pd.notna(run[name])]
    return "×".join(map(str, sizes)) if len(sizes) > 1 else f"{int(run.ranks):,}"
