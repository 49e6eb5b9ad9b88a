"""The composition of the median epoch: seconds by phase, op and tensor, whose sum is the reported epoch time.

An epoch takes as long as its slowest rank, so the rows of the epoch are that rank's. The median of an odd number of
epochs is one epoch, and its rows are taken. The median of an even number is the mean of the two epochs in the middle,
and the rows are their mean. Launches are treated alike. No other choice of rows adds up to a median.
"""

from collections.abc import Mapping

import pandas as pd

from harness.ledger import Op, Phase

Frames = Mapping[str, pd.DataFrame]
"""The rows of a table, by run."""
KEY = ["phase", "op", "tensor"]
REST = (Phase.OTHER.value, Op.GLUE.value, "")


def of_launch(epochs: pd.DataFrame, ledger: pd.DataFrame) -> "pd.Series[float]":
    """Seconds by phase, op and tensor of one launch; their sum is its `statistics.median_epoch`.

    The time between two rows of the ledger counts as other.
    """
    timed = epochs[epochs.epoch >= 0]
    slowest = timed.loc[timed.groupby("epoch").seconds.idxmax()]
    middle = _middle(slowest.sort_values(["seconds", "epoch"]))
    rows = ledger.merge(middle[["epoch", "rank"]], on=["epoch", "rank"])
    sums = rows.groupby(KEY).seconds.sum() / len(middle)
    parts: dict[tuple[str, str, str], float] = dict(zip(sums.index, sums, strict=True))
    rest = middle.seconds.mean() - sum(parts.values())
    return _series({**parts, REST: parts.get(REST, 0.0) + rest})


def of_launches(runs: pd.DataFrame, epochs: Frames, ledgers: Frames) -> "pd.Series[float]":
    """Seconds by phase, op and tensor over launches of one configuration; the sum is the median of their epoch times.

    Tables are given by run id. All time of a launch without a ledger counts as other.
    """
    middle = _middle(runs.sort_values(["epoch_seconds_median", "run_id"]))
    parts = [
        of_launch(epochs[run], ledgers[run]) if run in epochs and run in ledgers else _series({REST: seconds})
        for run, seconds in zip(middle.run_id, middle.epoch_seconds_median, strict=True)
    ]
    keys = sorted({key for part in parts for key in part.index})
    return _series({key: sum(part.get(key, 0.0) for part in parts) / len(parts) for key in keys})


def _series(parts: dict[tuple[str, str, str], float]) -> "pd.Series[float]":
    index = pd.MultiIndex.from_tuples(list(parts), names=KEY)
    return pd.Series(list(parts.values()), index=index, name="seconds", dtype=float)


def _middle(ordered: pd.DataFrame) -> pd.DataFrame:
    """The row in the middle, or the two rows in the middle."""
    n = len(ordered)
    return ordered.iloc[(n - 1) // 2 : n // 2 + 1]
