"""Summarizes the tables of a run: the numbers that its record has beside the tables."""

from typing import Any

import pandas as pd

from harness.ledger import COMPUTING, MOVING
from harness.results import statistics
from harness.results.schema import LEDGER


def summarize_tables(tables: dict[str, pd.DataFrame], target: float = 0.0) -> dict[str, Any]:
    """Summarize times (see `harness.results.statistics`), losses, accuracies, messages and words per epoch."""
    timed = tables["epochs"][tables["epochs"].epoch >= 0]
    ledger = tables["ledger"][tables["ledger"].epoch >= 0].rename(columns=LEDGER.recorded_names)
    last = timed[timed.epoch == timed.epoch.max()]
    elements = ledger.groupby(["epoch", "rank_id"])[["elements_payload", "elements_received"]].sum()
    messages = ledger[ledger.op.isin(MOVING)].groupby(["epoch", "rank_id"]).calls.sum()
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
        "messages": int(messages.max()) if len(messages) else 0,
        "words_payload": float(elements.elements_payload.max()) if len(elements) else 0.0,
        "words_received": float(elements.elements_received.max()) if len(elements) else 0.0,
    }


def _seconds_to_target(accuracy: pd.DataFrame, target: float) -> float | None:
    """Return the training time before the first evaluation whose test accuracy reached the target."""
    if accuracy.empty or not target:
        return None
    reached = accuracy[(accuracy.split == "test") & (accuracy.accuracy >= target)]
    return None if reached.empty else float(reached.train_seconds.iloc[0])


def _evaluation_seconds(accuracy: pd.DataFrame) -> float | None:
    """Return the median time of an evaluation."""
    return None if accuracy.empty else float(accuracy.groupby("epoch").eval_seconds.first().median())


def _device_percent(utilisation: pd.DataFrame) -> float | None:
    """Return the mean utilization of the device, over the windows of timed epochs in which its driver reported one."""
    if utilisation.empty:
        return None
    percent = utilisation.device_percent[utilisation.epoch >= 0].dropna()
    return None if percent.empty else float(percent.mean())


def _last_accuracy(accuracy: pd.DataFrame, split: str) -> float | None:
    if accuracy.empty:
        return None
    rows = accuracy[accuracy.split == split].dropna(subset=["accuracy"])
    return None if rows.empty else float(rows.accuracy.iloc[-1])
