"""The lines of accuracies are the evaluations of the runs, read back from what is drawn."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.figures import accuracy
from harness.figures.drawing import styled
from harness.figures.kind import read_tables
from harness.figures.panels import panels
from harness.results.collect import collect
from harness.results.parquet import read_collected
from harness.results.record import write_record

FOUND = [0.2, 0.5, 0.75]


@pytest.fixture
def shown(synthetic: SimpleNamespace, tmp_path: Path) -> accuracy.AccuracyPanel:
    """A run that was evaluated thrice and one on fewer ranks, both asked to stop at 0.7."""
    for ranks in (1, 2):
        training = {"target": 0.7}
        spec = synthetic.make_spec("scalegnn", "products-14m", {"d": ranks}, training=training)
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
    (panel,) = panels(read_collected(tmp_path, "runs"))
    return accuracy.lines(panel, read_tables(tmp_path))


def test_a_line_is_a_run_at_most_ranks(shown: accuracy.AccuracyPanel) -> None:
    (line,) = shown.lines
    assert line.label.endswith("2 ranks")
    assert (line.seconds, line.accuracies) == ([1.0, 2.0, 3.0], FOUND)
    assert shown.targets == [0.7]


def test_points_and_target_are_drawn_where_they_are(shown: accuracy.AccuracyPanel) -> None:
    with styled():
        axes = Figure().subplots()
        accuracy.draw(axes, shown)
    run, target = axes.lines
    assert run.get_xydata().tolist() == [[1.0, 0.2], [2.0, 0.5], [3.0, 0.75]]
    assert set(target.get_ydata()) == {0.7}
    assert [handle.get_label() for handle in accuracy.handles([shown])] == [shown.lines[0].label, "target"]


def test_variants_of_a_strategy_are_told_apart(shown: accuracy.AccuracyPanel) -> None:
    (line,) = shown.lines
    other = line._replace(label="other", look=line.look._replace(fill="left"))
    drawn = accuracy.handles([shown._replace(lines=[line, other])])
    assert [handle.get_fillstyle() for handle in drawn[:2]] == ["full", "left"]
