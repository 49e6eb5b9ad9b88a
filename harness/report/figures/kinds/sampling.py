"""Breakdown of sampling: computation and communication of each step (figure 5 of bulk sampling)."""

import pandas as pd

from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.kinds.breakdown import (
    IDEAL_TIME,
    SECONDS,
    Breakdown,
    describe_largest_part,
    split_by_ranks,
)
from harness.report.figures.marks import Bars
from harness.report.figures.operation_groups import sampling_step_of
from harness.report.figures.palette import STEPS
from harness.report.figures.panels import Panel

STEPS_OF_SAMPLING = Breakdown(STEPS, sampling_step_of)


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the parts of each bar of curves that sample; None if no curve does."""
    frame = STEPS_OF_SAMPLING.make_frame(panel, tables)
    return None if frame is None else frame[frame.total > 0].reset_index(drop=True)


KIND = FigureKind(
    "sampling",
    "Breakdown of sampling time",
    "Where does the time of sampling go?",
    make_frame,
    Bars(SECONDS._replace(label="sampling time in the median epoch"), STEPS, reference=IDEAL_TIME),
    split_by_ranks,
    headline=describe_largest_part,
    caption="""\
Seconds that each step of sampling takes in an epoch: computing the distributions, drawing from them, and extracting
the drawn rows and columns. Blue: computation. Red, orange and yellow: communication, including the wait for other
ranks. Tick: the ideal time, which is the shortest measured sampling time of one rank divided by the number of
ranks.""",
    place=50,
)
