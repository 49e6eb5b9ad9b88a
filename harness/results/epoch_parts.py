"""Splits the median epoch into seconds by phase, op and tensor, whose sum is the reported epoch time.

An epoch takes as long as its slowest rank, so the rows of that rank are used. The median of an odd number of epochs is
one epoch, and its rows are used. The median of an even number of epochs is the mean of the middle two, and so are the
rows. The same holds for launches. Other choices of rows would not add up to the median.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.ledger import Op, Phase

Frames = Mapping[str, pd.DataFrame]
"""The rows of a table by run id."""
KEY = ["phase", "op", "tensor"]
Parts = dict[tuple[str, str, str], float]
"""Seconds by phase, op and tensor."""
REST = (Phase.OTHER.value, Op.GLUE.value, "")


class TimedEpoch(NamedTuple):
    """The time of one epoch on one rank."""

    epoch: int
    rank_id: int
    seconds: float


def find_middle_epochs(epochs: pd.DataFrame) -> list[TimedEpoch]:
    """Return the middle timed epoch, or the middle two, each with the time of its slowest rank."""
    slowest: dict[int, TimedEpoch] = {}
    columns = (epochs[name].tolist() for name in TimedEpoch._fields)
    for each in map(TimedEpoch._make, zip(*columns, strict=True)):
        if each.epoch >= 0 and (each.epoch not in slowest or each.seconds > slowest[each.epoch].seconds):
            slowest[each.epoch] = each
    ordered = sorted(slowest.values(), key=lambda each: (each.seconds, each.epoch))
    return ordered[max(len(ordered) - 1, 0) // 2 : len(ordered) // 2 + 1]


def take_columns(
    frame: pd.DataFrame, names: Sequence[str], rows: np.ndarray[Any, Any]
) -> Iterator[list[Any]]:
    """Yield the values of columns at these rows. Indexing the frame would copy all of its columns."""
    return (frame[name].array.take(rows).tolist() for name in names)


def split_launch(epochs: pd.DataFrame, ledger: pd.DataFrame) -> Parts:
    """Split the median epoch of one launch. The sum is its `statistics.compute_median_epoch`.

    Time outside the rows of the ledger counts as other.
    """
    middle = find_middle_epochs(epochs)
    epoch, rank = ledger.epoch.to_numpy(), ledger.rank_id.to_numpy()
    chosen = np.zeros(len(ledger), dtype=bool)
    for each in middle:
        chosen |= (epoch == each.epoch) & (rank == each.rank_id)
    parts: Parts = {}
    for *key, seconds in zip(*take_columns(ledger, [*KEY, "seconds"], np.flatnonzero(chosen)), strict=True):
        phase, op, tensor = key
        parts[phase, op, tensor] = parts.get((phase, op, tensor), 0.0) + seconds / len(middle)
    total = sum(each.seconds for each in middle) / len(middle) if middle else math.nan
    parts[REST] = parts.get(REST, 0.0) + total - sum(parts.values())
    return parts


def split_launches(runs: pd.DataFrame, epochs: Frames, ledgers: Frames) -> Parts:
    """Split the median epoch time over the launches of one configuration. The sum is that median.

    For a launch without a ledger, all time counts as other.
    """
    ordered = runs[["epoch_seconds_median", "run_id"]].sort_values(["epoch_seconds_median", "run_id"])
    middle = _take_middle(ordered)
    parts = [
        split_launch(epochs[run], ledgers[run]) if run in epochs and run in ledgers else {REST: seconds}
        for seconds, run in middle.itertuples(index=False)
    ]
    keys = sorted({key for some in parts for key in some})
    return {key: sum(some.get(key, 0.0) for some in parts) / len(parts) for key in keys}


def _take_middle(ordered: pd.DataFrame) -> pd.DataFrame:
    """Return the middle row, or the middle two."""
    n = len(ordered)
    return ordered.iloc[(n - 1) // 2 : n // 2 + 1]
