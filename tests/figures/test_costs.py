"""The bars of costs are what the tables say, of the largest number of ranks."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures import costs
from harness.figures.costs import COSTS, EVALUATION, CostBar, Quantities
from harness.figures.drawing import style_context
from harness.figures.kind import Tables, read_tables
from harness.figures.page_layout import BarGroup
from harness.figures.palette import look_of
from harness.figures.panels import Panel, split_panels
from harness.results.parquet import read_collected


@pytest.fixture(scope="module")
def products(runs: pd.DataFrame) -> Panel:
    return next(panel for panel in split_panels(runs) if panel.dataset == "products-14m")


@pytest.fixture(scope="module")
def rows_of(tables) -> Tables:
    return read_tables(tables)


def test_a_bar_is_the_median_of_the_launches_at_most_ranks(products: Panel, rows_of: Tables) -> None:
    found = {group.label: group.bars for group in COSTS.select_bars(products, rows_of)}
    measured = [curve for curve in products.curves if curve.source == "measured" and len(curve.points)]
    assert list(found) == [curve.label for curve in measured]
    for curve in measured:
        largest = curve.points[curve.points.ranks == curve.points.ranks.max()]
        for (_, launches), bar in zip(largest.groupby("grid"), found[curve.label], strict=True):
            held = [
                max(sum(rows.persistent_bytes) for _, rows in rows_of.memory[run].groupby("rank_id"))
                if run in rows_of.memory
                else 0
                for run in launches.run_id
            ]
            told = launches[[name for name in COSTS.names if name in launches]].astype(float).median()
            expected = {**told, "held_bytes": pd.Series(held).median()}
            assert bar.values == pytest.approx(expected, nan_ok=True)


def row_of(some: list[BarGroup[CostBar]], quantities: Quantities = COSTS) -> list[Axes]:
    """The axes of a panel, drawn, one for each quantity that it has."""
    with style_context():
        shown = quantities.known_quantities(some)
        row = list(Figure().subplots(1, len(shown), squeeze=False)[0])
        for axes, name in zip(row, shown, strict=True):
            costs.draw_bars(axes, some, name, label_y=name == shown[0])
    return row


def test_the_axes_show_a_bar_for_every_grid(products: Panel, rows_of: Tables) -> None:
    some = COSTS.select_bars(products, rows_of)
    row = row_of(some)
    for name, axes in zip(COSTS.names[1:], row, strict=True):
        values = [bar.values[name] for group in some for bar in group.bars]
        assert len(axes.patches) == sum(value > 0 for value in values)
    assert [axes.get_xlabel() for axes in row] == [
        "epoch time (s)",
        "messages",
        "million elements received",
        "memory (MB)",
    ]


def test_units_suit_the_values() -> None:
    """866 elements, not 0.000866 millions."""
    assert [
        costs.choose_axis_unit("elements_received", value)[0] for value in (0, 866, 12_345, 4e7, 4e10)
    ] == [
        "elements received",
        "elements received",
        "thousand elements received",
        "million elements received",
        "billion elements received",
    ]
    assert costs.choose_axis_unit("held_bytes", 37_100) == ("memory (kB)", 1e3)
    assert costs.choose_axis_unit("seconds_to_target", 0.02) == ("time to target (ms)", 1e-3)
    assert costs.choose_axis_unit("best_accuracy", 0.9) == ("best test accuracy (%)", 0.01)


def test_the_time_to_a_target_stands_first_and_says_who_never_reached_it() -> None:
    look = look_of("plexus")
    values = dict.fromkeys(COSTS.names, 2.5)
    bars = [
        CostBar("4", look, values),
        CostBar("8", look, values | {"seconds_to_target": float("nan")}),
    ]
    row = row_of([BarGroup("plexus", bars)])
    assert row[0].get_xlabel() == "time to target (s)"
    assert {"2.50", "not reached"} <= {text.get_text() for text in row[0].texts}


def test_a_printed_value_is_a_hollow_bar_and_only_known_quantities_have_axes(
    synthetic: SimpleNamespace, collected: Callable[[Callable[[Path], object]], Path]
) -> None:
    """Tables I and II of ScaleGNN: the best accuracy of all evaluations stands beside the printed one."""
    best = [0.90, 0.96, 0.95]

    def write(folder: Path) -> None:
        spec = synthetic.make_spec("scalegnn", "reddit", {"d": 4})
        tables = synthetic.make_tables(spec, 1.0, 0.0)
        at = {"eval_seconds": 0.1, "split": "test"}
        tables["accuracy"] = pd.DataFrame(
            [{"epoch": n, "train_seconds": n + 1.0, "accuracy": value, **at} for n, value in enumerate(best)]
        )
        record = synthetic.make_record(spec, tables)
        record["summary"] |= {"accuracy_test": best[-1], "evaluation_seconds": 0.1}
        synthetic.write_record(folder, spec.model_dump(mode="json"), record, tables)
        for ranks, summary in ((4, {"accuracy_test": 0.963}), (16, {"epoch_seconds_median": 1.0})):
            spec = synthetic.make_spec("scalegnn", "reddit", {"d": ranks}, seed=1)
            record = {"run_id": spec.run_id, "label": spec.label, "status": "ok", "source": "published"}
            record |= {"summary": summary, "provenance": {}, "error": None}
            synthetic.write_record(folder, spec.model_dump(mode="json"), record, {})

    folder = collected(write)
    (panel,) = split_panels(read_collected(folder, "runs"))
    some = EVALUATION.select_bars(panel, read_tables(folder))
    bars = {group.label: group.bars for group in some}
    assert bars["scalegnn"][0].values["best_accuracy"] == max(best)
    assert bars["scalegnn published"][0].values["best_accuracy"] == 0.963
    accuracy, evaluation = row_of(some, EVALUATION)
    assert (
        accuracy.get_xlabel() == "best test accuracy (%)"
        and evaluation.get_xlabel() == "evaluation time (ms)"
    )
    ours, printed = accuracy.patches
    assert ours.get_facecolor()[:3] != (1, 1, 1) == printed.get_facecolor()[:3]
    assert {"96.0", "96.3"} <= {text.get_text() for text in accuracy.texts}
    assert len(evaluation.patches) == 1, "the paper prints no time here, and nothing is said of it"
    costs_of = {group.label for group in COSTS.select_bars(panel, read_tables(folder))}
    assert costs_of == {"scalegnn"}, "a paper prints no elements and no memory"
