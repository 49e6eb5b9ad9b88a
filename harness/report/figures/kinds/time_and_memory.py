"""Epoch time over memory, with the front of curves to which no other is superior in both."""

import pandas as pd

from harness.report.figures.axis_scales import Scale, scale_of
from harness.report.figures.frames import has_differences, tabulate_largest_ranks
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Points
from harness.report.figures.panels import EPOCH, Panel
from harness.results.statistics import find_persistent_bytes

MEMORY, FRONT = "persistent_bytes", "on_front"


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the launches of each measured curve with epoch time and memory; None if all need the same memory."""
    held = panel.launches.run_id.map(find_persistent_bytes(tables.memory.rows))
    known = panel.launches.assign(**{MEMORY: held}).dropna(subset=[MEMORY])
    frame = tabulate_largest_ranks(known, EPOCH, MEMORY)
    if frame is None:
        return None
    frame = frame[frame[EPOCH].notna() & (frame[MEMORY] > 0)].drop(columns="failures")
    if not has_differences(frame, MEMORY):
        return None
    medians = frame.groupby("curve")[[MEMORY, EPOCH]].median().sort_values([MEMORY, EPOCH])
    front = medians.index[medians[EPOCH] < medians[EPOCH].cummin().shift(fill_value=float("inf"))]
    return frame.assign(**{FRONT: frame.curve.isin(front)})


HELD, SECONDS = Scale(MEMORY, "memory per rank", "B", log=True), scale_of(EPOCH, log=True)


def describe_ends_of_front(frame: pd.DataFrame) -> str:
    """Name the curves with the least memory and with the shortest epoch."""
    medians = frame.groupby("label")[[MEMORY, EPOCH]].median()
    least, shortest = medians[MEMORY].idxmin(), medians[EPOCH].idxmin()
    return (
        f"Least memory: {least} ({HELD.format_value(medians[MEMORY].min())}); "
        f"shortest epoch: {shortest} ({SECONDS.format_value(medians[EPOCH].min())})"
    )


KIND = FigureKind(
    "memory",
    "Time and memory",
    "Which strategies are fast with little memory?",
    make_frame,
    Points(HELD, SECONDS, front=FRONT),
    headline=describe_ends_of_front,
    best=EPOCH,
    caption="""\
Epoch time over the memory that the rank with the most holds between epochs: graph, features, weights and labels. Each
curve is at its largest number of ranks, on its fastest grid. A marker is the median over launches, and small dots are
launches. The stepped line joins the curves to which no other is superior in both.""",
    place=70,
)
