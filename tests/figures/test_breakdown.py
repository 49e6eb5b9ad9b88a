"""The bars of a breakdown are the epoch, part by part."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.figures.breakdown import BREAKDOWN, EpochBars, longest_bar
from harness.figures.drawing import style_context
from harness.figures.kind import read_tables
from harness.figures.palette import GROUPS
from harness.figures.panels import Panel, split_panels
from harness.results.parquet import read_collected


@pytest.fixture(scope="module")
def products(runs: pd.DataFrame) -> Panel:
    return next(panel for panel in split_panels(runs) if panel.dataset == "products-14m")


@pytest.fixture(scope="module")
def rows(products: Panel, tables) -> EpochBars:
    return BREAKDOWN.select_bars(products, read_tables(tables))


def test_a_bar_is_as_long_as_the_epoch_of_the_scaling_figure(products: Panel, rows: EpochBars) -> None:
    measured = {curve.label: curve.points for curve in products.curves if curve.source == "measured"}
    assert [label for label, _ in rows] == list(measured)
    for label, bars in rows:
        done = [bar for bar in bars if bar.status == "ok"]
        launches = measured[label].groupby(["ranks", "grid"]).epoch_seconds_median
        assert [bar.total for bar in done] == pytest.approx(list(launches.median()), rel=1e-9)


def test_groups_have_the_order_of_the_palette(rows: EpochBars) -> None:
    for _, bars in rows:
        for bar in bars:
            assert list(bar.seconds) in (list(GROUPS), [])


def test_local_work_is_not_communication(rows: EpochBars) -> None:
    bars = dict(rows)
    serial, one_d = bars["serial"][0].seconds, bars["cagnet-1d"][1].seconds
    communication = ("broadcast, gather", "reduce", "exchange")
    assert sum(serial[group] for group in communication) == 0
    assert sum(one_d[group] for group in communication) == pytest.approx(0.16, rel=0.1)
    assert one_d["SpMM"] == pytest.approx(0.62, rel=0.1)


def test_predicted_epochs_have_bars_of_their_parts(
    synthetic: SimpleNamespace, collected: Callable[[Callable[[Path], object]], Path]
) -> None:
    """The ranks of a paper are predicted: its stacked bars stand beside those of the runs here."""

    def write(folder: Path) -> None:
        for ranks, source in ((2, "measured"), (64, "predicted"), (16, "emulated"), (32, "published")):
            synthetic.write_ok(
                folder,
                synthetic.make_spec("plexus", "tiny", {"x": ranks, "y": 1, "z": 1}),
                1.0,
                source=source,
            )
        synthetic.write_quoted(folder, synthetic.make_spec("plexus", "tiny", {"z": 4}), 1.0, "predicted")

    folder = collected(write)
    (panel,) = split_panels(read_collected(folder, "runs"))
    found = dict(BREAKDOWN.select_bars(panel, read_tables(folder)))
    assert {label: [bar.label for bar in bars] for label, bars in found.items()} == {
        "plexus": ["2×1×1"],
        "plexus emulated": ["16×1×1"],
        "plexus predicted": ["64×1×1"],
    }, "a paper prints no parts, and neither has a prediction without a ledger"
    epochs = dict(zip(panel.runs.source, panel.runs.epoch_seconds_median, strict=True))
    assert found["plexus predicted"][0].total == pytest.approx(epochs["predicted"])


def test_failures_have_a_row(rows: EpochBars) -> None:
    assert [(bar.label, bar.status) for bar in dict(rows)["cagnet-1d"]][-1] == ("8", "oom")


def test_bars_are_drawn_end_to_end_with_their_total(rows: EpochBars) -> None:
    with style_context():
        axes = Figure().add_subplot()
        BREAKDOWN.draw_bars(axes, rows, longest_bar(rows))
    ends: dict[float, list[tuple[float, float]]] = {}
    for patch in axes.patches:
        ends.setdefault(patch.get_y(), []).append((patch.get_x(), patch.get_x() + patch.get_width()))
    for bar in ends.values():
        assert bar[0][0] == 0
        assert all(left[1] == pytest.approx(right[0]) for left, right in pairwise(bar))
    texts = [text.get_text() for text in axes.texts]
    assert "× oom" in texts
    assert {"serial", "cagnet-1d", "plexus"} <= set(texts), "bars carry their name"
    assert any(text.startswith("1.9") or text.startswith("1.8") for text in texts)
    assert len(ends) == sum(bar.status == "ok" for _, bars in rows for bar in bars)
