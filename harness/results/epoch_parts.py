"""The composition of the median epoch: seconds by phase, op and tensor, whose sum is the reported epoch time.

An epoch takes as long as its slowest rank, so the rows of the epoch are that rank's. The median of an odd number of
epochs is one epoch, and its rows are taken. The median of an even number is the mean of the two epochs in the middle,
and the rows are their mean. Launches are treated alike. No other choice of rows adds up to a median.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.ledger import Op, Phase

Frames = Mapping[str, pd.DataFrame]
"""The rows of a table, by run."""
KEY = ["phase", "op", "tensor"]
Parts = dict[tuple[str, str, str], float]
"""Seconds by phase, op and tensor."""
REST = (Phase.OTHER.value, Op.GLUE.value, "")


class TimedEpoch(NamedTuple):
    """One epoch of one rank."""

    epoch: int
    rank: int
    seconds: float


def middle_epochs(epochs: pd.DataFrame) -> list[TimedEpoch]:
    """The timed epoch in the middle on its slowest rank, or the two in the middle."""
    slowest: dict[int, TimedEpoch] = {}
    columns = (epochs[name].tolist() for name in TimedEpoch._fields)
    for each in map(TimedEpoch._make, zip(*columns, strict=True)):
        if each.epoch >= 0 and (each.epoch not in slowest or each.seconds > slowest[each.epoch].seconds):
            slowest[each.epoch] = each
    ordered = sorted(slowest.values(), key=lambda each: (each.seconds, each.epoch))
    return ordered[max(len(ordered) - 1, 0) // 2 : len(ordered) // 2 + 1]


def columns_of(frame: pd.DataFrame, names: Sequence[str], rows: np.ndarray[Any, Any]) -> Iterator[list[Any]]:
    """Return the values of some columns at these rows. Taking rows of a frame would copy all of its columns."""
    return (frame[name].array.take(rows).tolist() for name in names)


def of_launch(epochs: pd.DataFrame, ledger: pd.DataFrame) -> Parts:
    """Seconds by phase, op and tensor of one launch; their sum is its `statistics.median_epoch`.

    The time between two rows of the ledger counts as other.
    """
    middle = middle_epochs(epochs)
    epoch, rank = ledger.epoch.to_numpy(), ledger["rank"].to_numpy()
    chosen = np.zeros(len(ledger), dtype=bool)
    for each in middle:
        chosen |= (epoch == each.epoch) & (rank == each.rank)
    parts: Parts = {}
    for *key, seconds in zip(*columns_of(ledger, [*KEY, "seconds"], np.flatnonzero(chosen)), strict=True):
        phase, op, tensor = key
        parts[phase, op, tensor] = parts.get((phase, op, tensor), 0.0) + seconds / len(middle)
    whole = sum(each.seconds for each in middle) / len(middle) if middle else math.nan
    parts[REST] = parts.get(REST, 0.0) + whole - sum(parts.values())
    return parts


def of_launches(runs: pd.DataFrame, epochs: Frames, ledgers: Frames) -> Parts:
    """Seconds by phase, op and tensor over launches of one configuration; the sum is the median of their epoch times.

    Tables are given by run id. All time of a launch without a ledger counts as other.
    """
    ordered = runs[["epoch_seconds_median", "run_id"]].sort_values(["epoch_seconds_median", "run_id"])
    middle = _middle(ordered)
    parts = [
        of_launch(epochs[run], ledgers[run]) if run in epochs and run in ledgers else {REST: seconds}
        for seconds, run in middle.itertuples(index=False)
    ]
    keys = sorted({key for some in parts for key in some})
    return {key: sum(some.get(key, 0.0) for some in parts) / len(parts) for key in keys}


def _middle(ordered: pd.DataFrame) -> pd.DataFrame:
    """The row in the middle, or the two rows in the middle."""
    n = len(ordered)
    return ordered.iloc[(n - 1) // 2 : n // 2 + 1]
