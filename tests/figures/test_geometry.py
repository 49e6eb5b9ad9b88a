"""Every kind of figure, of 2 to 22 strategies, by its geometry: what is written can be read, and nothing is empty."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from harness.figures.drawing import KINDS, style_context
from harness.figures.kind import FigureKind, Tables
from harness.figures.page_layout import COLUMN_WIDTH, PAGE_WIDTH
from harness.figures.palette import BUILT_IN
from harness.figures.panels import split_panels
from harness.figures.throughput import BASELINE
from harness.results.parquet import conform_frame
from harness.results.run_row import make_rows
from harness.results.schema import RUNS, TABLES

SIZES = (2, pytest.param(7, marks=pytest.mark.slow), 22)
LONG = "a-graph-with-a-long-name@1-4096w1024"
FOREIGN = ("my-strategy", "another-plugin-of-somebody-with-a-long-name")


class Study(NamedTuple):
    """Runs and their tables, and claims, as the kinds of figures take them."""

    runs: pd.DataFrame
    claims: pd.DataFrame
    tables: Tables


@pytest.fixture(scope="module")
def study_of(synthetic: SimpleNamespace) -> Callable[[int], Study]:
    """`study_of(n)`: n strategies, most of which scale, on a graph of a long name, and two panels of another."""

    @lru_cache
    def make(count: int) -> Study:
        few = ["plexus", BASELINE]
        names = [*list(BUILT_IN)[1 : count - 2], BASELINE, *FOREIGN] if count > 2 else few
        rows, tables = [], {name: {} for name in ("epochs", "ledger", "memory", "accuracy", "utilisation")}

        def add(spec: Any, compute: float, talk: float, **changes: Any) -> None:
            frames = synthetic.make_tables(spec, compute, talk)
            frames["accuracy"] = pd.DataFrame(
                [
                    {
                        "epoch": e,
                        "train_seconds": (e + 1) * compute,
                        "split": "test",
                        "accuracy": 0.3 + 0.06 * e,
                    }
                    for e in range(6)
                ]
            )
            frames["ledger"].loc[frames["ledger"].phase == "loss", "phase"] = "sample"
            record = synthetic.make_record(spec, frames, **changes)
            record["summary"]["seconds_to_target"] = 5 * compute
            rows.append(make_rows(spec.model_dump(mode="json"), record).run)
            for name, kept in tables.items():
                names = TABLES[name if name in TABLES else "ledger"].recorded_names
                kept[spec.run_id] = frames[name].rename(columns=names)

        random = np.random.default_rng(count)
        for number, name in enumerate(names):
            base = float(random.uniform(0.5, 2))
            for ranks in (2, 4) if number % 3 else (4,):
                grid = {"x": ranks // 2, "y": 2, "z": 1} if number % 2 else {"p": ranks}
                training = {"target": 0.6}
                spec = synthetic.make_spec(name, LONG, grid, training=training)
                add(spec, base / ranks, 0.1)
                if number < 3:
                    known = {"status": "ok", "source": "predicted", "provenance": {}, "error": None}
                    epoch = {"epoch_seconds_median": float(random.uniform(0.5, 1.5)) * (base / ranks + 0.1)}
                    record = {"run_id": f"p{spec.run_id[1:]}", "label": spec.label, "summary": epoch, **known}
                    rows.append(make_rows(spec.model_dump(mode="json"), record).run)
            if number % 4 == 1:
                spec = synthetic.make_spec(name, LONG, {"p": 8}, training={"target": 0.6})
                failed = {"source": "measured", "summary": {}, "provenance": {}}
                error = {"rank": 0, "type": "MemoryError", "message": "", "trace": ""}
                record = {
                    "run_id": spec.run_id,
                    "label": spec.label,
                    "status": "oom",
                    **failed,
                    "error": error,
                }
                rows.append(make_rows(spec.model_dump(mode="json"), record).run)
        full = {"projection": True, "norm": True, "residual": True, "dropout": 0.2}
        for hidden, parts in ((16, {}), (1024, full)):
            model = {"hidden": hidden, **parts}
            for batch in (0, 64):
                spec = synthetic.make_spec(
                    names[0], "tiny", {"p": 1}, model=model, training={"batch": batch, "target": 0.6}
                )
                add(spec, 2e-6, 0.0)
        claims = pd.DataFrame(
            [{**claim, "what": f"{claim['what']} {'word ' * 30}"} for claim in synthetic.claims()]
        )
        return Study(conform_frame(pd.DataFrame(rows), RUNS), claims, Tables(*tables.values()))

    return make


def drawn(kind: FigureKind[Any], study: Study) -> Figure:
    some = kind.split_panels(study.runs if kind.table == "runs" else study.claims)
    contents = [(panel, content) for panel in some if (content := kind.select_content(panel, study.tables))]
    with style_context():
        figure = kind.draw_figure(*zip(*contents, strict=True))
        figure.canvas.draw()
    return figure


@pytest.fixture(scope="module")
def figure_of(study_of: Callable[[int], Study]) -> Callable[[FigureKind[Any], int], Figure]:
    @lru_cache
    def make(name: str, count: int) -> Figure:
        return drawn(next(kind for kind in KINDS if kind.name == name), study_of(count))

    return lambda kind, count: make(kind.name, count)


def texts(figure: Figure) -> Iterator[Text]:
    """Everything that is written: on the page, in legends, in and around axes."""
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from axes.texts
        yield axes.title
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
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in texts(figure)
        if text.get_text().strip()
    ]


def overlap(one: Bbox, other: Bbox) -> bool:
    """Whether two boxes have more than a pixel in common, both ways."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > 1 and high > 1


all_figures = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@all_figures
@pytest.mark.parametrize("count", SIZES)
def test_no_text_overlaps_another_or_leaves_the_page(
    kind: FigureKind[Any], count: int, figure_of: Callable[..., Figure]
) -> None:
    figure = figure_of(kind, count)
    page = figure.bbox
    written = boxes(figure)
    assert written
    for text, box in written:
        inside = (
            page.x0 - 1 <= box.x0
            and box.x1 <= page.x1 + 1
            and page.y0 - 1 <= box.y0
            and box.y1 <= page.y1 + 1
        )
        assert inside, f"{text!r} is cut: {box} of {page}"
    for (one, a), (other, b) in combinations(written, 2):
        assert not overlap(a, b), f"{one!r} overlaps {other!r}: {a}, {b}"


@all_figures
@pytest.mark.parametrize("count", SIZES)
def test_text_has_seven_to_nine_points_at_the_printed_width(
    kind: FigureKind[Any], count: int, figure_of: Callable[..., Figure]
) -> None:
    figure = figure_of(kind, count)
    assert figure.get_size_inches()[0] in (COLUMN_WIDTH, PAGE_WIDTH)
    assert {text.get_fontsize() for text in texts(figure) if text.get_text()} <= {7.0, 8.0, 9.0}


@all_figures
def test_a_panel_of_22_strategies_fits_on_a_page(
    kind: FigureKind[Any], figure_of: Callable[..., Figure]
) -> None:
    """A page of a paper has text of 9 inches; columns of one panel have one scale."""
    figure = figure_of(kind, 22)
    panels_drawn = 3  # one of 22 strategies, and two of another graph
    assert figure.get_size_inches()[1] <= 9 + 1.5 * (panels_drawn - 1)
    for axes in figure.axes:
        for other in axes.get_shared_x_axes().get_siblings(axes):
            assert other.get_xlim() == axes.get_xlim()


@all_figures
@pytest.mark.parametrize("count", SIZES)
def test_no_axes_are_empty_and_none_share_a_place(
    kind: FigureKind[Any], count: int, figure_of: Callable[..., Figure]
) -> None:
    figure = figure_of(kind, count)
    for axes in figure.axes:
        shown = [*axes.patches, *axes.collections, *(line for line in axes.lines if len(line.get_xdata()))]
        zeros = [text for text in axes.texts if text.get_text() in ("0", "not reached")]  # bars of no length
        assert shown or zeros, axes.get_xlabel()
        box = axes.get_window_extent()
        assert box.width > 40 and box.height > 15
    for one, other in combinations(figure.axes, 2):
        assert not overlap(one.get_window_extent(), other.get_window_extent())


@pytest.mark.parametrize("count", SIZES)
def test_no_two_strategies_look_alike(count: int, study_of: Callable[[int], Study]) -> None:
    for panel in split_panels(study_of(count).runs):
        looks: dict[tuple[Any, Any], str] = {}
        for curve in panel.curves:
            assert looks.setdefault(curve.look[:2], curve.strategy) == curve.strategy
    names = {curve.strategy for panel in split_panels(study_of(count).runs) for curve in panel.curves}
    assert len(names) == count


@all_figures
@pytest.mark.parametrize("count", SIZES)
def test_no_two_entries_of_a_legend_look_alike(
    kind: FigureKind[Any], count: int, figure_of: Callable[..., Figure]
) -> None:
    for legend in figure_of(kind, count).legends:
        lines = [
            (
                handle.get_color(),
                str(handle.get_marker()),
                handle.get_fillstyle(),
                str(handle.get_linestyle()),
            )
            for handle in legend.get_lines()
        ]
        assert len(set(lines)) == len(lines)
        fills = [(patch.get_facecolor(), patch.get_hatch()) for patch in legend.get_patches()]
        assert len(set(fills)) == len(fills)


@pytest.mark.parametrize("count", SIZES)
def test_markers_of_strategies_stand_apart_or_are_listed(
    count: int, figure_of: Callable[..., Figure]
) -> None:
    """On common axes no two markers of different colours coincide."""
    figure = figure_of(KINDS[0], count)
    for axes in figure.axes:
        marks = [
            (line.get_color(), *line.get_transform().transform((x, y)))
            for line in axes.lines
            if line.get_markersize() > 3 and str(line.get_marker()) not in ("None", "x", "+", "_")
            for x, y in line.get_xydata()
        ]
        for (a, x, y), (b, u, v) in combinations(marks, 2):
            assert a == b or np.hypot(x - u, y - v) > 0.02 * figure.dpi, (axes.get_xlabel(), a, b)


def test_markers_stand_at_their_number_of_ranks(figure_of: Callable[..., Figure]) -> None:
    """Those that make room for others are moved by less than a sixth of the way to the next number."""
    moved = 0
    for axes in figure_of(KINDS[0], 7).axes:
        across = axes.transData.transform([(tick, 1) for tick in axes.get_xticks()])[:, 0]
        pitch = np.diff(across).min(initial=axes.bbox.width)
        for line in axes.lines:
            points = line.get_xydata()
            if line.get_markersize() > 3 and len(points):
                there, here = (to.transform(points)[:, 0] for to in (axes.transData, line.get_transform()))
                by = np.nanmax(np.abs(here - there))  # a line may have gaps
                assert by < pitch / 6
                moved += by > 0.5
    assert moved


@pytest.mark.parametrize("count", SIZES)
def test_ideal_lines_end_within_the_axes(count: int, figure_of: Callable[..., Figure]) -> None:
    dotted = 0
    for name in (0, 1):
        for axes in figure_of(KINDS[name], count).axes:
            for line in axes.lines:
                if line.get_alpha() is not None:
                    dotted += 1
                    low, high = axes.get_ylim()
                    assert all(low * 0.999 <= y <= high * 1.001 for y in line.get_ydata())
    assert dotted


@all_figures
def test_every_panel_has_rows_of_numbers(kind: FigureKind[Any], study_of: Callable[[int], Study]) -> None:
    study = study_of(22)
    for panel in kind.split_panels(study.runs if kind.table == "runs" else study.claims):
        if content := kind.select_content(panel, study.tables):
            rows = list(kind.tabulate(content))
            assert rows
            assert len({tuple(row) for row in rows}) == 1, "one header for all rows"
