"""Every kind of figure, of 2 to 28 strategies, by its geometry: what is written can be read, and nothing is empty."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import COLUMN_WIDTH, PAGE_WIDTH, compose_figure
from harness.report.figures.framed_tables import KINDS
from harness.report.figures.kind import FigureKind
from harness.report.figures.marks import Bars, Dots, Facet
from harness.report.figures.marks.facet import MOST_COLOURED
from harness.report.figures.panels import split_panels, title_panels

LONG_GRAPH = "a-graph-with-a-long-name@1-4096w1024"
MARKS = {2: [], 7: [pytest.mark.long], 22: [pytest.mark.slow], 28: [pytest.mark.slow]}
"""The marks of tests by the size of their study."""
SIZES = [pytest.param(count, marks=marks) for count, marks in MARKS.items()]
NOT_SHOWN = {"agreement": [2], "loss": [7, 22, 28]}
"""The sizes of studies without a kind: the smallest has no serial run, and losses are shown only without one."""
GROWTH = ("throughput-depth", "throughput-width")
"""The kinds of a study whose models differ in depth and width."""
FramedTables = Any
every_figure = pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param(kind, count, marks=marks, id=f"{kind.name}-{count}")
        for kind in KINDS
        for count, marks in MARKS.items()
        if count not in NOT_SHOWN.get(kind.name, [])
    ],
)
row_figures = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if isinstance(kind.mark, Dots | Bars)], ids=lambda kind: kind.name
)
all_sizes = pytest.mark.parametrize("count", SIZES)


@pytest.fixture(scope="module")
def facets_of(
    study_of: Callable[[int], FramedTables], growth_study_of: Callable[[int], FramedTables]
) -> Callable[[FigureKind, int], list[Facet]]:
    @lru_cache
    def make(name: str, count: int) -> list[Facet]:
        kind = next(kind for kind in KINDS if kind.name == name)
        study = (growth_study_of if name in GROWTH else study_of)(count)
        panels = kind.split_panels(study.runs if kind.table == "runs" else study.claims)
        facets = kind.make_facets(panels, study.tables)
        assert facets, "no study shows this kind"
        titles, _ = title_panels([facet.panel for facet in facets])
        return [replace(facet, title=title) for facet, title in zip(facets, titles, strict=True)]

    return lambda kind, count: make(kind.name, count)


@pytest.fixture(scope="module")
def figure_of(facets_of: Callable[[FigureKind, int], list[Facet]]) -> Callable[[FigureKind, int], Figure]:
    @lru_cache
    def make(name: str, count: int) -> Figure:
        kind = next(kind for kind in KINDS if kind.name == name)
        facets = facets_of(kind, count)
        _, note = title_panels([facet.panel for facet in facets])
        return draw(kind, facets, note)

    return lambda kind, count: make(kind.name, count)


def draw(kind: FigureKind, facets: list[Facet], note: str = "") -> Figure:
    with style_context():
        figure = compose_figure(facets, kind.mark, note, kind.title)
        FigureCanvasAgg(figure).draw()
    return figure


def texts(figure: Figure) -> Iterator[Text]:
    """Everything that is written: on the page, in legends, in and around axes."""
    yield from figure.findobj(lambda artist: isinstance(artist, Text) and artist in figure.texts)  # type: ignore[misc]
    for legend in figure.legends:
        yield from legend.get_texts()
        yield legend.get_title()
    for axes in figure.axes:
        yield from axes.texts
        yield from (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.label
            yield from ticks(axis)


def ticks(axis: Axis) -> Iterator[Text]:
    """The labels of the ticks that are in view."""
    low, high = sorted(axis.get_view_interval())
    for tick in axis.get_major_ticks():
        if low <= tick.get_loc() <= high and tick.label1.get_visible():
            yield tick.label1


def boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """The boxes of all texts, without the arrows of annotations."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    shown = [text for text in texts(figure) if text.get_text().strip()]
    for text in shown:
        if isinstance(text, Annotation):
            text.update_positions(renderer)
    return [(text.get_text(), Text.get_window_extent(text, renderer)) for text in shown]


def overlap(one: Bbox, other: Bbox) -> bool:
    """Whether two boxes have more than a pixel in common, both ways."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > 1 and high > 1


@every_figure
def test_no_text_overlaps_another_or_leaves_the_page(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure]
) -> None:
    figure = figure_of(kind, count)
    page, written = figure.bbox, boxes(figure)
    assert written
    for text, box in written:
        inside = page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1 and page.y0 - 1 <= box.y0
        assert inside and box.y1 <= page.y1 + 1, f"{text!r} is cut: {box} of {page}"
    for (one, a), (other, b) in combinations(written, 2):
        assert not overlap(a, b), f"{one!r} overlaps {other!r}: {a}, {b}"


@every_figure
def test_text_has_seven_to_nine_points_at_the_printed_width(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure]
) -> None:
    figure = figure_of(kind, count)
    assert figure.get_size_inches()[0] in (COLUMN_WIDTH, PAGE_WIDTH)
    assert {text.get_fontsize() for text in texts(figure) if text.get_text()} <= {7.0, 8.0, 9.0}


@every_figure
def test_one_panel_fits_on_a_page(
    kind: FigureKind, count: int, facets_of: Callable[..., list[Facet]]
) -> None:
    """A page of a paper has text of 9 inches."""
    facets = facets_of(kind, count)
    runs = facets[0].panel.runs
    one = [facet for facet in facets if facet.panel.runs is runs]
    assert draw(kind, one).get_size_inches()[1] <= 9


@every_figure
def test_no_axes_are_empty_and_none_share_a_place(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure]
) -> None:
    figure = figure_of(kind, count)
    for axes in figure.axes:
        assert [*axes.patches, *axes.collections, *(line for line in axes.lines if len(line.get_xdata()))]
        box = axes.get_window_extent()
        assert box.width > 40 and box.height > 15
    for one, other in combinations(figure.axes, 2):
        assert not overlap(one.get_window_extent(), other.get_window_extent())


@every_figure
def test_axes_have_the_height_that_the_mark_wants(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure], facets_of: Callable[..., list[Facet]]
) -> None:
    figure = figure_of(kind, count)
    for axes, facet in zip(figure.axes, facets_of(kind, count), strict=True):
        height = axes.get_window_extent().height / figure.dpi
        assert height == pytest.approx(kind.mark.measure(facet)[1], abs=0.1)


@every_figure
def test_facets_of_the_same_runs_have_the_same_axis(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure], facets_of: Callable[..., list[Facet]]
) -> None:
    drawn = zip(figure_of(kind, count).axes, facets_of(kind, count), strict=True)
    for (axes, facet), (others, other) in combinations(drawn, 2):
        if facet.panel.runs is other.panel.runs:
            assert axes.get_xlim() == others.get_xlim()


@all_sizes
def test_no_two_strategies_look_alike(count: int, study_of: Callable[[int], FramedTables]) -> None:
    panels = [panel for panel in split_panels(study_of(count).runs) if panel.dataset == LONG_GRAPH]
    for panel in panels:
        looks: dict[tuple[Any, Any], str] = {}
        for curve in panel.curves:
            assert looks.setdefault(curve.look[:2], curve.strategy) == curve.strategy
    assert len({curve.strategy for panel in panels for curve in panel.curves}) == count


@every_figure
def test_no_two_entries_of_a_legend_look_alike(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure]
) -> None:
    for legend in figure_of(kind, count).legends:
        lines = [
            (
                handle.get_color(),
                str(handle.get_marker()),
                handle.get_fillstyle(),
                str(handle.get_linestyle()),
                str(handle.get_markerfacecolor()),
            )
            for handle in legend.get_lines()
        ]
        assert len(set(lines)) == len(lines)
        fills = [(patch.get_facecolor(), patch.get_hatch()) for patch in legend.get_patches()]
        assert len(set(fills)) == len(fills)


@every_figure
def test_shared_axes_have_at_most_eight_colours(
    kind: FigureKind, count: int, figure_of: Callable[..., Figure]
) -> None:
    """Rows have a label each, so each may have a colour."""
    if not isinstance(kind.mark, Dots | Bars):
        for axes in figure_of(kind, count).axes:
            colours = {to_rgb(line.get_color()) for line in axes.lines}  # type: ignore[arg-type]
            coloured = {colour for colour in colours if max(colour) - min(colour) > 0.15}
            assert len(coloured) <= MOST_COLOURED


@row_figures
@all_sizes
def test_rows_are_sorted_by_value(
    kind: FigureKind, count: int, facets_of: Callable[..., list[Facet]]
) -> None:
    for facet in facets_of(kind, count):
        column = "total" if isinstance(kind.mark, Bars) else kind.mark.x.column  # type: ignore[attr-defined]
        medians = facet.frame.groupby("label", sort=False)[column].median().dropna()
        assert medians.is_monotonic_increasing or medians.is_monotonic_decreasing
        assert facet.frame.groupby("label", sort=False).ngroup().is_monotonic_increasing, "rows are together"


@every_figure
def test_every_frame_has_the_columns_that_marks_need(
    kind: FigureKind, count: int, facets_of: Callable[..., list[Facet]]
) -> None:
    facets = facets_of(kind, count)
    assert (
        len({tuple(sorted(facet.frame)) for facet in facets if facet.panel.runs is facets[0].panel.runs}) == 1
    )
    for facet in facets:
        assert {"curve", "strategy", "source", "status"} <= set(facet.frame)
        assert isinstance(facet.frame.index, pd.RangeIndex)
