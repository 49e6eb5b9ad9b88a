"""How busy ranks are is what the windows say, epoch after epoch, in strips from the busiest curve down."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.report.figures.drawing import style_context
from harness.report.figures.kind import read_tables
from harness.report.figures.kinds import utilisation
from harness.report.figures.marks import Facet
from harness.results.parquet import read_collected

pytestmark = pytest.mark.long

Collected = Callable[[Callable[[Path], object]], Path]
NAN = float("nan")


def windows(device: float = NAN, share: float = 1.0) -> pd.DataFrame:
    """Two timed epochs of two ranks, of two windows each, and a warm-up."""
    rows = [
        (epoch, rank, window, 0.01 if window == 0 else 0.004, each * share)
        for epoch, shares in ((-1, (1.0, 1.0)), (0, (0.5, 0.25)), (1, (0.75, 0.0)))
        for rank in (0, 1)
        for window, each in enumerate(shares)
    ]
    frame = pd.DataFrame(rows, columns=["epoch", "rank_id", "window", "seconds", "share"])
    frame["computing_seconds"] = frame.seconds * frame.share * (1 + 0.2 * (frame["rank_id"] - 0.5))
    return frame.drop(columns="share").assign(communicating_seconds=0.0, device_percent=device)


@pytest.fixture
def facet(synthetic: SimpleNamespace, collected: Collected) -> Facet:
    def write(folder: Path) -> None:
        for name, ranks, share in (("rdm", 2, 0.5), ("plexus", 1, 0.2), ("plexus", 2, 1.0), ("g3", 2, None)):
            spec = synthetic.make_spec(name, "tiny", {"p": ranks})
            tables = synthetic.make_tables(spec, 1.0, 0.0)
            record = synthetic.make_record(spec, tables)
            del tables["utilisation"]
            if share:
                tables["utilisation"] = windows(share=share)
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)

    folder = collected(write)
    kind = utilisation.KIND
    (facet,) = kind.make_facets(kind.split_panels(read_collected(folder, "runs")), read_tables(folder))
    return facet


def test_windows_follow_one_another_without_warm_up() -> None:
    series = utilisation.average_ranks(windows())
    assert list(series.begin) == pytest.approx([0, 0.01, 0.014, 0.024])
    assert list(series.computing) == pytest.approx([0.5, 0.25, 0.75, 0])


def test_a_utilisation_that_the_driver_reports_is_shown_instead() -> None:
    assert list(utilisation.average_ranks(windows(device=42)).computing) == [0.42] * 4


def test_the_busiest_curve_comes_first_at_its_largest_number_of_ranks(facet: Facet) -> None:
    assert facet.frame.curve.unique().tolist() == ["plexus", "rdm"], "g3 has no windows"
    assert set(facet.frame.ranks) == {2}
    mean = (0.5 * 10 + 0.25 * 4 + 0.75 * 10) / 28
    assert facet.frame.groupby("curve")["mean"].first().to_dict() == pytest.approx(
        {"plexus": mean, "rdm": mean / 2}
    )


def test_a_strip_is_filled_up_to_the_share_and_labelled(facet: Facet) -> None:
    with style_context():
        axes = Figure().add_subplot()
        utilisation.KIND.mark.draw(axes, facet)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["plexus, 2 ranks", "rdm, 2 ranks"]
    assert [text.get_text() for text in axes.texts] == ["48 %", "24 %"]
    _, plexus, _, rdm = (area.get_paths()[0].get_extents() for area in axes.collections)
    assert plexus.height == pytest.approx(0.8 * 0.75)
    assert rdm.height == pytest.approx(0.8 * 0.375)
    assert (plexus.x0, plexus.x1) == (0, pytest.approx(0.028))


def test_equal_shares_say_nothing(facet: Facet) -> None:
    tables = SimpleNamespace(utilisation={run: windows(device=100) for run in facet.panel.runs.run_id})
    assert utilisation.make_frame(facet.panel, tables) is None  # type: ignore[arg-type]


def test_charts_of_the_report_compile(facet: Facet) -> None:
    converter = pytest.importorskip("vl_convert")
    spec = {"data": {"values": facet.frame.to_dict("records")}, **utilisation.KIND.mark.describe(facet)}
    svg = converter.vegalite_to_svg(spec)
    assert ">plexus, 2 ranks<" in svg and ">48 %<" in svg
