"""The bars of costs are what the tables say, of the largest number of ranks."""

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures import costs
from harness.figures.costs import CostBar
from harness.figures.drawing import styled
from harness.figures.kind import Tables, read_tables
from harness.figures.page_layout import Group
from harness.figures.palette import look_of
from harness.figures.panels import Panel, panels


@pytest.fixture(scope="module")
def products(runs: pd.DataFrame) -> Panel:
    return next(panel for panel in panels(runs) if panel.dataset == "products-14m")


@pytest.fixture(scope="module")
def rows_of(tables) -> Tables:
    return read_tables(tables)


def test_a_bar_is_the_median_of_the_launches_at_most_ranks(products: Panel, rows_of: Tables) -> None:
    found = {group.label: group.bars for group in costs.bars(products, rows_of)}
    measured = [curve for curve in products.curves if curve.source == "measured" and len(curve.points)]
    assert list(found) == [curve.label for curve in measured]
    for curve in measured:
        largest = curve.points[curve.points.ranks == curve.points.ranks.max()]
        for (_, launches), bar in zip(largest.groupby("grid"), found[curve.label], strict=True):
            held = [
                max(sum(rows.persistent_bytes) for _, rows in rows_of.memory[run].groupby("rank"))
                if run in rows_of.memory
                else 0
                for run in launches.run_id
            ]
            told = launches[costs.MEDIANS].astype(float).median()
            assert bar.values == pytest.approx((*told, pd.Series(held).median()), nan_ok=True)


def row_of(some: list[Group[CostBar]]) -> list[Axes]:
    """The axes of a panel, drawn, one for each quantity that it has."""
    with styled():
        shown = costs.quantities([some])
        row = list(Figure().subplots(1, len(shown), squeeze=False)[0])
        for axes, number in zip(row, shown, strict=True):
            costs.draw(axes, some, number, first=number == shown[0])
    return row


def test_the_axes_show_a_bar_for_every_grid(products: Panel, rows_of: Tables) -> None:
    some = costs.bars(products, rows_of)
    row = row_of(some)
    for number, axes in enumerate(row, start=1):
        values = [bar.values[number] for group in some for bar in group.bars]
        assert len(axes.patches) == sum(value > 0 for value in values)
    assert [axes.get_xlabel() for axes in row] == ["epoch (s)", "messages", "million words", "held (MB)"]


def test_units_suit_the_values() -> None:
    """866 words, not 0.000866 millions."""
    assert [costs.heading(3, value)[0] for value in (0, 866, 12_345, 4e7, 4e10)] == [
        "words",
        "words",
        "thousand words",
        "million words",
        "billion words",
    ]
    assert costs.heading(4, 37_100) == ("held (kB)", 1e3)
    assert costs.heading(0, 0.02) == ("to the target (ms)", 1e-3)


def test_the_time_to_a_target_stands_first_and_says_who_never_reached_it() -> None:
    look = look_of("plexus")
    bars = [CostBar("4", look, (2.5, 1, 2, 3, 4)), CostBar("8", look, (float("nan"), 1, 2, 3, 4))]
    row = row_of([Group("plexus", bars)])
    assert row[0].get_xlabel() == "to the target (s)"
    assert {"2.50", "not reached"} <= {text.get_text() for text in row[0].texts}


def test_a_printed_time_is_a_hollow_bar_alone() -> None:
    """A quantity that the paper does not print stays empty: it is not said to be unreached."""
    nothing = float("nan")
    groups = [
        Group(
            "distdgl, published", [CostBar("16", look_of("distdgl"), (596.0, *[nothing] * 4), printed=True)]
        )
    ]
    (axes,) = row_of(groups)
    assert axes.get_xlabel() == "to the target (s)"
    (bar,) = axes.patches
    assert bar.get_facecolor()[:3] == (1, 1, 1)
    assert "not reached" not in {text.get_text() for text in axes.texts}
