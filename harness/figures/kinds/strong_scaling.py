"""Strong scaling: the epoch time over the number of ranks, both axes logarithmic."""

from harness.figures.frames import tabulate_best_grids
from harness.figures.kind import FigureKind
from harness.figures.marks import Lines
from harness.figures.panels import EPOCH, split_with_graph_curves
from harness.figures.scales import RANKS, Scale

KIND = FigureKind(
    "strong-scaling",
    "Strong scaling",
    "How much faster is an epoch on more ranks?",
    lambda panel, _: tabulate_best_grids(panel, EPOCH),
    Lines(RANKS, Scale(EPOCH, "epoch time", "s", log=True), ideal=-1),
    split_with_graph_curves,
    best=EPOCH,
    caption="""\
A line joins the medians over launches on the fastest grid, the band is their range, and dots are launches. Dotted:
ideal scaling from the first measured point. Solid: measured; dashed: predicted; dash-dotted: emulated; hollow with a
line: other programs; hollow without one: printed values. Curves with a single number of ranks are left out.""",
    place=10,
)
