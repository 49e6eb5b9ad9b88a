"""Agreement with serial training: the difference of the training loss, epoch by epoch.

Exact strategies stay within rounding. Approximations, such as stale or sampled neighbours, lie far above it.
"""

import numpy as np
import pandas as pd

from harness.base.formatting import format_three_digits
from harness.report.figures.axis_scales import Scale
from harness.report.figures.frames import tabulate_losses
from harness.report.figures.kind import FigureKind, Tables
from harness.report.figures.marks import Lines
from harness.report.figures.panels import Panel

SAME_TRAINING = ["seed", "training.optimizer", "training.lr", "training.weight_decay", "training.features"]
"""The settings in which a run and the serial run agree."""


def make_frame(panel: Panel, tables: Tables) -> pd.DataFrame | None:
    """Return the difference to the loss of serial training for every epoch of the other curves."""
    losses = tabulate_losses(panel, tables.epochs, *SAME_TRAINING, "precision")
    if losses is None or "serial" not in set(losses.strategy):
        return None
    key = [*SAME_TRAINING, "epoch"]
    serial = losses[losses.strategy == "serial"].drop_duplicates(key)[[*key, "loss"]]
    rows = losses[losses.strategy != "serial"].merge(serial, on=key, suffixes=("", "_of_serial"))
    difference = (rows.loss - rows.loss_of_serial).abs()
    if not difference.any():
        return None
    rounding = rows.precision.map(lambda name: float(np.finfo(name).eps)) * serial.loss.abs().median()
    shown = difference.clip(lower=rounding / 10)
    return rows.drop(columns=[*SAME_TRAINING, "precision"]).assign(
        difference=shown, rounding=rounding, agreeing_digits=-np.log10(shown / rows.loss_of_serial.abs())
    )


def describe_largest_difference(frame: pd.DataFrame) -> str:
    """Compare the largest difference with the rounding."""
    multiples = (frame.difference / frame.rounding).groupby(frame.curve).max()
    return f"Largest: {format_three_digits(multiples.max())} times the rounding ({multiples.idxmax()})"


KIND = FigureKind(
    "agreement",
    "Agreement with serial training",
    "Which strategies compute what serial training computes?",
    make_frame,
    Lines(
        Scale("epoch", "epoch"),
        Scale("difference", "|loss - serial loss|", "number", log=True),
        reference="rounding",
    ),
    headline=describe_largest_difference,
    best="agreeing_digits",
    caption="""\
The difference of the training loss to that of serial training with the same seed and settings, from the first epoch
on, each strategy at its largest number of ranks. A line joins the medians over launches. Horizontal line: the rounding
of one operation in the precision of the runs, which exact strategies stay close to. Differences below a tenth of the
rounding, such as 0, are drawn there.""",
    place=110,
)
