"""Throughput over the depth of the model or the width of its features, as in G3.

Over ranks it would be the inverse of strong scaling, so there is no such figure.
"""

from dataclasses import replace
from functools import partial

import pandas as pd

from harness.report.figures.axis_scales import Scale, scale_of
from harness.report.figures.frames import tabulate_launches
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import EPOCH, Panel, join_variants, split_panels
from harness.spec.dataset import strip_width

COLUMN = "vertices_per_second"
THROUGHPUT = scale_of(COLUMN, log=True)
CAPTION = """\
Vertices per second of all ranks together, at the largest number of ranks of each strategy. A line joins the medians
over launches on the fastest grid, and the band is their range. Setup and compilation are excluded."""


def split_across_depths(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels. Runs that differ only in the number of layers share a panel."""
    return split_panels(runs, ignore=("model.layers",))


def split_across_widths(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels. Runs on twins of a graph that differ only in the width of features share a panel."""
    return split_panels(runs.assign(**{"dataset.name": runs["dataset.name"].map(strip_width)}))


def tabulate_throughputs(panel: Panel, _: Tables, size: str, name: str) -> pd.DataFrame | None:
    """Return the launches of curves over several sizes, at their largest number of ranks and on their best grid."""
    if panel.runs[size].nunique() < 2:
        return None
    curves = []
    for curve in panel.curves:
        done = curve.points.dropna(subset=[COLUMN, size])
        curves.append(replace(curve, runs=done[done.ranks == done.ranks.max()]))
    frames = []
    for curve in join_variants([curve for curve in curves if len(curve.runs)], size, name):
        best = curve.summarize_launches(size, COLUMN)[[size, "grid"]]
        frame = tabulate_launches(curve, curve.points.merge(best), size, COLUMN, EPOCH)
        if frame[size].nunique() > 1:
            frames.append(frame.astype({size: int}).rename(columns={size: name}))
    return pd.concat(frames, ignore_index=True) if frames else None


DEPTH_KIND = FigureKind(
    "throughput-depth",
    "Throughput over depth",
    "How does throughput change with the number of layers?",
    partial(tabulate_throughputs, size="model.layers", name="layers"),
    Lines(Scale("layers", "layers", log=True), THROUGHPUT),
    split_across_depths,
    best=EPOCH,
    caption=CAPTION,
    place=20,
)
WIDTH_KIND = FigureKind(
    "throughput-width",
    "Throughput over feature width",
    "How does throughput change with the number of features?",
    partial(tabulate_throughputs, size="graph.features", name="features"),
    Lines(Scale("features", "features", log=True), THROUGHPUT),
    split_across_widths,
    best=EPOCH,
    caption=CAPTION,
    place=21,
)
