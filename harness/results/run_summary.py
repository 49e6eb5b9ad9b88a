"""Summarizes the tables of a run: the numbers that its record has beside the tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.ledger import COMPUTING, MOVING
from harness.results import statistics
from harness.results.schema import LEDGER
from harness.results.statistics import find_texts, number_pairs
from harness.results.table_schema import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLITS = ("train", "valid", "test")


def summarize_tables(tables: Mapping[str, Columns], target: float = 0.0) -> dict[str, Any]:
    """Summarize times (see `harness.results.statistics`), losses, accuracies, messages and words per epoch.

    The tables have the column names of run folders.
    """
    epochs, accuracy = tables["epochs"], tables["accuracy"]
    ledger = LEDGER.rename_recorded(tables["ledger"])
    epoch = np.asarray(epochs["epoch"])
    is_moving, places = find_texts(ledger["op"], MOVING), _number_timed_places(ledger)
    return {
        "epochs": len(np.unique(epoch[epoch >= 0])),
        "epoch_seconds_median": statistics.compute_median_epoch(epochs),
        "epoch_seconds_paper": statistics.compute_paper_epoch(epochs),
        "phase_seconds_mean": statistics.compute_phase_sum(ledger),
        "computing_share": statistics.compute_op_share(ledger, COMPUTING),
        "communicating_share": statistics.compute_op_share(ledger, MOVING),
        "device_percent": _device_percent(tables["utilisation"]),
        "final_loss": float(np.asarray(epochs["loss"])[np.flatnonzero(epoch == np.nanmax(epoch))[0]]),
        **{f"accuracy_{split}": _last_accuracy(accuracy, split) for split in SPLITS},
        "seconds_to_target": _seconds_to_target(accuracy, target),
        "evaluation_seconds": _evaluation_seconds(accuracy),
        "messages": int(_take_largest_sum(places, np.where(is_moving, np.asarray(ledger["calls"]), 0))),
        "words_payload": _take_largest_sum(places, np.asarray(ledger["elements_payload"])),
        "words_received": _take_largest_sum(places, np.asarray(ledger["elements_received"])),
    }


def compute_bytes_received(ledger: Columns) -> float:
    """Return the bytes received per timed epoch, on the rank with the most.

    A row of the ledger has the bytes of its payload, of which the received elements are a share.
    """
    bytes_, payload, received = (
        _read_numbers(ledger, name) for name in ("bytes", "elements_payload", "elements_received")
    )
    share = np.divide(received, payload, out=np.zeros_like(received), where=payload > 0)
    return _take_largest_sum(_number_timed_places(ledger), bytes_ * share)


def _read_numbers(table: Columns, name: str) -> "NDArray[np.float64]":
    """Return a column of numbers, NaN where they are unknown. A frame without rows may have no columns."""
    return np.asarray(table.get(name, ()), dtype=float)


def _number_timed_places(ledger: Columns) -> "NDArray[np.int64]":
    """Return for each row of a ledger a number of its rank and epoch; -1 in warm-up epochs."""
    epoch, rank = (np.asarray(ledger[name], dtype=np.int64) for name in ("epoch", "rank_id"))
    _, numbers = number_pairs(epoch, rank)
    return np.where(epoch >= 0, numbers, -1)


def _take_largest_sum(places: "NDArray[Any]", amounts: "NDArray[Any]") -> float:
    """Return the largest sum over the rows of one rank in one timed epoch."""
    return float(np.bincount(places[places >= 0], amounts[places >= 0]).max(initial=0.0))


def _seconds_to_target(accuracy: Columns, target: float) -> float | None:
    """Return the training time before the first evaluation whose test accuracy reached the target."""
    if not target:
        return None
    reached = find_texts(accuracy.get("split", ()), ("test",)) & (
        _read_numbers(accuracy, "accuracy") >= target
    )
    return float(_read_numbers(accuracy, "train_seconds")[reached][0]) if reached.any() else None


def _evaluation_seconds(accuracy: Columns) -> float | None:
    """Return the median time of an evaluation."""
    _, first = np.unique(_read_numbers(accuracy, "epoch"), return_index=True)
    return float(np.median(_read_numbers(accuracy, "eval_seconds")[first])) if len(first) else None


def _device_percent(utilisation: Columns) -> float | None:
    """Return the mean utilization of the device, over the windows of timed epochs in which its driver reported one."""
    percent = _read_numbers(utilisation, "device_percent")
    known = percent[(_read_numbers(utilisation, "epoch") >= 0) & ~np.isnan(percent)]
    return float(known.mean()) if len(known) else None


def _last_accuracy(accuracy: Columns, split: str) -> float | None:
    values = _read_numbers(accuracy, "accuracy")
    known = values[find_texts(accuracy.get("split", ()), (split,)) & ~np.isnan(values)]
    return float(known[-1]) if len(known) else None
