"""Predicted epoch times over measured or emulated ones, for runs that have both (Plexus's figure 5)."""

import pandas as pd

from harness.base.formatting import format_count, format_share
from harness.report.figures.axis_scales import Scale
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Points
from harness.report.figures.panels import EPOCH, VARIANT, Curve, Panel

JOIN_COLUMNS = [*VARIANT, "ranks", "grid"]
"""The columns that identify a run of a strategy within a panel."""
MIN_POINTS = 3
"""The fewest points for which an order of runs means anything."""
MEASURED, PREDICTED, AGREEMENT = "measured_seconds", "predicted_seconds", "agreement"


def make_frame(panel: Panel, _: Tables) -> pd.DataFrame | None:
    """Return a row for each configuration with both times; None if there are too few."""
    predicted = [curve for curve in panel.curves if curve.source == "predicted"]
    frames = [
        _median_by_grid(curve, MEASURED).merge(_median_by_grid(other, PREDICTED)[[*JOIN_COLUMNS, PREDICTED]])
        for curve in panel.curves
        if curve.source in ("measured", "emulated")
        for other in predicted
        if other.strategy == curve.strategy
    ]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if len(frame) < MIN_POINTS:
        return None
    ratio = frame[PREDICTED] / frame[MEASURED]
    return frame.drop(columns=VARIANT).assign(**{AGREEMENT: ratio.where(ratio < 1, 1 / ratio)})


def _median_by_grid(curve: Curve, name: str) -> pd.DataFrame:
    """Return the median epoch time of each configuration over launches, in a column of this name."""
    medians = curve.points.groupby(JOIN_COLUMNS, dropna=False)[EPOCH].median().rename(name).reset_index()
    return medians.dropna(subset=[name]).assign(
        curve=curve.label, strategy=curve.strategy, source=curve.source, status="ok"
    )


def assess_predictions(frame: pd.DataFrame) -> str:
    """Return the number of runs, Spearman's rank correlation and the median of the relative errors."""
    errors = (frame[PREDICTED] / frame[MEASURED] - 1).abs()
    order = frame[MEASURED].rank().corr(frame[PREDICTED].rank())
    return (
        f"{format_count(len(frame), 'run')}\nrank correlation {order:.2f}\n"
        f"median error {format_share(float(errors.median()))}"
    )


KIND = FigureKind(
    "prediction",
    "Predicted and measured epoch times",
    "How well are epoch times predicted?",
    make_frame,
    Points(
        Scale(MEASURED, "measured epoch time", "s", log=True),
        Scale(PREDICTED, "predicted epoch time", "s", log=True),
        equality=True,
        assess=assess_predictions,
    ),
    best=AGREEMENT,
    caption="""\
Predicted epoch time over measured epoch time. A marker is a configuration, at the median over launches. Hollow markers
are emulated: measured kernels with the links of the machine's card. Both times are equal on the solid line, and within
a factor of two between the dotted lines. The rank correlation (Spearman's) shows how well the order is predicted.
With many strategies, the worst predicted ones have colours.""",
    place=120,
)
