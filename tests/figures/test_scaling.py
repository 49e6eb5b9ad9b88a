"""What a strong-scaling panel shows, read back from what is drawn."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.figures import scaling
from harness.figures.drawing import style_context
from harness.figures.page_layout import Cell, compose_figure
from harness.figures.palette import DASHED, DOT_DASH, failure_marker, look_of
from harness.figures.panels import TARGET, Panel, select_epoch_curves, select_target_curves, split_panels
from harness.results.parquet import read_collected
from harness.results.schema import STATUSES

Collected = Callable[[Callable[[Path], object]], Path]


@pytest.fixture
def axes() -> Iterator[Axes]:
    with style_context():
        yield Figure().add_subplot()


@pytest.fixture(scope="module")
def products(runs: pd.DataFrame) -> Panel:
    return next(panel for panel in split_panels(runs) if panel.dataset == "products-14m")


def draw(axes: Axes, panel: Panel) -> None:
    """Draws the curves of a panel on common axes, however many there are."""
    lines = select_epoch_curves(panel, None)
    quantity = scaling.plot_times(lines)
    scale = scaling._make_scale(lines, [lines], quantity, scaling.PLOT_HEIGHT, scaling.PLOT_WIDTH)
    scaling.draw_curves(axes, lines, quantity, scale)


def cells(panel: Panel) -> list[Cell]:
    lines = select_epoch_curves(panel, None)
    return [
        cell for part in scaling.make_sections("", lines, scaling.plot_times(lines)) for cell in part.cells
    ]


def line_of(axes: Axes, label: str) -> Line2D:
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line


def test_both_axes_are_logarithms_of_two_with_ticks_at_the_ranks(axes: Axes, products: Panel) -> None:
    draw(axes, products)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.get_xticks()) == [1, 2, 4, 8, 16]
    assert axes.get_xticks(minor=True).size == 0
    assert all(float(np.log2(tick)).is_integer() for tick in axes.get_yticks())
    assert len(axes.get_yticks()) >= 2


def test_a_line_joins_the_medians_in_absolute_time(axes: Axes, products: Panel) -> None:
    draw(axes, products)
    line = line_of(axes, "cagnet-1d")
    mine = products.runs[(products.runs["strategy.name"] == "cagnet-1d") & (products.runs.status == "ok")]
    medians = mine.groupby("ranks").epoch_seconds_median.median()
    assert list(line.get_xdata()) == list(medians.index)
    assert axes.get_ylabel() == "epoch time (s)"
    np.testing.assert_allclose(line.get_ydata(), medians)


def test_every_launch_is_a_point(axes: Axes, products: Panel) -> None:
    draw(axes, products)
    points = [tuple(point) for cloud in axes.collections for point in getattr(cloud, "get_offsets", list)()]
    measured = products.runs[(products.runs.status == "ok") & (products.runs.source == "measured")]
    expected = zip(measured.ranks, measured.epoch_seconds_median, strict=True)
    drawn = {(round(float(x)), round(float(y), 9)) for x, y in points}
    assert {(int(x), round(y, 9)) for x, y in expected} <= drawn


def test_ideal_lines_start_at_the_first_measured_point(axes: Axes, products: Panel) -> None:
    draw(axes, products)
    ideals = [line for line in axes.lines if line.get_alpha() is not None]
    assert len(ideals) == 2  # cagnet-1d and plexus; one point has no scaling
    starts = {tuple(np.column_stack(line_of(axes, name).get_data())[0]) for name in ("cagnet-1d", "plexus")}
    assert {tuple(np.column_stack(line.get_data())[0]) for line in ideals} == starts
    for line in ideals:
        x, y = np.array(line.get_data())
        np.testing.assert_allclose(x * y, x[0] * y[0])


def test_ranks_that_share_cores_stand_on_dotted_ground_without_ideal_lines(
    axes: Axes, synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Sixteen ranks on two cores draw a slope that is the opposite of the paper's: the axes say so themselves."""

    def write(folder: Path) -> None:
        for ranks in (1, 2, 4, 8):
            spec = synthetic.make_spec("plexus", "tiny", {"p": ranks})
            synthetic.write_ok(folder, spec, 1 / ranks, provenance=synthetic.provenance(cores=2))
            if ranks == 8:
                alone = synthetic.make_spec("rdm", "tiny", {"p": ranks})
                synthetic.write_ok(folder, alone, 1.0, source="emulated")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    draw(axes, panel)
    (ground,) = axes.patches
    assert 2 < ground.get_x() < 4
    assert 8 < ground.get_x() + ground.get_width() == axes.get_xlim()[1]
    assert [line for line in axes.lines if line.get_alpha() is not None] == [], "no ideal line"
    lines = select_epoch_curves(panel, None)
    quantity = scaling.plot_times(lines)
    parts = scaling.make_sections("", lines, quantity)
    labels = [handle.get_label() for handle in scaling.make_handles(parts, quantity)]
    assert "oversubscribed (ranks share cores)" in labels and "ideal" not in labels


def test_times_to_a_target_stand_over_ranks_beside_printed_ones(
    axes: Axes, synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 6 of ScaleGNN; a run that never reached the target has no point."""

    def write(folder: Path) -> None:
        for ranks, reached in ((1, 9.0), (2, 5.0), (4, None)):
            spec = synthetic.make_spec("scalegnn", "tiny", {"d": ranks}, training={"target": 0.9})
            tables = synthetic.make_tables(spec, 1.0, 0.0)
            record = synthetic.make_record(spec, tables)
            record["summary"]["seconds_to_target"] = reached
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)
        spec = synthetic.make_spec("scalegnn", "tiny", {"d": 8}, training={"target": 0.9})
        record = {"run_id": spec.run_id, "label": spec.label, "status": "ok", "source": "published"}
        record |= {"summary": {"seconds_to_target": 1.5}, "provenance": {}, "error": None}
        synthetic.write_record(folder, spec.model_dump(mode="json"), record, {})

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    lines = select_target_curves(panel, None)
    quantity = scaling.plot_times(lines, TARGET)
    found = {curve.label: quantity.scaled_points(curve) for curve in lines}
    assert found == {"scalegnn": [(1, 9.0), (2, 5.0)], "scalegnn published": [(8, 1.5)]}
    assert quantity.y_label == "time to target (s)"
    assert [curve.label for curve in select_epoch_curves(panel, None)] == ["scalegnn"], "no epoch is printed"


def test_sources_are_told_apart(axes: Axes, products: Panel) -> None:
    draw(axes, products)
    measured, predicted, published = (
        line_of(axes, f"plexus{kind}") for kind in ("", " predicted", " published")
    )
    assert measured.get_linestyle() == "-"
    assert predicted.get_linestyle() == "--"
    assert published.get_linestyle() == "None"
    colour = look_of("plexus").colour
    assert {line.get_markeredgecolor() for line in (published,)} == {colour}
    assert published.get_markerfacecolor() != colour
    assert {line.get_marker() for line in (measured, predicted, published)} == {look_of("plexus").marker}


def test_a_sample_in_the_legend_shows_the_dashes_of_its_source(products: Panel) -> None:
    """A marker in its middle leaves one and a half periods of either pattern: with less, each looks like the other."""
    with style_context():
        (legend,) = scaling.draw_figure([products], [select_epoch_curves(products, None)]).legends
    (sample,) = [line for line in legend.get_lines() if line.get_label() == "plexus predicted"]
    free = max(sample.get_xdata()) - min(sample.get_xdata()) - sample.get_markersize()
    periods = [sum(pattern) * sample.get_linewidth() for _, pattern in (DASHED, DOT_DASH)]
    assert free >= 1.5 * max(periods)


def test_runs_of_other_programs_are_lines_with_hollow_markers(
    axes: Axes, synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for ranks in (1, 2):
            synthetic.write_ok(folder, synthetic.make_spec("bns-gcn", "tiny", {"p": ranks}), 1 / ranks)
            spec = synthetic.make_spec("bns-gcn", "tiny", {"p": ranks}, seed=1)
            synthetic.write_quoted(folder, spec, 2 / ranks, "external")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    draw(axes, panel)
    ours, theirs = line_of(axes, "bns-gcn"), line_of(axes, "bns-gcn external")
    assert ours.get_linestyle() == theirs.get_linestyle() == "-"
    assert ours.get_markerfacecolor() == theirs.get_color() != theirs.get_markerfacecolor()
    assert list(theirs.get_ydata()) == [2, 1]


def test_failures_stand_above_all_data_with_the_sign_of_their_status(axes: Axes, runs: pd.DataFrame) -> None:
    for panel in split_panels(runs):
        axes.clear()
        draw(axes, panel)
        failed = panel.runs[panel.runs.status != "ok"].iloc[0]
        sign = failure_marker(failed.status)
        (cross,) = [line for line in axes.lines if line.get_marker() == sign]
        assert list(cross.get_xdata()) == [failed.ranks]
        slowest = panel.runs.epoch_seconds_median.max() * (1 if axes.get_ylabel().endswith("(s)") else 1000)
        low, high = map(math.log, axes.get_ylim())
        share = (math.log(slowest) - low) / (high - low)
        (strip,) = axes.patches
        assert share < strip.get_y() < cross.get_ydata()[0]


def test_statuses_have_signs_that_differ() -> None:
    failed = [status for status in STATUSES if status != "ok"]
    assert len({str(failure_marker(status)) for status in failed}) == len(failed)


def test_as_many_failures_as_there_are_have_room(
    axes: Axes, synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        synthetic.write_quoted(folder, synthetic.make_spec("serial", "tiny", {"p": 1}), 1.0, "measured")
        for number in range(9):
            spec = synthetic.make_spec(f"s{number}", "tiny", {"p": 2})
            synthetic.write_failed(folder, spec, "oom", "MemoryError", "")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    draw(axes, panel)
    heights = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "x"]
    assert len(set(heights)) == 9
    low, high = map(math.log, axes.get_ylim())
    assert -low / (high - low) < min(heights) < max(heights) < 1


def test_curves_of_one_point_are_listed_with_their_values(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Five strategies on four ranks would all stand at one place."""

    def write(folder: Path) -> None:
        for ranks in (1, 2, 4):
            synthetic.write_ok(folder, synthetic.make_spec("plexus", "tiny", {"p": ranks}), 1 / ranks)
        for number in range(5):
            spec = synthetic.make_spec(f"s{number}", "tiny", {"p": 4})
            synthetic.write_quoted(folder, spec, 0.5 + number, "measured")
        failed = synthetic.make_spec("s1", "tiny", {"p": 8})
        synthetic.write_failed(folder, failed, "oom", "MemoryError", "")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    over, listed = cells(panel)
    assert "over ranks" in over.title and "largest" in listed.title
    with style_context():
        figure = compose_figure(
            scaling.make_sections("", lines := select_epoch_curves(panel, None), scaling.plot_times(lines))
        )
    written = [text.get_text() for text in figure.axes[1].texts]
    assert {"plexus", "s0", "s1", "s4", "× oom", "0.500", "4.50"} <= set(written)


def test_many_strategies_have_small_axes_of_their_own(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for number in range(8):
            for ranks in (2, 4):
                spec = synthetic.make_spec(f"s{number}", "tiny", {"p": ranks})
                synthetic.write_quoted(folder, spec, (1 + number) / ranks, "measured")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    assert [cell.title for cell in cells(panel)] == [f"s{number}" for number in range(8)]


def test_one_rank_alone_is_drawn(axes: Axes, synthetic: SimpleNamespace, collected: Collected) -> None:
    spec = synthetic.make_spec("serial", "tiny", {"p": 1})
    (panel,) = split_panels(read_collected(collected(lambda to: synthetic.write_ok(to, spec, 0.002)), "runs"))
    draw(axes, panel)
    assert list(axes.get_xticks()) == [1]
    assert axes.get_ylabel() == "epoch time (ms)"
    assert len(axes.get_yticks()) >= 2


def test_failures_alone_are_drawn(axes: Axes, synthetic: SimpleNamespace, collected: Collected) -> None:
    spec = synthetic.make_spec("plexus", "tiny", {"x": 2, "y": 2, "z": 2})
    write = lambda to: synthetic.write_failed(to, spec, "refused", "UserError", "no")  # noqa: E731
    (panel,) = split_panels(read_collected(collected(write), "runs"))
    draw(axes, panel)
    assert failure_marker("refused") in [line.get_marker() for line in axes.lines]
    assert len(axes.get_yticks()) == 0
    (cell,) = cells(panel)
    axes.clear()
    cell.draw(axes)
    assert "× refused" in [text.get_text() for text in axes.texts]


def test_a_panel_of_failures_alone_is_as_high_as_its_failures(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """What no card can predict is crossed out on the paper's ranks, without an empty plot beneath."""

    def write(folder: Path) -> None:
        for ranks in (2, 4, 8):
            spec = synthetic.make_spec("g3", "tiny", {"p": ranks})
            synthetic.write_failed(folder, spec, "refused", "UserError", "no partition")

    (panel,) = split_panels(read_collected(collected(write), "runs"))
    (cell,) = cells(panel)
    assert cell.height < scaling.PLOT_HEIGHT / 4
    with style_context():
        lines = select_epoch_curves(panel, None)
        figure = compose_figure(scaling.make_sections("", lines, scaling.plot_times(lines)))
    (axes,) = figure.axes
    crossed = [line for line in axes.lines if line.get_marker() == failure_marker("refused")]
    assert sorted(int(line.get_xdata()[0]) for line in crossed) == [2, 4, 8]
    assert axes.get_ylabel() == ""


def test_the_legend_names_every_curve_on_common_axes_once(products: Panel) -> None:
    with style_context():
        lines = select_epoch_curves(products, None)
        parts = scaling.make_sections("", lines, quantity := scaling.plot_times(lines))
        labels = [handle.get_label() for handle in scaling.make_handles(parts, quantity)]
    assert labels == [
        "serial",
        "cagnet-1d",
        "plexus",
        "plexus predicted",
        "plexus published",
        "one launch",
        "ideal",
        "did not finish: oom",
    ]
