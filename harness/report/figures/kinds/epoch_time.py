"""Epoch time of every curve at its largest number of ranks, from the fastest to the slowest."""

import json
from functools import partial

import pandas as pd

from harness.report.figures.axis_scales import scale_of
from harness.report.figures.frames import (
    add_notes,
    describe_first_rows,
    describe_median,
    sort_rows,
    tabulate_largest_ranks,
)
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Dots
from harness.report.figures.panels import EPOCH, Panel
from harness.report.figures.placed_marks import IN_ROWS, place_among_times

SECONDS = scale_of(EPOCH)


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return the launches of each curve, and the interval of predictions; None for a single curve."""
    frame = tabulate_largest_ranks(panel.launches, EPOCH, "extra")
    if frame is None or frame.dropna(subset=[EPOCH]).curve.nunique() < 2:
        return None
    extras = [json.loads(text) if text else {} for text in frame.pop("extra")]
    for end in ("low", "high"):
        frame[end] = pd.Series([extra.get(f"predicted.seconds.{end}") for extra in extras], dtype=float)
    return add_notes(sort_rows(frame, EPOCH), describe_median(SECONDS))


KIND = FigureKind(
    "epoch-time",
    "Epoch time",
    "Which strategy is fastest here?",
    make_frame,
    Dots(SECONDS),
    headline=describe_first_rows("Shortest"),
    place_marks=partial(place_among_times, column=EPOCH, kinds=IN_ROWS),
    caption="""\
Each curve at its largest number of ranks, on its fastest grid, sorted by epoch time. A marker is the median over
launches, and small dots are launches. A line is the range of launches, or the interval of a prediction. Hollow
markers are values of other programs or printed in papers. On the right: the median, and runs on more ranks that did
not finish.""",
    place=5,
)
