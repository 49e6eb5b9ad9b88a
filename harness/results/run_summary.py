"""Summarizes the tables of a run: the numbers that its record has beside the tables."""

from typing import Any

import numpy as np
import pandas as pd

from harness.ledger import COMPUTING, MOVING
from harness.results import statistics
from harness.results.schema import LEDGER


def summarize_tables(tables: dict[str, pd.DataFrame], target: float = 0.0) -> dict[str, Any]:
    """Summarize times (see `harness.results.statistics`), losses, accuracies, messages and words per epoch."""
    timed = tables["epochs"][tables["epochs"].epoch >= 0]
    ledger = tables["ledger"].rename(columns=LEDGER.recorded_names)
    last = timed[timed.epoch == timed.epoch.max()]
    is_moving, places = ledger.op.isin(MOVING).to_numpy(dtype=bool), _number_timed_places(ledger)
    return {
        "epochs": int(timed.epoch.nunique()),
        "epoch_seconds_median": statistics.compute_median_epoch(timed),
        "epoch_seconds_paper": statistics.compute_paper_epoch(timed),
        "phase_seconds_mean": statistics.compute_phase_sum(ledger),
        "computing_share": statistics.compute_op_share(ledger, COMPUTING),
        "communicating_share": statistics.compute_op_share(ledger, MOVING),
        "device_percent": _device_percent(tables["utilisation"]),
        "final_loss": float(last.loss.iloc[0]),
        **{
            f"accuracy_{split}": _last_accuracy(tables["accuracy"], split)
            for split in ("train", "valid", "test")
        },
        "seconds_to_target": _seconds_to_target(tables["accuracy"], target),
        "evaluation_seconds": _evaluation_seconds(tables["accuracy"]),
        "messages": int(_take_largest_sum(places, np.where(is_moving, ledger.calls.to_numpy(), 0))),
        "words_payload": _take_largest_sum(places, ledger.elements_payload.to_numpy()),
        "words_received": _take_largest_sum(places, ledger.elements_received.to_numpy()),
    }


def compute_bytes_received(ledger: pd.DataFrame) -> float:
    """Return the bytes received per timed epoch, on the rank with the most.

    A row of the ledger has the bytes of its payload, of which the received elements are a share.
    """
    bytes_, payload, received = (
        ledger[name].to_numpy(dtype=float) for name in ("bytes", "elements_payload", "elements_received")
    )
    share = np.divide(received, payload, out=np.zeros_like(received), where=payload > 0)
    return _take_largest_sum(_number_timed_places(ledger), bytes_ * share)


def _number_timed_places(ledger: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return for each row of a ledger a number of its rank and epoch; -1 in warm-up epochs."""
    epoch, rank = (ledger[name].to_numpy(dtype=np.int64) for name in ("epoch", "rank_id"))
    _, numbers = np.unique(epoch * (rank.max(initial=0) + 1) + rank, return_inverse=True)
    return np.where(epoch >= 0, numbers, -1)


def _take_largest_sum(places: "np.ndarray[Any, Any]", amounts: "np.ndarray[Any, Any]") -> float:
    """Return the largest sum over the rows of one rank in one timed epoch."""
    return float(np.bincount(places[places >= 0], amounts[places >= 0]).max(initial=0.0))


def _seconds_to_target(accuracy: pd.DataFrame, target: float) -> float | None:
    """Return the training time before the first evaluation whose test accuracy reached the target."""
    if accuracy.empty or not target:
        return None
    reached = accuracy[(accuracy.split == "test") & (accuracy.accuracy >= target)]
    return None if reached.empty else float(reached.train_seconds.iloc[0])


def _evaluation_seconds(accuracy: pd.DataFrame) -> float | None:
    """Return the median time of an evaluation."""
    if accuracy.empty:  # and may have no columns
        return None
    _, first = np.unique(accuracy.epoch.to_numpy(), return_index=True)
    return float(np.median(accuracy.eval_seconds.to_numpy()[first]))


def _device_percent(utilisation: pd.DataFrame) -> float | None:
    """Return the mean utilization of the device, over the windows of timed epochs in which its driver reported one."""
    if utilisation.empty:
        return None
    percent = utilisation.device_percent[utilisation.epoch >= 0].dropna()
    return None if percent.empty else float(percent.mean())


def _last_accuracy(accuracy: pd.DataFrame, split: str) -> float | None:
    if accuracy.empty:
        return None
    values = accuracy.accuracy.to_numpy(dtype=float, na_value=np.nan)
    known = values[(accuracy.split == split).to_numpy(dtype=bool) & ~np.isnan(values)]
    return float(known[-1]) if len(known) else None
