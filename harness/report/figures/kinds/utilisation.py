"""Utilisation of ranks over time: the share of each window that was spent computing (G3's figure 13)."""

import pandas as pd

from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import CURVE_COLUMNS, LAUNCH_COLUMNS, select_largest_ranks
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Strips
from harness.report.figures.panels import Panel

SHOWN_SECONDS = 5.0


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the windows of the first launch of each curve at its largest number of ranks, busiest curves first."""
    frames = []
    for _, run in select_largest_ranks(panel.launches).drop_duplicates("curve").iterrows():
        windows = tables.utilisation.get(run.run_id)
        if windows is not None and len(busy := average_ranks(windows)):
            mean = (busy.computing * busy.seconds).sum() / busy.seconds.sum()
            shown = busy[busy.begin < SHOWN_SECONDS].reset_index(drop=True)
            frames.append(shown.assign(**run[[*CURVE_COLUMNS, *LAUNCH_COLUMNS]], mean=mean))
    if not frames:
        return None
    frame = pd.concat(frames).sort_values(["mean"], ascending=False, kind="stable", ignore_index=True)
    return frame if frame.computing.nunique() > 1 else None


def average_ranks(windows: pd.DataFrame) -> pd.DataFrame:
    """Return the beginning, length and computing share of each window of the timed epochs, averaged over ranks."""
    timed = windows[windows.epoch >= 0]
    share = (timed.device_percent / 100).fillna(timed.computing_seconds / timed.seconds)
    groups = timed.assign(share=share).groupby(["epoch", "window"])
    each = groups.agg(seconds=("seconds", "max"), computing=("share", "mean"))
    return each.assign(begin=each.seconds.cumsum() - each.seconds)


KIND = FigureKind(
    "utilisation",
    "Utilisation of ranks",
    "How much of the time do ranks compute?",
    make_frame,
    Strips(Scale("begin", "time", "s"), Scale("computing", "computing", "%"), "seconds", "mean"),
    caption="""\
The share of each window spent computing, averaged over ranks, in the first five seconds of timed epochs, each strategy
at its largest number of ranks. If the driver of a GPU reports its utilisation, the figure shows that instead. On the
right is the mean over all timed epochs. A run has windows if its spec sets `measure.utilisation_ms`.""",
    place=60,
)
