"""Splits the median epoch into seconds by phase, op and tensor, whose sum is the reported epoch time.

An epoch takes as long as its slowest rank, so the rows of that rank are used. The median of an odd number of epochs is
one epoch, and its rows are used. The median of an even number of epochs is the mean of the middle two, and so are the
rows. The same holds for launches. Other choices of rows would not add up to the median.
"""

from collections.abc import Mapping

import pandas as pd

from harness.ledger import Op, Phase

Frames = Mapping[str, pd.DataFrame]
"""The rows of a table by run id."""
KEY = ["phase", "op", "tensor"]
Parts = dict[tuple[str, str, str], float]
"""Seconds by phase, op and tensor."""
REST = (Phase.OTHER.value, Op.GLUE.value, "")
"""The key of time outside the rows of the ledger."""


def find_middle_epochs(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the middle timed epoch of each run, or the middle two, each with the time of its slowest rank."""
    timed = epochs.loc[epochs.epoch >= 0, ["run_id", "epoch", "rank_id", "seconds"]]
    slowest = timed.sort_values("seconds", ascending=False, kind="stable")
    ordered = slowest.drop_duplicates(["run_id", "epoch"]).sort_values(["run_id", "seconds", "epoch"])
    runs = ordered.groupby("run_id").run_id
    place, number = runs.cumcount(), runs.transform("size")
    return ordered[(place >= (number - 1) // 2) & (place <= number // 2)]


def split_epochs(epochs: pd.DataFrame, ledger: pd.DataFrame) -> dict[str, Parts]:
    """Split the median epoch of each launch that has rows in both tables.

    The sum of a launch is its `run_summary.compute_median_epoch`. Time outside the rows of the ledger counts as other.
    """
    middle = find_middle_epochs(epochs)
    middle = middle[middle.run_id.isin(ledger.run_id.unique())]
    whole, number = (middle.groupby("run_id").seconds.agg(name).to_dict() for name in ("mean", "size"))
    rows = ledger[["run_id", "epoch", "rank_id", *KEY, "seconds"]].merge(middle.drop(columns="seconds"))
    parts: dict[str, Parts] = {str(run): {} for run in whole}
    for run, phase, op, tensor, seconds in zip(
        *(rows[name] for name in ("run_id", *KEY, "seconds")), strict=True
    ):
        own = parts[run]
        own[phase, op, tensor] = own.get((phase, op, tensor), 0.0) + seconds / number[run]
    for run, own in parts.items():
        own[REST] = own.get(REST, 0.0) + whole[run] - sum(own.values())
    return parts


def split_launch(epochs: pd.DataFrame, ledger: pd.DataFrame) -> Parts:
    """Split the median epoch of one launch; empty without timed epochs."""
    return split_epochs(epochs.assign(run_id=""), ledger.assign(run_id="")).get("", {})


def split_launches(launches: pd.DataFrame, parts: Mapping[str, Parts]) -> Parts:
    """Split the median epoch time over the launches of one configuration. The sum is that median.

    `parts` is what `split_epochs` returns. For a launch without parts, all time counts as other.
    """
    ordered = sorted(zip(launches.epoch_seconds_median, launches.run_id, strict=True))
    middle = [parts.get(run, {REST: seconds}) for seconds, run in _take_middle(ordered)]
    keys = sorted({key for some in middle for key in some})
    return {key: sum(some.get(key, 0.0) for some in middle) / len(middle) for key in keys}


def _take_middle(ordered: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the middle entry, or the middle two."""
    return ordered[max(len(ordered) - 1, 0) // 2 : len(ordered) // 2 + 1]
