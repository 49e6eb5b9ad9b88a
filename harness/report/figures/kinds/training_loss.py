"""Training loss over epochs, where no serial run shows which of the strategies is right."""

import pandas as pd

from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import tabulate_losses
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import Panel

SAME = 1e-3
"""Losses that differ by a smaller share in every epoch make one line, which says nothing."""


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the losses of all epochs if they differ between curves; None if the panel has a serial run."""
    losses = tabulate_losses(panel, tables.epochs)
    if losses is None or "serial" in set(losses.strategy):
        return None
    medians = losses.groupby(["epoch", "curve"]).loss.median().unstack()
    spread = (medians.max(axis=1) - medians.min(axis=1)) / medians.abs().max(axis=1)
    return losses if (spread > SAME).any() else None


LOSS = Scale("loss", "training loss", "number")


def describe_ends(frame: pd.DataFrame) -> str:
    """Name the range of the losses at the end of the lines."""
    last = frame[frame.epoch == frame.groupby("curve").epoch.transform("max")]
    low, high = map(LOSS.format_value, last.groupby("curve").loss.median().agg(["min", "max"]))
    return f"After {last.epoch.max():.0f} epochs: {low} to {high}"


KIND = FigureKind(
    "loss",
    "Training loss",
    "How fast does the training loss fall?",
    make_frame,
    Lines(Scale("epoch", "epoch"), LOSS),
    headline=describe_ends,
    best="loss",
    caption="""\
The training loss from the first epoch on, warm-up included, each strategy at its largest number of ranks. A line joins
the medians over launches, and the band is their range. Mini-batch strategies have batches of their own, so their losses
differ.""",
    place=111,
)
