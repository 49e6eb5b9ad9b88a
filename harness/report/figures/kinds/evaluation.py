"""Best test accuracy of each curve, and the training time until the target accuracy."""

import pandas as pd

from harness.report.figures.axis_scales import Scale, scale_of
from harness.report.figures.frames import (
    add_notes,
    describe_first_rows,
    describe_median,
    has_differences,
    sort_rows,
    tabulate_largest_ranks,
)
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Dots
from harness.report.figures.panels import TARGET, Panel, split_across_families

ACCURACY = "best_accuracy"
BEST, SECONDS = Scale(ACCURACY, "best test accuracy", "%"), scale_of(TARGET)


def make_accuracy_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the best accuracy of each launch, or the one that a paper or log gives; None if all are equal."""
    done = panel.launches[panel.launches.status == "ok"]
    tested = tables.accuracy.rows[tables.accuracy.rows.split == "test"]
    best = done.run_id.map(tested.groupby("run_id").accuracy.max()).fillna(done.accuracy_test)
    frame = tabulate_largest_ranks(done.assign(accuracy_test=best), "accuracy_test", "evaluation_seconds")
    if frame is None or not has_differences(frame, "accuracy_test"):
        return None
    frame = frame.rename(columns={"accuracy_test": ACCURACY})
    return add_notes(
        sort_rows(frame, ACCURACY, ascending=False), lambda rows: f"{100 * rows[ACCURACY].median():.1f} %"
    )


def make_target_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return the time to the target of each launch, and the runs that did not reach it; None if none did."""
    launches = panel.launches
    wanted = launches[(launches["training.target"] > 0) | launches[TARGET].notna()]
    frame = tabulate_largest_ranks(wanted, TARGET, keep_unknown=True)
    if frame is None or frame[TARGET].isna().all() or frame.label.nunique() < 2:
        return None
    return add_notes(sort_rows(frame, TARGET), describe_median(SECONDS, "not reached"))


ACCURACY_KIND = FigureKind(
    "evaluation",
    "Best test accuracy",
    "Which strategy is most accurate?",
    make_accuracy_frame,
    Dots(BEST),
    split_across_families,
    headline=describe_first_rows("Highest"),
    caption="""\
The best test accuracy over all evaluations, for each curve at its largest number of ranks, sorted. A marker is the
median over launches, small dots are launches, and a line is their range. Hollow markers are values of other programs
or printed in papers.""",
    place=80,
)
TARGET_KIND = FigureKind(
    "target",
    "First to the target accuracy",
    "Which strategy reaches the target accuracy first?",
    make_target_frame,
    Dots(SECONDS),
    split_across_families,
    headline=describe_first_rows("First"),
    caption="""\
Training time until an evaluation reached the target accuracy on test vertices, for each curve at its largest number of
ranks, sorted. Evaluations and setup are excluded. A marker is the median over launches, small dots are launches, and a
line is their range. Hollow markers are values of other programs or printed in papers.""",
    place=85,
)
