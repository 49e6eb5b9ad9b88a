"""Time to the target accuracy over the number of ranks, with the times that papers print."""

import pandas as pd

from harness.report.figures.axis_scales import RANKS, scale_of
from harness.report.figures.frames import tabulate_best_grids
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import TARGET, Panel, split_across_families


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return the launches that reached the target, of curves that did so on several numbers of ranks."""
    return tabulate_best_grids(panel.launches.dropna(subset=[TARGET]), TARGET)


KIND = FigureKind(
    "time-to-target",
    "Time to the target accuracy",
    "How long does it take to reach the target accuracy?",
    make_frame,
    Lines(RANKS, scale_of(TARGET, log=True)),
    split_across_families,
    best=TARGET,
    caption="""\
Training time until the accuracy on test vertices reaches the target, without the time of evaluations. A line joins the
medians over the launches that reached it on the fastest grid, and the band is their range. Strategies with a single
number of ranks are left out.""",
    place=90,
)
