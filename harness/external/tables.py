"""What a log says, as our tables. Where a run of ours has epochs, a log has means over all that went before."""

from math import isfinite
from typing import Any

import pandas as pd

from harness.external.log import Line, Log
from harness.ledger import NOBODY, Amounts, AxisName, Direction, Key, Op, Phase, TensorName
from harness.run.tables import entry

EXCHANGE = Key(Phase.CONVOLVE, NOBODY, Direction.FORWARD, Op.ALL_TO_ALL, AxisName.P, tensor=TensorName.H)
REDUCTION = Key(Phase.SYNC, NOBODY, Direction.BACKWARD, Op.ALL_REDUCE, AxisName.P, tensor=TensorName.DW)
REST = Key(Phase.OTHER, NOBODY, Direction.FORWARD)


def tables(log: Log) -> dict[str, pd.DataFrame]:
    """Everything in it that has a column."""
    rows = {
        "epochs": [
            {"epoch": line.epoch, "rank": line.rank, "seconds": line.seconds, "loss": line.loss}
            for line in log.lines
        ],
        "ledger": [row for line in log.lines if isfinite(line.seconds) for row in _ledger(line)],
        "accuracy": [
            {
                "epoch": epoch,
                "train_seconds": _trained(log, epoch),
                "eval_seconds": None,
                "split": split,
                "accuracy": share,
            }
            for epoch, split, share in log.accuracies
        ],
        "memory": [
            {
                "rank": rank,
                "host_peak_bytes": 0,
                "device_peak_bytes": peak,
                "persistent_bytes": 0,
                "tensor": "",
            }
            for rank, peak in log.device_peaks.items()
        ],
    }
    return {name: pd.DataFrame(each) for name, each in rows.items()}


def summary(log: Log, vertices: int | None) -> dict[str, Any]:
    """Of a whole log: the last mean of its slowest process is its epoch time."""
    seconds = max(line.seconds for line in log.last.values())
    known = isfinite(seconds)
    accuracy = {f"accuracy_{split}": share for _, split, share in log.accuracies}
    accuracy |= {"accuracy_test": log.result} if log.result is not None else {}
    return {
        "epochs": max(line.epoch for line in log.last.values()) + 1,
        "epoch_seconds_median": seconds if known else None,
        "vertices_per_second": vertices / seconds if known and vertices else None,
        **accuracy,
    }


def _ledger(line: Line) -> list[dict[str, Any]]:
    """What it says of an epoch: the exchange of rows, the reduction of gradients, and the rest."""
    parts = {EXCHANGE: line.communicating, REDUCTION: line.reducing}
    parts[REST] = line.seconds - sum(parts.values())
    at = {"epoch": line.epoch, "rank": line.rank}
    return [{**at, **entry(key, Amounts(seconds=seconds))} for key, seconds in parts.items()]


def _trained(log: Log, epoch: int) -> float | None:
    """Seconds of training up to an evaluation, by the mean that the slowest process had then."""
    means = [line.seconds for line in log.lines if line.epoch == epoch and isfinite(line.seconds)]
    return (epoch + 1) * max(means) if means else None
