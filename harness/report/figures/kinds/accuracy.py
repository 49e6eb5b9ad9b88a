"""Test accuracy over training time, which makes strategies comparable whose epochs differ."""

import pandas as pd

from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import describe_last_points, tabulate_run_tables
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import Panel, split_across_families

FEWEST_EVALUATIONS = 3
"""A line of fewer evaluations shows no course."""
ACCURACY = Scale("accuracy", "test accuracy", "%")


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the evaluations on test vertices of every curve at its largest number of ranks, and the target."""
    runs = tabulate_run_tables(panel, tables.accuracy, "training.target")
    if runs is None:
        return None
    rows = runs[runs.split == "test"].dropna(subset=["accuracy"]).sort_values(["epoch"], kind="stable")
    target = rows["training.target"].where(rows["training.target"] > 0)
    columns = [
        "curve",
        "strategy",
        "source",
        "status",
        "ranks",
        "run_id",
        "epoch",
        "train_seconds",
        "accuracy",
    ]
    long = rows.groupby("run_id").epoch.transform("size") >= FEWEST_EVALUATIONS
    return rows[columns].assign(target=target, test_error=1 - rows.accuracy)[long]


KIND = FigureKind(
    "accuracy",
    "Test accuracy over training time",
    "Which strategy reaches a higher accuracy sooner?",
    make_frame,
    Lines(
        Scale("train_seconds", "training time", "s"),
        ACCURACY,
        reference="target",
        each_run=True,
    ),
    split_across_families,
    headline=describe_last_points("train_seconds", ACCURACY, "Highest at the end"),
    best="test_error",
    caption="""\
Each line is a run of a strategy at its largest number of ranks, and each marker an evaluation on the full graph. The
time excludes evaluations and setup. Horizontal line: the target accuracy, at which runs stop.""",
    place=100,
)
