"""Parallel efficiency: how much of the ideal speedup is left on more ranks."""

import pandas as pd

from harness.report.figures.axis_scales import RANKS, Scale
from harness.report.figures.frames import describe_last_points, tabulate_best_grids
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import EPOCH, Panel, split_with_graph_curves

SOURCES = ("measured", "emulated", "predicted")


FEWEST_POINTS = 3
"""The fewest numbers of ranks without shared cores that a curve needs."""
EFFICIENCY = Scale("efficiency", "parallel efficiency", "%", zero=True)


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return the efficiency of each launch: the rank-seconds of an epoch on the fewest ranks, over its own."""
    launches = tabulate_best_grids(panel.launches, EPOCH)
    if launches is None:
        return None
    done = launches[(launches.status == "ok") & launches.source.isin(SOURCES)]
    unshared = done.ranks.where(~done.shared_cores).groupby(done.curve).transform("nunique")
    done = done[unshared >= FEWEST_POINTS]
    if done.empty:
        return None
    done = done.assign(ideal=1.0, rank_seconds=done.ranks * done[EPOCH])
    fewest = done.ranks == done.groupby("curve").ranks.transform("min")
    first = done[fewest].groupby("curve").rank_seconds.median()
    return done.assign(efficiency=done.curve.map(first) / done.rank_seconds)


KIND = FigureKind(
    "efficiency",
    "Parallel efficiency",
    "How much of the added ranks is put to use?",
    make_frame,
    Lines(RANKS, EFFICIENCY, reference="ideal"),
    split_with_graph_curves,
    headline=describe_last_points("ranks", EFFICIENCY, "Highest at the most ranks"),
    best=EPOCH,
    caption="""\
The time of an epoch on the fewest ranks of a curve times their number, divided by the time times the number of ranks.
Each curve starts at 100 %, so compare slopes, and compare times in the figure of strong scaling. A line joins the
medians over launches on the fastest grid, and the band is their range. A curve has three numbers of ranks or more that
do not share cores. Dotted background: ranks shared cores, so the efficiency does not measure scaling.""",
    place=15,
)
