"""Accuracies and losses are those of the runs, read back from what is drawn; predictions stand over their runs."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.figures import prediction_scatter, training
from harness.figures.drawing import style_context
from harness.figures.kind import read_tables
from harness.figures.panels import split_panels
from harness.results.collect import collect
from harness.results.parquet import conform_frame, read_collected
from harness.results.record import write_record
from harness.results.run_row import make_rows
from harness.results.schema import RUNS

FOUND = [0.2, 0.5, 0.75]


@pytest.fixture
def shown(synthetic: SimpleNamespace, tmp_path: Path) -> training.TrainingPanel:
    """A run that was evaluated thrice and one on fewer ranks, both asked to stop at 0.7."""
    for ranks in (1, 2):
        target = {"target": 0.7}
        spec = synthetic.make_spec("scalegnn", "products-14m", {"d": ranks}, training=target)
        tables = synthetic.make_tables(spec, 1.0, 0.0)
        rows = [
            {"epoch": e, "train_seconds": e + 1.0, "eval_seconds": 0.1, "split": split, "accuracy": value}
            for e, value in enumerate(FOUND)
            for split in ("train", "test")
        ]
        tables["accuracy"] = pd.DataFrame(rows)
        write_record(
            tmp_path / "runs", spec.model_dump(mode="json"), synthetic.make_record(spec, tables), tables
        )
    collect(tmp_path / "runs", tmp_path)
    (panel,) = split_panels(read_collected(tmp_path, "runs"))
    return training.select_accuracies(panel, read_tables(tmp_path))


def test_a_line_is_a_run_at_most_ranks(shown: training.TrainingPanel) -> None:
    (line,) = shown.lines
    assert line.label.endswith("2 ranks")
    assert (line.x, line.y) == ([1.0, 2.0, 3.0], FOUND)
    assert shown.targets == [0.7]


def test_points_and_target_are_drawn_where_they_are(shown: training.TrainingPanel) -> None:
    with style_context():
        axes = Figure().subplots()
        training.draw_lines(axes, shown)
    run, target = axes.lines
    assert run.get_xydata().tolist() == [[1.0, 0.2], [2.0, 0.5], [3.0, 0.75]]
    assert set(target.get_ydata()) == {0.7}
    assert [handle.get_label() for handle in training.make_handles([shown])] == [
        shown.lines[0].label,
        "target",
    ]


@pytest.mark.parametrize("quantity", [training.ACCURACY, training.LOSS])
def test_the_axis_fits_what_it_shows(quantity: training.TrainingAxes, shown: training.TrainingPanel) -> None:
    """Accuracies of 95 and 96 % lie apart, as do losses that hardly fall."""
    (line,) = shown.lines
    close = [
        line._replace(y=[0.950, 0.953, 0.954], strategy="a"),
        line._replace(y=[0.951, 0.952, 0.96], strategy="b"),
    ]
    with style_context():
        axes = Figure().subplots()
        training.draw_lines(axes, shown._replace(quantity=quantity, lines=close, targets=[]))
    low, high = axes.get_ylim()
    assert low < 0.950 and high > 0.960
    assert 0.010 / (high - low) > 0.8, "the values fill the axis"
    assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 3


def test_lines_that_coincide_are_all_seen(shown: training.TrainingPanel) -> None:
    """Figure 7 of Plexus: the distributed loss lies on the serial one."""
    (line,) = shown.lines
    epochs = [float(epoch) for epoch in range(50)]
    same = [
        line._replace(x=epochs, y=[1 / (1 + x) for x in epochs], strategy=name, label=name) for name in "abc"
    ]
    with style_context():
        axes = Figure().subplots()
        training.draw_lines(axes, shown._replace(lines=same, targets=[]))
    steps = [drawn.get_markevery() for drawn in axes.lines]
    marked = [set(range(first, len(epochs), step)) for first, step in steps]
    assert all(marked)
    assert not marked[0] & marked[1] and not marked[1] & marked[2] and not marked[0] & marked[2]
    widths = [drawn.get_linewidth() for drawn in axes.lines]
    assert widths == sorted(set(widths), reverse=True), "the first is the widest"


def test_lines_of_others_are_one_artist_and_launches_that_agree_one_line(
    shown: training.TrainingPanel,
) -> None:
    (line,) = shown.lines
    other = [line._replace(y=[0.1, 0.2, value], strategy="b") for value in (0.3, 0.3, 0.4)]
    with style_context():
        axes = Figure().subplots()
        training.draw_lines(axes, shown._replace(lines=[line, line, *other], targets=[]), own=line.strategy)
    grey, own = axes.lines
    assert list(own.get_ydata()) == line.y
    gap = math.nan
    assert list(map(str, grey.get_ydata())) == list(map(str, [0.1, 0.2, 0.3, gap, 0.1, 0.2, 0.4, gap]))


def test_variants_of_a_strategy_are_told_apart(shown: training.TrainingPanel) -> None:
    (line,) = shown.lines
    other = line._replace(label="other", look=line.look._replace(fill="left"))
    drawn = training.make_handles([shown._replace(lines=[line, other])])
    assert [handle.get_fillstyle() for handle in drawn[:2]] == ["full", "left"]


def test_a_loss_is_drawn_epoch_by_epoch_with_warm_up(synthetic: SimpleNamespace, tmp_path: Path) -> None:
    spec = synthetic.make_spec("plexus", "products-14m", {"x": 2, "y": 1, "z": 1})
    tables = synthetic.make_tables(spec, 1.0, 0.1)
    write_record(tmp_path / "runs", spec.model_dump(mode="json"), synthetic.make_record(spec, tables), tables)
    collect(tmp_path / "runs", tmp_path)
    (panel,) = split_panels(read_collected(tmp_path, "runs"))
    shown = training.select_losses(panel, read_tables(tmp_path))
    (line,) = shown.lines
    losses = tables["epochs"].groupby("epoch").loss.first()
    assert (line.x, line.y) == (list(range(1, len(losses) + 1)), losses.tolist())
    assert [row["loss"] for row in training.tabulate(shown)] == losses.tolist()


def test_a_prediction_stands_over_the_run_of_its_strategy_grid_and_ranks(synthetic: SimpleNamespace) -> None:
    rows = []
    for grid, measured, predicted in (((4, 1, 1), 1.0, 2.0), ((2, 2, 1), 2.0, 2.5), ((1, 2, 2), 4.0, 5.0)):
        spec = synthetic.make_spec("plexus", "products-14m", dict(zip("xyz", grid, strict=True)))
        for source, seconds in (("measured", measured), ("predicted", predicted), ("published", 9.0)):
            record = {"run_id": f"{source}{grid}", "label": spec.label, "status": "ok", "source": source}
            record |= {"summary": {"epoch_seconds_median": seconds}, "provenance": {}, "error": None}
            rows.append(make_rows(spec.model_dump(mode="json"), record).run)
    (panel,) = split_panels(conform_frame(pd.DataFrame(rows), RUNS))
    pairs = prediction_scatter.select_points(panel, None)
    found = [(row["seconds"], row["predicted_seconds"]) for row in prediction_scatter.tabulate(pairs)]
    assert found == [(1.0, 2.0), (2.0, 2.5), (4.0, 5.0)]
    assert prediction_scatter.assess_predictions(pairs) == (1.0, 0.25)
    by_dimension = {pair.label: (pair.look.colour, len(pair.rows)) for pair in pairs}
    assert {label: count for label, (_, count) in by_dimension.items()} == {
        "plexus, 1D grids": 1,
        "plexus, 2D grids": 2,
    }
    assert len({colour for colour, _ in by_dimension.values()}) == 2
    assert (
        prediction_scatter.select_points(
            replace(panel, runs=panel.runs[panel.runs.source != "predicted"]), None
        )
        == []
    )
