"""Writes the record of a run from the rows of all ranks, on rank 0 after training."""

from math import sqrt
from pathlib import Path
from typing import Any

from harness.results.record import write_record
from harness.results.run_summary import compute_median_epoch, summarize_tables
from harness.results.schema import FAILED, LEDGER, OK, RUN_TABLES
from harness.runtime.fault import Fault
from harness.runtime.ledger_rows import ledger_columns
from harness.runtime.rank_tables import RankTables
from harness.spec.spec import Protocol, Spec, canonical_json
from harness.strategy import WORD, Facts, Promise, Strategy


def record_run(runs: Path, strategy: Strategy, ranks: list[RankTables], provenance: dict[str, Any]) -> Path:
    """Write the run folder of a run that finished training or diverged."""
    spec, tables, fault = strategy.spec, make_tables(ranks), ranks[0].fault
    summary = {
        "graph": graph_sizes(strategy.facts, spec.protocol),
        "steps": strategy.steps,
        "setup_seconds": provenance["first_epoch"] - provenance["started"],
        "cache_hit_rate": cache_hit_rate(ranks),
        "chosen": canonical_json(ranks[0].chosen),
    }
    if ranks[0].accuracy_by:
        summary["accuracy_by"] = ranks[0].accuracy_by
    if _has_timed_epochs(tables):
        summary |= compute_throughput(strategy, tables)
        summary["elements_payload_formula"] = max(rank.elements_payload_formula for rank in ranks)
        by_memory = least_words_by_memory(strategy, peak_memory_words(strategy, tables["memory"]))
        summary["elements_bound"] = max(by_memory, *(rank.least_words for rank in ranks))
        fault = fault or check_elements_received(spec.strategy.name, ranks, by_memory)
    return _write(runs, spec, tables, summary, provenance, fault)


def record_unfinished(
    runs: Path, spec: Spec, ranks: list[RankTables], provenance: dict[str, Any], fault: Fault
) -> Path:
    """Write the run folder of a run that was interrupted, with the epochs that all ranks finished."""
    return _write(runs, spec, make_tables(ranks), {}, provenance, fault)


def _write(
    runs: Path,
    spec: Spec,
    tables: dict[str, dict[str, Any]],
    summary: dict[str, Any],
    provenance: dict[str, Any],
    fault: Fault | None,
) -> Path:
    if _has_timed_epochs(tables):
        summary = {**summary, **summarize_tables(tables, spec.training.target)}
    record = {
        "run_id": spec.run_id,
        "label": spec.label,
        "status": fault["status"] if fault else OK,
        "source": "measured",
        "summary": summary,
        "provenance": provenance,
        "error": {key: fault[key] for key in ("rank", "type", "message", "trace")} if fault else None,
    }
    return write_record(runs, spec.model_dump(mode="json"), record, tables)


def _has_timed_epochs(tables: dict[str, dict[str, Any]]) -> bool:
    """Return True if the tables have a timed epoch, not only warm-up epochs."""
    return any(number >= 0 for number in tables["epochs"]["epoch"])


def check_elements_received(strategy: str, ranks: list[RankTables], by_memory: float) -> Fault | None:
    """Return the fault of a run that received fewer words than its lower bound, or None.

    In every timed epoch each rank receives at least its own `least_words`, and some rank receives at least the words
    that follow from the memory of a rank.
    """
    received = [rank.elements_by_epoch("elements_received") for rank in ranks]
    for epoch in received[0]:
        for rank, words in zip(ranks, received, strict=True):
            if words[epoch] < rank.least_words:
                return _words_fault(strategy, epoch, rank.rank, words[epoch], rank.least_words)
        most = max(ranks, key=lambda rank: received[rank.rank][epoch]).rank
        if received[most][epoch] < by_memory:
            return _words_fault(strategy, epoch, most, received[most][epoch], by_memory)
    return None


def _words_fault(strategy: str, epoch: int, rank: int, words: float, least: float) -> Fault:
    message = (
        f"In epoch {epoch}, the rank received {words:,.0f} elements by its ledger, fewer than the lower bound of "
        f"{least:,.0f}, so the ledger or the bound is wrong. `harness check {strategy}` compares both on small graphs."
    )
    return {"rank": rank, "type": "WordsBelowBound", "message": message, "status": FAILED, "trace": ""}


def cache_hit_rate(ranks: list[RankTables]) -> float | None:
    """Return the fraction of remote rows that were in caches, over all ranks; None without remote rows."""
    rows = sum(rank.remote.rows for rank in ranks)
    return sum(rank.remote.cached for rank in ranks) / rows if rows else None


def make_tables(ranks: list[RankTables]) -> dict[str, dict[str, Any]]:
    """Combine the tables of all ranks: lists or arrays by column."""
    tables = {}
    for name, table in RUN_TABLES.items():
        if name != LEDGER.name:
            rows = [row for rank in ranks for row in getattr(rank, name)]
            tables[name] = {column: [row[column] for row in rows] for column in table.names}
    return {**tables, LEDGER.name: ledger_columns({rank.rank: rank.ledger for rank in ranks})}


def graph_sizes(facts: Facts, protocol: Protocol) -> dict[str, int]:
    """Return the sizes of the graph on which a run trains."""
    return {
        "vertices": facts.vertices,
        "nonzeros": facts.nonzeros,
        "features": facts.features,
        "classes": facts.classes,
        "trained": facts.count_trained_vertices(protocol),
    }


def compute_throughput(strategy: Strategy, tables: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the vertices, and the training vertices, per second of the slowest rank's median epoch."""
    facts, seconds = strategy.facts, compute_median_epoch(tables["epochs"])
    return {
        "vertices_per_second": facts.vertices / seconds,
        "training_vertices_per_second": facts.count_trained_vertices(strategy.spec.protocol) / seconds,
    }


def peak_memory_words(strategy: Strategy, memory: dict[str, Any]) -> float:
    """Return the highest peak memory of a rank in words: device memory, or process memory without a device."""
    peaks = memory["device_peak_bytes"] if any(memory["device_peak_bytes"]) else memory["host_peak_bytes"]
    return float(max(peaks)) / WORD[strategy.spec.precision]


def least_words_by_memory(strategy: Strategy, memory: float) -> float:
    """Return a lower bound on the payload words of some rank in any layout, if no rank holds more words than `memory`.

    Products with G multiplications, sparse or dense, move at least G / (8 sqrt(M)) - M words to a memory of M words
    (Ballard, Demmel, Holtz and Schwartz, 2011), and some rank computes at least 1/P of them. A payload is at least half
    of the received words. Strategies that sample skip multiplications, so their bound is 0.
    """
    facts, ranks, total = strategy.facts, strategy.spec.ranks, 0
    if strategy.effective_promise is not Promise.EXACT or ranks == 1:
        return 0.0
    for layer, (f_in, f_out) in enumerate(strategy.shapes):
        # Without dH, the product with A is computed once, before training.
        needs_dH = strategy.needs_dH(layer)
        total += (2 + needs_dH) * facts.vertices * f_in * f_out
        total += 2 * needs_dH * facts.nonzeros * min(f_in, f_out)
    return max(0.0, float(total / ranks / (8 * sqrt(memory)) - memory)) / 2
