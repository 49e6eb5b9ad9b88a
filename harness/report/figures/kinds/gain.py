"""Throughput relative to DistDGL-style mini-batches, which is how papers report the gain of a system."""

from functools import partial

import pandas as pd

from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import (
    CURVE_COLUMNS,
    LAUNCH_COLUMNS,
    add_notes,
    describe_first_rows,
    describe_grids,
    describe_median,
    sort_rows,
    tabulate_launches,
)
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Dots
from harness.report.figures.panels import (
    FAMILY,
    Curve,
    Panel,
    name_families,
    split_across_families,
    split_panels,
)
from harness.report.figures.placed_marks import find_printed_gains, place_among_gains

BASELINE = "distdgl"
"""The strategy that all others are compared with."""
THROUGHPUT = "vertices_per_second"
RATIO = Scale("ratio", f"throughput relative to {BASELINE}", "times")


def split_with_all_families(runs: pd.DataFrame) -> list[Panel]:
    """Split runs into panels of one family, followed by panels with full-graph and mini-batch strategies together."""
    return [*split_panels(runs), *split_across_families(runs)]


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the throughput of each launch relative to the baseline, at the most ranks that both have.

    A strategy of another family is compared with the baseline only if a paper prints the ratio. A printed ratio has a
    row even without a value of ours.
    """
    is_one_family = FAMILY in panel.values
    baselines = [curve for curve in panel.curves if curve.strategy == BASELINE]
    if not baselines or not (is_one_family or tables.marks):
        return None
    printed = find_printed_gains(panel, tables.marks, BASELINE)
    curves = [curve for curve in panel.curves if curve.strategy != BASELINE]
    if not is_one_family:
        families = panel.runs["strategy.name"].groupby(name_families(panel.runs)).agg(set)
        others = set().union(*(names for names in families if BASELINE not in names))
        printed = printed[printed.strategy.isin(others)]
        curves = [curve for curve in curves if curve.label in set(printed.curve)]
    frames = [
        frame
        for curve in curves
        for frame in (_divide(curve, baseline) for baseline in baselines if baseline.source == curve.source)
        if frame is not None
    ]
    unknown = printed[~printed.curve.isin({curve for rows in frames for curve in rows.curve})]
    if len(unknown):
        labels = unknown.curve + ", " + describe_grids(unknown)
        frames.append(unknown[[*CURVE_COLUMNS, *LAUNCH_COLUMNS]].assign(label=labels, ratio=float("nan")))
    if not frames:
        return None
    frame = sort_rows(
        pd.concat(frames, ignore_index=True).drop_duplicates(["label", "run_id"]), "ratio", ascending=False
    )
    return add_notes(frame, describe_median(RATIO, "no value of ours"))


def _divide(curve: Curve, baseline: Curve) -> pd.DataFrame | None:
    """Divide the throughputs of a curve by the median of the baseline, at the most ranks that both have."""
    ours, theirs = (
        each.summarize_launches("ranks", THROUGHPUT).set_index("ranks") for each in (curve, baseline)
    )
    common = ours.index.intersection(theirs.index)
    if common.empty:
        return None
    points, ranks = curve.points, common.max()
    launches = points[(points.ranks == ranks) & (points.grid == ours.grid[ranks])].dropna(subset=[THROUGHPUT])
    frame = tabulate_launches(curve, launches, THROUGHPUT)
    frame["ratio"] = frame[THROUGHPUT] / theirs.middle[ranks]
    return frame.assign(label=f"{curve.label}, " + describe_grids(launches))


KIND = FigureKind(
    "gain",
    f"Throughput relative to {BASELINE}",
    f"How many times the throughput of {BASELINE}-style mini-batches?",
    make_frame,
    Dots(RATIO, line=1.0),
    split_with_all_families,
    headline=describe_first_rows("Highest"),
    place_marks=partial(place_among_gains, column=RATIO.column, baseline=BASELINE),
    caption="""\
Throughput in vertices per second of each strategy relative to DistDGL-style mini-batches (distdgl) on the same graph,
model and machine, at the largest number of ranks that both have. A strategy on the right of the line at 1 is faster. A
marker is the ratio of the medians over launches with the same source, and small dots are launches.""",
    place=30,
)
