"""Lines over ranks, read back from what is drawn: strong scaling, efficiency, and time to the target accuracy."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.kind import FigureKind, read_tables
from harness.report.figures.kinds import efficiency, strong_scaling, time_to_target
from harness.report.figures.marks import Facet
from harness.report.figures.marks.lines import DOTTED
from harness.report.figures.palette import failure_marker, look_of
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.results.schema import STATUSES

pytestmark = pytest.mark.long

Collected = Callable[[Callable[[Path], object]], Path]
EPOCH = "epoch_seconds_median"


def facets_of(folder: Path, kind: FigureKind = strong_scaling.KIND) -> list[Facet]:
    return kind.make_facets(kind.split_panels(read_collected(folder, "runs")), read_tables(folder))


@cache
def draw(facet: Facet, kind: FigureKind = strong_scaling.KIND) -> Axes:
    """Draws a facet alone, so that the labels of its artists are those of the legend."""
    with style_context():
        axes = Figure().add_subplot()
        kind.mark.draw(axes, facet)
    return axes


def legend_of(*facets: Facet, kind: FigureKind = strong_scaling.KIND) -> list[Line2D]:
    with style_context():
        (legend,) = compose_figure(facets, kind.mark).legends
    return [*legend.get_lines(), *legend.get_patches()]


def labels_of(*facets: Facet, kind: FigureKind = strong_scaling.KIND) -> set[str]:
    return {str(handle.get_label()) for handle in legend_of(*facets, kind=kind)}


def lines_of(axes: Axes, label: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_label() == label and len(line.get_xdata())]


def ideal_of(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if line.get_zorder() == DOTTED["zorder"] and len(line.get_xdata())]


@pytest.fixture(scope="module")
def products(synthetic: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Facet:
    folder = tmp_path_factory.mktemp("study")
    synthetic.write_study(folder / "runs")
    collect(folder / "runs", folder)
    (facet,) = [facet for facet in facets_of(folder) if facet.dataset == "products-14m"]
    return facet


def test_ticks_are_at_the_tried_ranks_and_times_have_si_units(products: Facet) -> None:
    axes = draw(products)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.get_xticks()) == [1, 2, 4, 8, 16]
    assert axes.get_xticks(minor=True).size == 0
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(ticks) >= 2
    assert axes.yaxis.get_major_formatter()(0.5) == "500 ms"


def test_a_line_joins_medians_of_launches_on_the_fastest_grid(products: Facet) -> None:
    runs = products.panel.runs
    measured = runs[(runs.status == "ok") & (runs.source == "measured")]
    for name in ("cagnet-1d", "plexus"):
        own = measured[measured["strategy.name"] == name]
        best = own.groupby(["ranks", "grid"])[EPOCH].median().groupby("ranks").min()
        (line,) = [line for line in lines_of(draw(products), name) if line.get_linestyle() == "-"]
        np.testing.assert_allclose(line.get_ydata(), best)
        np.testing.assert_allclose(line.get_xdata(), best.index, rtol=0.13)  # shifted sideways


def test_every_launch_on_the_fastest_grid_is_a_dot(products: Facet) -> None:
    dots = {
        round(float(y), 9)
        for cloud in draw(products).collections
        for _, y in getattr(cloud, "get_offsets", list)()
    }
    rows = products.frame[(products.frame.source == "measured") & (products.frame.status == "ok")]
    assert {round(y, 9) for y in rows[EPOCH]} <= dots
    assert len(rows) > rows.groupby(["curve", "ranks"]).ngroups


def test_serial_is_a_horizontal_line_and_not_a_curve(products: Facet) -> None:
    runs = products.panel.runs
    median = runs[runs["strategy.name"] == "serial"][EPOCH].median()
    assert "serial" not in set(products.frame.curve)
    (line,) = lines_of(draw(products), "serial")
    assert set(line.get_ydata()) == {median}


def test_ideal_lines_start_at_the_first_measured_point_with_slope_minus_one(products: Facet) -> None:
    axes = draw(products)
    ideals = ideal_of(axes)
    measured = products.frame[products.frame.source == "measured"].dropna(subset=[EPOCH])
    first = [
        rows[EPOCH][rows.ranks == rows.ranks.min()].median()
        for _, rows in measured.groupby("curve", sort=False)
    ]
    assert [line.get_ydata()[0] for line in ideals] == pytest.approx(first)
    low, high = axes.get_ylim()
    for line in ideals:
        (start, end), (y, z) = map(np.array, line.get_data())
        assert math.log(z / y) / math.log(end / start) == pytest.approx(-1)
        assert low <= z <= high


def test_many_curves_have_one_ideal_line_in_grey(synthetic: SimpleNamespace, collected: Collected) -> None:
    def write(folder: Path) -> None:
        for number in range(5):
            for ranks in (2, 4):
                spec = synthetic.make_spec(f"s{number}", "tiny", {"p": ranks})
                synthetic.write_quoted(folder, spec, (1 + number) / ranks, "measured")

    (facet,) = facets_of(collected(write))
    axes = draw(facet)
    (line,) = ideal_of(axes)
    assert line.get_ydata()[0] == 0.5, "the fastest"
    assert line.get_color() not in {look.colour for look in facet.looks.values()}


def test_sources_are_explained_by_grey_entries_and_not_in_every_label(products: Facet) -> None:
    handles = {str(handle.get_label()): handle for handle in legend_of(products)}
    assert set(handles) == {
        "cagnet-1d",
        "plexus",
        "did not finish: oom",
        "measured",
        "predicted",
        "printed in a paper",
        "ideal",
        "serial",
    }
    assert list(handles)[:2] == ["cagnet-1d", "plexus"], "curves come first"
    assert (
        len({str(handles[name].get_linestyle()) for name in ("measured", "predicted", "printed in a paper")})
        == 3
    )
    colours = {look.colour for look in products.looks.values()}
    assert not {handles[name].get_color() for name in ("measured", "predicted", "ideal", "serial")} & colours
    styles = [line.get_linestyle() for line in lines_of(draw(products), "plexus")]
    assert styles == ["-", "--", "None"], "measured, predicted, published"
    *_, published = lines_of(draw(products), "plexus")
    assert published.get_markeredgecolor() == look_of("plexus").colour != published.get_markerfacecolor()


def test_a_sample_in_the_legend_shows_the_dashes_of_its_source(products: Facet) -> None:
    """A marker in its middle leaves one and a half periods: with less, dashes look like a solid line."""
    (sample,) = [handle for handle in legend_of(products) if handle.get_label() == "predicted"]
    free = max(sample.get_xdata()) - min(sample.get_xdata()) - sample.get_markersize()
    assert free >= 1.5 * sum(sample._dash_pattern[1])  # type: ignore[attr-defined]


def test_measured_values_alone_need_no_entries_of_sources(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for ranks in (1, 2):
            synthetic.write_ok(folder, synthetic.make_spec("plexus", "tiny", {"p": ranks}), 1 / ranks)

    (facet,) = facets_of(collected(write))
    assert labels_of(facet) == {"plexus", "ideal"}


def test_other_programs_have_hollow_markers_with_a_line(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for ranks in (1, 2):
            synthetic.write_ok(folder, synthetic.make_spec("bns-gcn", "tiny", {"p": ranks}), 1 / ranks)
            spec = synthetic.make_spec("bns-gcn", "tiny", {"p": ranks}, seed=1)
            synthetic.write_quoted(folder, spec, 2 / ranks, "external")

    (facet,) = facets_of(collected(write))
    ours, theirs = lines_of(draw(facet), "bns-gcn")
    assert ours.get_linestyle() == theirs.get_linestyle() == "-"
    assert ours.get_markerfacecolor() == theirs.get_color() != theirs.get_markerfacecolor()
    assert list(theirs.get_ydata()) == [2, 1]
    assert "another program" in labels_of(facet)


def test_shared_cores_have_a_dotted_background_and_no_ideal_line(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for ranks in (1, 2, 4, 8):
            spec = synthetic.make_spec("plexus", "tiny", {"p": ranks})
            synthetic.write_ok(folder, spec, 1 / ranks, provenance=synthetic.provenance(cores=2))

    (facet,) = facets_of(collected(write))
    axes = draw(facet)
    (ground,) = axes.patches
    assert 2 < ground.get_x() < 4
    assert 8 < ground.get_x() + ground.get_width() == axes.get_xlim()[1]
    assert labels_of(facet) == {"plexus", "ranks shared cores"}
    (rect,) = [
        layer
        for layer in strong_scaling.KIND.mark.describe(facet)["layer"]
        if layer["mark"]["type"] == "rect"
    ]
    assert rect["data"]["values"][0]["begin"] == pytest.approx(ground.get_x())


def test_failures_are_above_all_data_at_their_ranks(products: Facet) -> None:
    axes = draw(products)
    (cross,) = [line for line in axes.lines if line.get_marker() == failure_marker("oom")]
    (strip,) = axes.patches
    assert list(cross.get_xdata()) == [8]
    assert strip.get_y() < cross.get_ydata()[0] < 1
    slowest = products.frame[EPOCH].max()
    low, high = map(math.log, axes.get_ylim())
    assert (math.log(slowest) - low) / (high - low) < strip.get_y()
    assert max(axes.get_yticks()) <= math.exp(low + strip.get_y() * (high - low))


def test_statuses_have_signs_that_differ() -> None:
    failed = [status for status in STATUSES if status != "ok"]
    assert len({str(failure_marker(status)) for status in failed}) == len(failed)


def test_every_failing_curve_has_a_row_that_makes_the_axes_higher(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for number in range(7):
            for ranks in (1, 2):
                spec = synthetic.make_spec(f"s{number}", "tiny", {"p": ranks})
                synthetic.write_quoted(folder, spec, 1.0 / ranks, "measured")
            spec = synthetic.make_spec(f"s{number}", "tiny", {"p": 4})
            synthetic.write_failed(folder, spec, "refused", "UserError", "")

    (facet,) = facets_of(collected(write))
    axes = draw(facet)
    heights = {line.get_ydata()[0] for line in axes.lines if line.get_marker() == failure_marker("refused")}
    assert len(heights) == 7
    (strip,) = axes.patches
    _, height = strong_scaling.KIND.mark.measure(facet)
    assert height * (1 - strip.get_y()) == pytest.approx(0.13 * 7)
    assert height * strip.get_y() == pytest.approx(1.9)
    assert "refused" in labels_of(facet)


def test_markers_that_would_coincide_are_shifted_by_less_than_a_sixth_of_the_way(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for name in ("plexus", "rdm", "g3"):
            for ranks in (2, 4, 8):
                synthetic.write_quoted(
                    folder, synthetic.make_spec(name, "tiny", {"p": ranks}), 1 / ranks, "measured"
                )
        for ranks in (2, 4, 8):
            synthetic.write_quoted(
                folder, synthetic.make_spec("pyg", "tiny", {"p": ranks}), 9 / ranks, "measured"
            )

    (facet,) = facets_of(collected(write))
    axes = draw(facet)
    places = np.array([lines_of(axes, name)[0].get_xdata() for name in ("plexus", "rdm", "g3")])
    octaves = np.log2(places / [2, 4, 8])
    assert abs(octaves).max() <= 1 / 6 + 1e-9
    assert abs(np.diff(octaves, axis=0)).min() > 0.05
    assert list(lines_of(axes, "pyg")[0].get_xdata()) == [2, 4, 8]


def test_at_most_eight_strategies_have_colours_in_all_their_sources(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for number in range(12):
            for ranks in (2, 4):
                spec = synthetic.make_spec(f"s{number}", "tiny", {"p": ranks})
                synthetic.write_quoted(folder, spec, (1 + number) / ranks, "measured")
                spec = synthetic.make_spec(f"s{number}", "tiny", {"p": ranks}, seed=1)
                synthetic.write_quoted(folder, spec, (1.1 + number) / ranks, "predicted")

    folder = collected(write)
    (facet,) = facets_of(folder)
    names = {f"s{number}" for number in range(8)}
    assert set(facet.highlights) == names | {f"{name} predicted" for name in names}
    assert labels_of(facet) == names | {"all others", "measured", "predicted", "ideal"}
    panels = strong_scaling.KIND.split_panels(read_collected(folder, "runs"))
    (chosen,) = strong_scaling.KIND.make_facets(panels, read_tables(folder), ["s11"])
    assert "s11" in chosen.highlights and len(chosen.highlights) == 16


def test_a_single_strategy_has_a_curve_for_each_graph(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for graph in ("tiny", "small"):
            for ranks in (1, 2):
                synthetic.write_quoted(
                    folder, synthetic.make_spec("plexus", graph, {"p": ranks}), 1, "measured"
                )

    (facet,) = facets_of(collected(write))
    assert set(facet.frame.curve) == {"tiny", "small"}


def test_efficiency_is_the_rank_seconds_of_the_fewest_ranks_over_its_own(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Of 8 s on 2 ranks, 5 s on 4 and 4 s on 8 ranks: 16, 20 and 32 rank-seconds."""

    def write(folder: Path) -> None:
        for ranks, seconds in ((2, 8.0), (4, 5.0), (8, 4.0)):
            synthetic.write_quoted(
                folder, synthetic.make_spec("rdm", "tiny", {"p": ranks}), seconds, "measured"
            )
            spec = synthetic.make_spec("rdm", "tiny", {"p": ranks}, seed=1)
            synthetic.write_quoted(folder, spec, 8.0 / ranks, "predicted")
            spec = synthetic.make_spec("rdm", "tiny", {"p": ranks}, seed=2)
            synthetic.write_quoted(folder, spec, 8.0, "published")
        synthetic.write_quoted(folder, synthetic.make_spec("g3", "tiny", {"p": 2}), 1.0, "measured")

    (facet,) = facets_of(collected(write), efficiency.KIND)
    found = {
        curve: rows.sort_values("ranks").efficiency.tolist() for curve, rows in facet.frame.groupby("curve")
    }
    assert found == {"rdm": pytest.approx([1, 0.8, 0.5]), "rdm predicted": pytest.approx([1, 1, 1])}
    axes = draw(facet, efficiency.KIND)
    assert axes.get_ylim()[0] == 0
    assert set(lines_of(axes, "ideal")[0].get_ydata()) == {1.0}
    assert axes.yaxis.get_major_formatter()(0.8) == "80 %"


def test_time_to_target_has_only_launches_that_reached_it(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    """Figure 6 of ScaleGNN, with the times that the paper prints. Epochs of both families share a panel."""

    def write(folder: Path) -> None:
        for ranks, reached in ((1, 9.0), (2, 5.0), (4, None)):
            spec = synthetic.make_spec("scalegnn", "tiny", {"d": ranks}, training={"target": 0.9})
            tables = synthetic.make_tables(spec, 1.0, 0.0)
            record = synthetic.make_record(spec, tables)
            record["summary"]["seconds_to_target"] = reached
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)
        for ranks in (8, 16):
            spec = synthetic.make_spec("scalegnn", "tiny", {"d": ranks}, training={"target": 0.9})
            record = {"run_id": spec.run_id, "label": spec.label, "status": "ok", "source": "published"}
            record |= {"summary": {"seconds_to_target": 12 / ranks}, "provenance": {}, "error": None}
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, {})

    folder = collected(write)
    (facet,) = facets_of(folder, time_to_target.KIND)
    found = {
        curve: [*zip(rows.ranks, rows.seconds_to_target, strict=True)]
        for curve, rows in facet.frame.groupby("curve")
    }
    assert found == {"scalegnn": [(1, 9.0), (2, 5.0)], "scalegnn published": [(8, 1.5), (16, 0.75)]}
    assert set(facets_of(folder)[0].frame.curve) == {"scalegnn"}, "no epoch is printed"


def test_charts_of_the_report_have_the_layers_of_the_figure(products: Facet) -> None:
    """Their scales agree with the axes, and layers that are not curves bring their own data and colour."""
    layers = strong_scaling.KIND.mark.describe(products)["layer"]
    assert [layer["mark"]["type"] for layer in layers] == [
        *["rule", "line", "line"],  # serial and ideal
        *["area", "line", "point", "point", "text"],
    ]
    for layer in layers:
        assert ("data" in layer) == ("color" in layer["encoding"])
        if "x" in layer["encoding"]:
            assert layer["encoding"]["x"]["axis"]["values"] == [1, 2, 4, 8, 16]
    own = [layer["data"]["values"] for layer in layers[1:3]]
    drawn = [list(zip(*line.get_data(), strict=True)) for line in ideal_of(draw(products))]
    assert [[row["y"] for row in rows] for rows in own] == [[y for _, y in points] for points in drawn]
    serial = pd.unique(products.frame.serial)
    assert [row["value"] for row in layers[0]["data"]["values"]] == list(serial)


def test_charts_of_the_report_compile(products: Facet) -> None:
    converter = pytest.importorskip("vl_convert")
    spec = {
        "data": {"values": products.frame.to_dict("records")},
        **strong_scaling.KIND.mark.describe(products),
    }
    svg = converter.vegalite_to_svg(spec)
    assert ">epoch time<" in svg and ">500 ms<" in svg and ">predicted<" in svg
