"""The bars of a breakdown are the epoch, part by part."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.report.figures.drawing import style_context
from harness.report.figures.kind import read_tables
from harness.report.figures.kinds import breakdown
from harness.report.figures.marks import Facet
from harness.report.figures.palette import GROUPS
from harness.report.figures.panels import AT_RANKS
from harness.results.parquet import read_collected

Collected = Callable[[Callable[[Path], object]], Path]


@pytest.fixture(scope="module")
def facets(runs: pd.DataFrame, tables: Path) -> list[Facet]:
    """The facets of one graph of the study, by falling numbers of ranks."""
    panels = [panel for panel in breakdown.split_by_ranks(runs) if panel.dataset == "products-14m"]
    return breakdown.KIND.make_facets(panels, read_tables(tables))


def test_facets_are_the_three_largest_numbers_of_ranks(facets: list[Facet]) -> None:
    assert [facet.panel.values[AT_RANKS] for facet in facets] == [4, 2, 1]
    for facet in facets:
        assert set(facet.frame.ranks) == {facet.panel.values[AT_RANKS]}


def test_a_bar_is_as_long_as_the_epoch(facets: list[Facet]) -> None:
    for facet in facets:
        for curve, bar in facet.frame.groupby("curve"):
            (own,) = [each for each in facet.panel.curves if each.label == curve]
            best = (
                own.points[own.points.ranks == bar.ranks.iloc[0]]
                .groupby("grid")
                .epoch_seconds_median.median()
            )
            assert bar.seconds.sum() == pytest.approx(best.min(), rel=1e-9)
            assert bar.total.unique() == pytest.approx([best.min()])
            assert bar.grid.unique() == [best.idxmin()]


def test_groups_have_the_order_of_the_palette(facets: list[Facet]) -> None:
    for _, bar in facets[0].frame.groupby("label"):
        assert list(bar.part) == list(GROUPS)


def test_local_work_is_not_communication(facets: list[Facet]) -> None:
    _, two, one = facets
    serial = one.frame[one.frame.curve == "serial"].set_index("part").seconds
    one_d = two.frame[two.frame.curve == "cagnet-1d"].set_index("part").seconds
    communication = ["broadcast, gather", "reduce", "exchange"]
    assert serial[communication].sum() == 0
    assert one_d[communication].sum() == pytest.approx(0.16, rel=0.1)
    assert one_d["SpMM"] == pytest.approx(0.62, rel=0.1)


def test_ideal_time_is_the_fastest_rank_alone_divided_by_ranks(facets: list[Facet]) -> None:
    four, two, one = (facet.frame for facet in facets)
    ideal = breakdown.IDEAL_TIME.column
    fastest = one.groupby("curve").seconds.sum().min()
    assert one[ideal].isna().all()
    assert two[ideal].unique() == pytest.approx([fastest / 2])
    assert four[ideal].unique() == pytest.approx([fastest / 4])


def test_predicted_epochs_have_bars_of_their_parts(synthetic: SimpleNamespace, collected: Collected) -> None:
    """Predictions and emulations have bars next to measured ones if they have a ledger."""

    def write(folder: Path) -> None:
        for ranks, source in ((2, "measured"), (64, "predicted"), (16, "emulated"), (32, "published")):
            spec = synthetic.make_spec("plexus", "tiny", {"x": ranks, "y": 1, "z": 1})
            synthetic.write_ok(folder, spec, 1.0, source=source)
        synthetic.write_quoted(folder, synthetic.make_spec("plexus", "tiny", {"z": 4}), 1.0, "predicted")

    folder = collected(write)
    panels = breakdown.split_by_ranks(read_collected(folder, "runs"))
    frame = pd.concat([facet.frame for facet in breakdown.KIND.make_facets(panels, read_tables(folder))])
    assert set(frame.label) == {"plexus, 2×1×1", "plexus emulated, 16×1×1", "plexus predicted, 64×1×1"}
    epochs = panels[0].runs.query("source == 'predicted' and ranks == 64").epoch_seconds_median.item()
    assert frame[frame.source == "predicted"].seconds.sum() == pytest.approx(epochs)


def test_single_strategy_shows_all_grids_and_failures_are_notes(
    synthetic: SimpleNamespace, collected: Collected
) -> None:
    def write(folder: Path) -> None:
        for x, y in ((4, 1), (2, 2), (1, 4)):
            synthetic.write_ok(
                folder, synthetic.make_spec("plexus", "tiny", {"x": x, "y": y, "z": 1}), 1.0 * x
            )
        failed = synthetic.make_spec("plexus", "other", {"x": 8, "y": 1, "z": 1})
        synthetic.write_failed(folder, failed, "oom", "MemoryError", "out of memory")
        synthetic.write_ok(folder, synthetic.make_spec("rdm", "other", {"p": 8}), 1.0)

    folder = collected(write)
    frames = [
        frame
        for panel in breakdown.split_by_ranks(read_collected(folder, "runs"))
        if (frame := breakdown.KIND.make_frame(panel, read_tables(folder))) is not None
    ]
    rows = {label: note for frame in frames for label, note in zip(frame.label, frame.note, strict=True)}
    assert {"plexus, 1×4×1", "plexus, 2×2×1", "plexus, 4×1×1"} <= set(rows)
    assert rows["plexus, 8×1×1"] == "oom on 8 ranks"


def test_bars_are_drawn_end_to_end_with_their_total(facets: list[Facet]) -> None:
    with style_context():
        axes = Figure().add_subplot()
        breakdown.KIND.mark.draw(axes, facets[1])
    ends: dict[float, list[tuple[float, float]]] = {}
    for patch in axes.patches:
        if patch.get_facecolor()[3]:  # type: ignore[index]
            ends.setdefault(patch.get_y(), []).append((patch.get_x(), patch.get_x() + patch.get_width()))  # type: ignore[attr-defined]
    for bar in ends.values():
        assert bar[0][0] == 0
        assert all(left[1] == pytest.approx(right[0]) for left, right in pairwise(bar))
    assert len(ends) == facets[1].frame.label.nunique()
    assert {text.get_text() for text in axes.texts} == set(facets[1].frame.note)
