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


KIND = FigureKind(
    "loss",
    "Training loss",
    "How fast does the training loss fall?",
    make_frame,
    Lines(Scale("epoch", "epoch"), Scale("loss", "training loss", "number")),
    best="loss",
    caption="""\
The training loss from the first epoch on, warm-up included, each strategy at its largest number of ranks. A line joins
the medians over launches, and the band is their range. Mini-batch strategies have batches of their own, so their losses
differ.""",
    place=111,
)
