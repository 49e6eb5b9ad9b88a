"""Panels on a page, laid out by the measured size of every label: no text overlaps another or leaves the page.

A figure is as wide as a column or as the two columns of a paper, and as tall as it needs: the legend, then sections of
cells side by side, then a note. A cell is one pair of axes. Positions are computed in inches from the extents of the
labels, so text keeps its size at the printed width, whatever the number of panels.
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

# The size of text, in inches.

SIZE = 7.0  # points: the size of all text, and the smallest
DPI = 150


@lru_cache(maxsize=4096)
def width_of(text: str, bold: bool = False) -> float:
    """The width of a line of text in inches."""
    canvas: Any = _measuring()
    renderer = canvas.get_renderer()
    font = FontProperties(family=["DejaVu Sans"], size=SIZE, weight="bold" if bold else "normal")
    width, _, _ = renderer.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / DPI


@lru_cache(maxsize=1)
def _measuring() -> FigureCanvasAgg:
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=DPI))


LONGEST_WORD, MOST_WORDS = 80, 300
"""The most characters of a word, and the most words of a text, that are drawn. The CSV next to a figure has all."""


def elided(word: str) -> str:
    """The word with its middle left out if it is long. A digest in its place keeps long words distinct."""
    if len(word) <= LONGEST_WORD:
        return word
    middle = f"…{sha256(word.encode(errors='replace')).hexdigest()[:6]}…"
    end = (LONGEST_WORD - len(middle)) // 2
    return f"{word[:end]}{middle}{word[-end:]}"


def wrapped(text: str, width: float, bold: bool = False) -> list[str]:
    """The lines of a text that is broken between words, or within a word that is wider than a line.

    Everything whose length a user chooses is drawn through this function, so it bounds what is drawn.
    """
    lines, words = [""], text.split(" ")
    if len(words) > MOST_WORDS:
        words = [*words[: MOST_WORDS // 2], "…", *words[-MOST_WORDS // 2 :]]
    for word in map(elided, words):
        longer = f"{lines[-1]} {word}".strip()
        if width_of(longer, bold) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        rest = word
        while rest and width_of(rest, bold) > width:
            fitting = next(n for n in range(len(rest), 0, -1) if n == 1 or width_of(rest[:n], bold) <= width)
            signs = [place + 1 for place, sign in enumerate(rest[:fitting]) if sign in "-_@/."]
            cut = max(signs, default=fitting)
            lines[-1], rest = rest[:cut], rest[cut:]
            lines.append("")
        lines[-1] = rest
    return [line for line in lines if line] or [""]


# Cells, sections and the page.

COLUMN, PAGE = 3.4, 7.0  # widths in inches
LINE = 0.128  # inches of a line of text
EDGE, BETWEEN_COLUMNS, BETWEEN_ROWS = 0.05, 0.2, 0.14
PASSES = 2  # labels decide positions, and positions decide ticks and so labels


class Cell(NamedTuple):
    """One pair of axes: its title, the function that draws it, and the height of the axes in inches."""

    title: str
    draw: Callable[[Axes], None]
    height: float


class Section(NamedTuple):
    """Some cells in so many columns, under a title of their own or none. `alike`: their axes have one scale across."""

    cells: Sequence[Cell]
    columns: int
    title: str = ""
    alike: bool = False


class Overhang(NamedTuple):
    """How far labels reach beyond axes, in inches."""

    left: float
    right: float
    bottom: float
    top: float


Writing = tuple[float, float, str, dict[str, Any]]
"""A text on the page: its place, the text, its look."""


def joined(sections: Sequence[Section]) -> list[Section]:
    """Sections of a single cell share rows of two; their titles become those of the cells."""
    if len(sections) == 1:
        return list(sections)
    together: list[Section] = []
    for section in sections:
        if len(section.cells) > 1:
            together.append(section)
            continue
        cell = section.cells[0]._replace(title=section.title or section.cells[0].title)
        if together and together[-1].columns == 2 and not together[-1].title:
            together[-1] = together[-1]._replace(cells=[*together[-1].cells, cell])
        else:
            together.append(Section([cell], 2))
    return together


def across(cells: int, most: int = 4) -> int:
    """The columns of small axes, so that rows are about equally full."""
    return -(-cells // -(-cells // most))


def compose(
    sections: Sequence[Section], handles: Sequence[Artist] = (), note: str = "", stacked: float = 0.0
) -> Figure:
    """A figure of some sections under one legend, with a note beneath. `stacked`: its width, with a cell a row."""
    parts = list(sections) if stacked else joined(sections)
    wide = any(section.columns > 1 for section in parts)
    width = stacked or (PAGE if wide else COLUMN)
    figure = Figure(figsize=(width, 10), dpi=DPI, layout="constrained")
    figure.set_layout_engine("none")  # one that does nothing: without one, saving takes that of the style
    FigureCanvasAgg(figure)
    placed = []
    for section in parts:
        cells: list[Axes] = []
        for cell in section.cells:
            axes = figure.add_axes((0.2, 0.4, 0.8 / section.columns * 0.6, cell.height / 10))
            if section.alike and cells:
                axes.sharex(cells[0])
            cell.draw(axes)
            cells.append(axes)
        placed.append(cells)
    legend = _legend(figure, handles, width)
    notes = wrapped(note, width - 2 * EDGE) if note else []
    for _ in range(PASSES):
        _place(figure, parts, placed, legend, notes, width)
        for axes in (axes for cells in placed for axes in cells):
            _make_room(axes)
    for x, y, text, look in _place(figure, parts, placed, legend, notes, width):
        figure.text(x, y, text, va="top", linespacing=1.25, **look)
    return figure


def _place(
    figure: Figure,
    parts: Sequence[Section],
    placed: Sequence[Sequence[Axes]],
    legend: float,
    notes: Sequence[str],
    width: float,
) -> list[Writing]:
    """Puts all axes in their places, and gives the figure its height; returns the titles and the note."""
    boxes: list[tuple[Axes, float, float, float, float]] = []
    writing: list[tuple[float, float, str, str]] = []
    y = EDGE + legend  # from the top
    for number, (section, cells) in enumerate(zip(parts, placed, strict=True)):
        y += BETWEEN_ROWS if number and section.title else 0.0
        if section.title:
            lines = wrapped(section.title, width - 2 * EDGE, bold=True)
            writing.append((EDGE, y, "\n".join(lines), "bold"))
            y += LINE * len(lines) + 0.04
        over = [overhang(axes) for axes in cells]
        columns = [over[start :: section.columns] for start in range(section.columns)]
        left = [max((each.left for each in column), default=0.0) for column in columns]
        right = [max((each.right for each in column), default=0.0) for column in columns]
        free = width - 2 * EDGE - sum(left) - sum(right) - BETWEEN_COLUMNS * (section.columns - 1)
        inner = max(free / section.columns, 0.3)
        weight = "normal" if section.title else "bold"
        for start in range(0, len(cells), section.columns):
            row = range(start, min(start + section.columns, len(cells)))
            begins = [
                EDGE + sum(left[:c]) + sum(right[:c]) + (inner + BETWEEN_COLUMNS) * c
                for c in range(section.columns)
            ]
            titles = [
                wrapped(section.cells[n].title, left[n - start] + inner + right[n - start], weight == "bold")
                if section.cells[n].title
                else []
                for n in row
            ]
            deep = max(map(len, titles))
            for n, lines in zip(row, titles, strict=True):
                writing.append((begins[n - start], y + LINE * (deep - len(lines)), "\n".join(lines), weight))
            y += LINE * deep + (0.05 if deep else 0.0) + max(over[n].top for n in row)
            for n in row:
                height = section.cells[n].height
                boxes.append((cells[n], begins[n - start] + left[n - start], y, inner, height))
            y += max(section.cells[n].height + over[n].bottom for n in row) + BETWEEN_ROWS
    note_at = y - BETWEEN_ROWS + 0.08
    total = note_at + LINE * len(notes) + EDGE if notes else y - BETWEEN_ROWS + EDGE
    figure.set_size_inches(width, total)
    for axes, x, top, wide, high in boxes:
        axes.set_position((x / width, 1 - (top + high) / total, wide / width, high / total))
    texts: list[Writing] = [
        (x / width, 1 - at / total, text, {"weight": weight}) for x, at, text, weight in writing if text
    ]
    if notes:
        texts.append((EDGE / width, 1 - note_at / total, "\n".join(notes), {"color": MUTED}))
    for one in figure.legends:
        one.set_bbox_to_anchor((EDGE / width, 1 - EDGE / total), transform=figure.transFigure)
    return texts


def overhang(axes: Axes) -> Overhang:
    """How far the labels of some axes reach beyond them; text beside bars stays within."""
    figure: Any = axes.figure
    renderer = figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    outside = [axes.xaxis.get_tightbbox(renderer), axes.yaxis.get_tightbbox(renderer)]
    outside += [text.get_window_extent(renderer) for text in axes.texts if not isinstance(text, Annotation)]
    box = Bbox.union([inside, *(each for each in outside if each is not None)])
    edges = inside.x0 - box.x0, box.x1 - inside.x1, inside.y0 - box.y0, box.y1 - inside.y1
    return Overhang(*(edge / figure.dpi for edge in edges))


def _make_room(axes: Axes) -> None:
    """Widens a linear axis, and those of one scale with it, until the text beside each bar ends within the axes."""
    figure: Any = axes.figure
    furthest = 0.0
    for one in axes.get_shared_x_axes().get_siblings(axes):
        whole = one.get_window_extent(figure.canvas.get_renderer()).width
        beside = [text for text in one.texts if isinstance(text, Annotation)]
        if not beside or one.get_xscale() != "linear":
            return
        for text in beside:
            need = text.get_window_extent(figure.canvas.get_renderer()).width + GAP / 72 * figure.dpi + 4
            furthest = max(furthest, float(text.xy[0]) / max(0.1, 1 - need / whole))
    if furthest > 0:
        axes.set_xlim(0, furthest)
    axes.xaxis.set_major_locator(
        MaxNLocator(max(1, min(6, int(whole / figure.dpi / 0.33))), steps=[1, 2, 5, 10])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


SAMPLE = 0.36  # inches of a legend's line and the gap after it
COVERED = 0.13  # inches by which a line is longer where the marker on it covers a part of the dashes
LEGEND_GAP = 0.2


def _legend(figure: Figure, handles: Sequence[Artist], width: float) -> float:
    """Adds one legend for all panels, in as few lines as fit; returns its height with the gap below, in inches."""
    if not handles:
        return 0.0
    longer = COVERED if any(map(_has_covered_dashes, handles)) else 0.0
    sample, room = SAMPLE + longer, width - 2 * EDGE
    for handle in handles:
        handle.set_label("\n".join(wrapped(str(handle.get_label()), room - sample)))
    sizes = [sample + max(map(width_of, str(handle.get_label()).split("\n"))) for handle in handles]
    count = len(handles)
    columns = next((n for n in range(min(count, 8), 1, -1) if _legend_width(sizes, n) <= room), 1)
    legend = figure.legend(
        handles=list(handles),
        loc="upper left",
        ncols=columns,
        borderaxespad=0,
        borderpad=0,
        handlelength=rcParams["legend.handlelength"] + 72 * longer / SIZE,
    )
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    return float(legend.get_window_extent(renderer).height) / DPI + 0.1


def _has_covered_dashes(handle: Artist) -> bool:
    return isinstance(handle, Line2D) and handle.is_dashed() and handle.get_marker() not in ("", "None")


def _legend_width(sizes: Sequence[float], columns: int) -> float:
    """The width of a legend of entries of these widths, in so many columns, filled one after the other."""
    longer, rest = divmod(len(sizes), columns)
    ends, widths = 0, []
    for column in range(columns):
        begin, ends = ends, ends + longer + (column < rest)
        widths.append(max(sizes[begin:ends], default=0.0))
    return sum(widths) + LEGEND_GAP * (columns - 1)


# The two logarithmic axes of a scaling figure: ticks at the tried numbers and at powers of two of a unit.

TICK = 0.2  # inches between ticks of an upright axis


def tried_axis(axes: Axes, tried: Sequence[int], label: str = "ranks", width: float = 2.6) -> None:
    """Puts ticks at the tried numbers, with labels where they fit on an axis of so many inches."""
    axes.set_xscale("log", base=2)
    pad = 2.0 if len(tried) == 1 else 2**0.4
    low, high = tried[0] / pad, tried[-1] * pad
    axes.set_xlim(low, high)
    labelled = _labelled(tried, width / math.log2(high / low))
    axes.xaxis.set_major_locator(FixedLocator(list(tried)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{p:,}" if p in labelled else "" for p in tried]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def octaves_axis(
    axes: Axes,
    values: Sequence[float],
    label: str,
    strip: float = 0.0,
    inches: float = 1.75,
    upright: bool = True,
) -> None:
    """Puts ticks at powers of two around these values; `strip`, a share of the height, stays free at the top."""
    low, high = _octaves(values)
    top = low + (high - low) / (1 - strip)
    most = max(2, int(inches * (1 - strip) / TICK)) if upright else max(2, int(inches / 0.34))
    powers = range(math.ceil(low), math.floor(high) + 1, math.ceil((high - low) / most))
    axis = axes.yaxis if upright else axes.xaxis
    (axes.set_yscale if upright else axes.set_xscale)("log", base=2)
    (axes.set_ylim if upright else axes.set_xlim)(2**low, 2**top)
    axis.set_major_locator(FixedLocator([2.0**power for power in powers] if values else []))
    axis.set_major_formatter(FixedFormatter([_tick(2.0**power) for power in powers]))
    axis.set_minor_locator(NullLocator())
    axis.set_label_text(label)
    axes.grid(visible=True, axis="y" if upright else "x")


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.10g}"


def _labelled(tried: Sequence[int], octave: float) -> set[int]:
    """The numbers whose labels do not touch where an octave has so many inches; powers of two come first."""
    chosen: set[int] = set()

    def apart(one: int, other: int) -> bool:
        room = (width_of(f"{one:,}") + width_of(f"{other:,}")) / 2 + 0.05
        return abs(math.log2(one / other)) * octave > room

    for number in sorted(tried, key=lambda number: (number & (number - 1) > 0, number)):
        if all(apart(number, other) for other in chosen):
            chosen.add(number)
    return chosen


def _octaves(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for these values, as powers of two, around at least two ticks."""
    if not values:
        return 0.0, 1.0
    low, high = math.log2(min(values)) - 0.3, math.log2(max(values)) + 0.3
    if math.floor(high) - math.ceil(low) < 1:
        low, high = math.floor(low), math.ceil(high)
    return low, high


# Rows from the top of a panel down, in groups with a name on the left.

BETWEEN = 0.35  # heights, where a bar's row is one
BAR = 0.15  # inches of a row
NAME = 1.3  # inches of a name before it is wrapped
TALLEST = 4.0  # inches of rows in one column
GAP = 3.0  # points between a bar and the text beside it

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    """Some bars, and their common name."""

    label: str
    bars: Sequence[T]


def _rows(group: Group[T]) -> float:
    """The height of a group in bars: its bars, or the lines of its name."""
    return max(float(len(group.bars)), 0.86 * len(wrapped(group.label, NAME)))


def height(groups: Sequence[Group[T]]) -> float:
    """The height of the groups, in bars."""
    return sum(_rows(group) + BETWEEN for group in groups)


def inches(groups: Sequence[Group[T]]) -> float:
    """The height of their axes, in inches."""
    return BAR * (height(groups) + 0.2)


def places(groups: Sequence[Group[T]]) -> Iterator[tuple[float, str, list[tuple[float, T]]]]:
    """Gives for each group the place of its first bar, the name, and every bar with its place; the top is 0."""
    y = 0.0
    for group in groups:
        yield y, group.label, [(y + number, bar) for number, bar in enumerate(group.bars)]
        y += _rows(group) + BETWEEN


def frame(
    axes: Axes,
    groups: Sequence[Group[T]],
    ticks: Sequence[tuple[float, str]],
    named: bool = True,
    head: str = "ranks",
) -> None:
    """Makes room for the groups; the names stand on the left, then a label for each bar under a heading."""
    axes.set_ylim(height(groups) - BETWEEN - 0.3, -0.6)
    axes.set_yticks([at for at, _ in ticks], [label if named else "" for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    if not named:
        return
    across, figure = axes.get_yaxis_transform(), axes.figure
    beside = max([width_of(label) for _, label in ticks] + [width_of(head)]) + 0.15

    def write(x: float, y: float, text: str, **look: Any) -> None:
        place = across + ScaledTranslation(-x, 0, figure.dpi_scale_trans)
        axes.text(0, y, text, transform=place, ha="right", **look)

    if any(label for _, label in ticks):
        write(3.5 / 72, -0.95, head, va="center_baseline", color=MUTED)
    for top, label, _ in places(groups):
        lines = wrapped(label, NAME)
        if len(lines) == 1:
            write(beside, top, label, va="center_baseline")
        else:
            write(beside, top - 0.42, "\n".join(lines), va="top", linespacing=1.15)


def in_columns(title: str, groups: Sequence[Group[T]], draw: Callable[..., None]) -> Section:
    """The groups under each other, or in two columns of one scale if a page has no room; `draw` takes `groups`."""
    parts = [groups]
    if inches(groups) > TALLEST:
        tops = [top for top, _, _ in places(groups)]
        cut = min(range(1, len(groups)), key=lambda n: abs(tops[n] - height(groups) / 2), default=0)
        parts = [groups[:cut], groups[cut:]] if cut else parts
    cells = [Cell("", partial(draw, groups=part), inches(part)) for part in parts]
    return Section(cells, len(cells), title, alike=True)


def write_beside(axes: Axes, text: str, x: float, y: float) -> None:
    """Writes text a little to the right of a point, on the line of the tick's label."""
    axes.annotate(text, (x, y), xytext=(GAP, 0), textcoords="offset points", va="center_baseline")


def ranks_and_grid(run: "pd.Series[Any]") -> str:
    """The number of ranks, or the sizes of the axes of their grid if it has several: 2×2×1."""
    sizes = [int(run[name]) for name in run.index if str(name).startswith("grid.") and pd.notna(run[name])]
    return "×".join(map(str, sizes)) if len(sizes) > 1 else f"{int(run.ranks):,}"
