"""The few numbers that stand for a run in its record; the tables have the rest."""

from typing import Any

import pandas as pd

from harness.results import statistics


def summarise(tables: dict[str, pd.DataFrame], words_formula: float) -> dict[str, Any]:
    """Times by the definitions of `harness.results.statistics`, losses, accuracies, words an epoch."""
    timed = tables["epochs"][tables["epochs"].epoch >= 0]
    ledger = tables["ledger"][tables["ledger"].epoch >= 0]
    last = timed[timed.epoch == timed.epoch.max()]
    words = ledger.groupby(["epoch", "rank"])[["words_payload", "words_received"]].sum()
    return {
        "epochs": int(timed.epoch.nunique()),
        "epoch_seconds_median": statistics.median_epoch(timed),
        "epoch_seconds_paper": statistics.paper_epoch(timed),
        "phase_seconds_mean": statistics.phase_sum(ledger),
        "final_loss": float(last.loss.iloc[0]),
        **{
            f"accuracy_{split}": _last_accuracy(tables["accuracy"], split)
            for split in ("train", "valid", "test")
        },
        "words_payload": float(words.words_payload.max()) if len(words) else 0.0,
        "words_received": float(words.words_received.max()) if len(words) else 0.0,
        "words_formula": float(words_formula),
    }


def _last_accuracy(accuracy: pd.DataFrame, split: str) -> float | None:
    if accuracy.empty:
        return None
    rows = accuracy[accuracy.split == split].dropna(subset=["accuracy"])
    return None if rows.empty else float(rows.accuracy.iloc[-1])
