"""Summarizes the tables of a run: the numbers that its record has beside the tables."""

from collections.abc import Collection, Mapping
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.ledger import COMPUTING, MOVING, Op, Phase
from harness.results.schema import PAPER_EPOCHS, WARMUP_DROPPED
from harness.results.table_schema import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLITS = ("train", "valid", "test")


def summarize_tables(tables: Mapping[str, Columns], target: float = 0.0) -> dict[str, Any]:
    """Summarize times, losses, accuracies, messages and elements per epoch."""
    epochs, accuracy, ledger = tables["epochs"], tables["accuracy"], tables["ledger"]
    epoch = np.asarray(epochs["epoch"])
    is_moving, places = find_texts(ledger["op"], MOVING), _number_timed_places(ledger)
    return {
        "epochs": len(np.unique(epoch[epoch >= 0])),
        "epoch_seconds_median": compute_median_epoch(epochs),
        "epoch_seconds_paper": compute_paper_epoch(epochs),
        "phase_seconds_mean": compute_phase_sum(ledger),
        "computing_share": compute_op_share(ledger, COMPUTING),
        "communicating_share": compute_op_share(ledger, MOVING),
        "device_percent": _device_percent(tables["utilisation"]),
        "final_loss": float(np.asarray(epochs["loss"])[np.flatnonzero(epoch == np.nanmax(epoch))[0]]),
        **{f"accuracy_{split}": _last_accuracy(accuracy, split) for split in SPLITS},
        "seconds_to_target": _seconds_to_target(accuracy, target),
        "evaluation_seconds": _evaluation_seconds(accuracy),
        "messages": int(_take_largest_sum(places, np.where(is_moving, np.asarray(ledger["calls"]), 0))),
        "elements_payload": _take_largest_sum(places, np.asarray(ledger["elements_payload"])),
        "elements_received": _take_largest_sum(places, np.asarray(ledger["elements_received"])),
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
    """Return the mean utilisation of the device, over the windows of timed epochs in which its driver reported one."""
    percent = _read_numbers(utilisation, "device_percent")
    known = percent[(_read_numbers(utilisation, "epoch") >= 0) & ~np.isnan(percent)]
    return float(known.mean()) if len(known) else None


def _last_accuracy(accuracy: Columns, split: str) -> float | None:
    values = _read_numbers(accuracy, "accuracy")
    known = values[find_texts(accuracy.get("split", ()), (split,)) & ~np.isnan(values)]
    return float(known[-1]) if len(known) else None


def find_slowest(epochs: Columns) -> "tuple[NDArray[Any], NDArray[np.float64]]":
    """Return the numbers of the timed epochs, and the seconds of the slowest rank in each."""
    epoch, seconds = np.asarray(epochs["epoch"]), np.asarray(epochs["seconds"], dtype=float)
    numbers, place = np.unique(epoch[epoch >= 0], return_inverse=True)
    slowest = np.full(len(numbers), np.nan)
    np.fmax.at(slowest, place, seconds[epoch >= 0])
    return numbers, slowest


def compute_median_epoch(epochs: Columns) -> float:
    """Return the epoch time of one launch: the median over its timed epochs."""
    _, slowest = find_slowest(epochs)
    known = slowest[~np.isnan(slowest)]
    return float(np.median(known)) if len(known) else nan


def compute_paper_epoch(epochs: Columns) -> float | None:
    """Return the papers' epoch time: the mean over ten epochs without the first two; None for at most two epochs."""
    numbers, slowest = find_slowest(epochs)
    counted = slowest[(numbers >= WARMUP_DROPPED) & (numbers < PAPER_EPOCHS)]
    if not len(counted):
        return None
    known = counted[~np.isnan(counted)]
    return float(known.mean()) if len(known) else nan


def compute_phase_sum(ledger: Columns) -> float | None:
    """Return the sum of phases that Plexus reports: named phases, mean over ranks, median over epochs."""
    epoch, rank, seconds = (np.asarray(ledger[name]) for name in ("epoch", "rank_id", "seconds"))
    is_timed = epoch >= 0
    if not is_timed.any():
        return None
    numbers, place = np.unique(epoch[is_timed], return_inverse=True)
    first, _ = number_pairs(place, rank[is_timed])
    ranks = np.bincount(place[first])
    named = np.where(find_texts(ledger["phase"], (Phase.OTHER,)), 0.0, seconds)
    return float(np.median(np.bincount(place, named[is_timed], len(numbers)) / ranks))


def compute_op_share(ledger: Columns, ops: Collection[Op]) -> float | None:
    """Return the share of these ops in the time of all ranks over all timed epochs; None without timed epochs."""
    seconds = np.where(np.asarray(ledger["epoch"]) >= 0, np.asarray(ledger["seconds"]), 0.0)
    total = seconds.sum()
    return float(seconds[find_texts(ledger["op"], ops)].sum() / total) if total else None


def number_pairs(one: "NDArray[Any]", other: "NDArray[Any]") -> "tuple[NDArray[Any], NDArray[Any]]":
    """Return the first row of each different pair of values, and for each row the number of its pair."""
    (_, numbers), (values, others) = (np.unique(column, return_inverse=True) for column in (one, other))
    _, first, place = np.unique(numbers * len(values) + others, return_index=True, return_inverse=True)
    return first, place


def find_texts(column: Collection[Any], texts: Collection[str]) -> "NDArray[np.bool_]":
    """Return for each value of a column whether it is one of the texts."""
    return np.fromiter(map(frozenset(texts).__contains__, column), bool, len(column))
