"""Strong scaling: the epoch time over the number of ranks, both axes logarithmic."""

from functools import partial

import pandas as pd

from harness.base.formatting import format_three_digits
from harness.report.figures.axis_scales import RANKS, scale_of
from harness.report.figures.frames import add_serial_reference, tabulate_best_grids
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import EPOCH, Panel, split_with_graph_curves
from harness.report.figures.placed_marks import OVER_RANKS, place_among_times


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return the launches of the curves with several numbers of ranks, and the epoch time of serial training."""
    return add_serial_reference(panel.launches, tabulate_best_grids(panel.launches, EPOCH), EPOCH)


def describe_fastest_line(frame: pd.DataFrame) -> str:
    """Say how much faster the curve with the shortest epoch is on its best number of ranks than on its fewest."""
    done = frame[(frame.status == "ok") & frame[EPOCH].notna()]
    if done.empty:
        return ""
    curve = done.groupby("curve")[EPOCH].min().idxmin()
    line = done[done.curve == curve].groupby("ranks")[EPOCH].median()
    fewest, ranks = line.index.min(), line.index[int(line.argmin())]
    if ranks != fewest:
        ratio = format_three_digits(line[fewest] / line[ranks])
        return f"{curve}: {ratio} times as fast on {ranks} ranks as on {fewest}"
    following = line.index[line.index > fewest].min()
    ratio = format_three_digits(line[following] / line[fewest])
    return f"{curve}: {ratio} times as long on {following} ranks as on {fewest}"


KIND = FigureKind(
    "strong-scaling",
    "Strong scaling",
    "How much faster is an epoch on more ranks?",
    make_frame,
    Lines(RANKS, scale_of(EPOCH, log=True), ideal=-1, reference="serial"),
    split_with_graph_curves,
    headline=describe_fastest_line,
    best=EPOCH,
    place_marks=partial(place_among_times, column=EPOCH, kinds=OVER_RANKS),
    caption="""\
A line joins the medians over launches on the fastest grid, the band is their range, and dots are launches. Markers
that would coincide are shifted sideways. Dotted: ideal scaling from the first measured point. Horizontal line: serial
training on one rank. Dotted background: ranks shared cores, so the times do not measure scaling. Crossed-out markers
at the top: runs that did not finish. Strategies with a single number of ranks are left out.""",
    place=10,
)
