"""Runs that nobody ran: believable specs, records and ledgers for the tests of tables, figures and report.

An epoch of a strategy is compute divided by the ranks, plus communication that shrinks more slowly, plus noise. The
rows of its ledger add up to the epoch, as those of a real one do.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.ledger import COMPUTING, MOVING
from harness.results.record import write_record
from harness.results.run_summary import summarize_tables
from harness.results.schema import RUN_TABLES
from harness.spec.machine_card import Machine
from harness.spec.spec import Spec

WARMUP, EPOCHS = 2, 10
STARTED = 1_790_000_000.0
MACHINE = Machine(name="local", description="one machine, CPU ranks over gloo")
VERSIONS = {"python": "3.11.9", "torch": "2.13.0", "numpy": "2.2.1", "parallel-gnn-harness": "0.1.0"}

SHARES = {
    ("convolve", "spmm", "", "T"): 0.62,
    ("convolve", "gemm", "", "Z"): 0.21,
    ("activate", "elementwise", "", "H"): 0.09,
    ("optimize", "elementwise", "", "W"): 0.03,
    ("loss", "glue", "", ""): 0.03,
    ("other", "glue", "", ""): 0.02,
}
"""How an epoch without communication divides."""

TALK = {
    "cagnet-1d": {("convolve", "broadcast", "p", "H"): 0.8, ("sync", "all_reduce", "p", "dW"): 0.2},
    "cagnet-2d": {
        ("convolve", "broadcast", "row", "A"): 0.4,
        ("convolve", "reduce_scatter", "col", "Z"): 0.6,
    },
    "plexus": {
        ("convolve", "all_reduce", "x", "T"): 0.6,
        ("convolve", "all_gather", "z", "W"): 0.15,
        ("sync", "reduce_scatter", "y", "dW"): 0.25,
    },
    "bns-gcn": {
        ("sample", "copy", "", "X"): 0.25,
        ("fetch", "all_to_all", "p", "H"): 0.6,
        ("sync", "all_reduce", "p", "dW"): 0.15,
    },
}


def make_spec(strategy: str, dataset: str, grid: dict[str, int], **changes: Any) -> Spec:
    """A valid spec; `changes` are further keys of it."""
    ranks = int(np.prod(list(grid.values())))
    model = {"layers": 3, "hidden": 128}
    return Spec.model_validate(
        {
            "strategy": strategy,
            "dataset": dataset,
            "ranks": ranks,
            "grid": grid,
            "model": model,
            "machine": MACHINE,
        }
        | changes
    )


def make_tables(spec: Spec, compute: float, talk: float, noise: float = 0.03) -> dict[str, pd.DataFrame]:
    """The tables of a run whose epoch takes about `compute` + `talk` seconds on each rank."""
    random = np.random.default_rng([int(spec.run_id, 16), int(1e9 * compute)])
    epochs, ledger, utilisation = [], [], []
    for epoch in range(-WARMUP, EPOCHS):
        slow = 3.0 if epoch == -WARMUP else 1.0
        for rank in range(spec.ranks):
            rows = _rows(spec, compute * slow, talk, noise, random)
            at = {"epoch": epoch, "rank_id": rank}
            ledger += [{**at, **row} for row in rows]
            seconds = sum(row["seconds"] for row in rows)
            utilisation.append(
                {**at, "window": 0, "seconds": seconds, **_spent(rows), "device_percent": float("nan")}
            )
            epochs.append({**at, "seconds": seconds, "loss": 2.0 * 0.9 ** (epoch + WARMUP) + 0.4})
    trained = sum(row["seconds"] for row in epochs if row["rank_id"] == 0)
    accuracy = [
        {
            "epoch": EPOCHS - 1,
            "train_seconds": trained,
            "eval_seconds": 0.1,
            "split": split,
            "accuracy": value,
        }
        for split, value in {"train": 0.93, "valid": 0.91, "test": None}.items()
    ]
    memory = [
        {
            "rank_id": rank,
            "tensor": tensor,
            "host_peak_bytes": peak,
            "device_peak_bytes": 0,
            "persistent_bytes": size,
        }
        for rank in range(spec.ranks)
        for tensor, peak, size in (("", 2**28, 0), ("A", 0, 2**24), ("W", 0, 2**16))
    ]
    tape = [
        {
            **{name: value for name, value in row.items() if name in RUN_TABLES["tape"].names},
            **{
                "event": 0,
                "cpu_seconds": row["seconds"],
                "leaves": False,
                "waits_for": -1,
                "travels_with": -1,
            },
        }
        for row in ledger[:3]
    ]
    frames = {"epochs": epochs, "ledger": ledger, "accuracy": accuracy, "memory": memory, "tape": tape}
    return {name: pd.DataFrame(rows) for name, rows in {**frames, "utilisation": utilisation}.items()}


def _spent(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds in either kind of op."""
    kinds = {"computing_seconds": COMPUTING, "communicating_seconds": MOVING}
    return {name: sum(row["seconds"] for row in rows if row["op"] in ops) for name, ops in kinds.items()}


def _rows(
    spec: Spec, compute: float, talk: float, noise: float, random: np.random.Generator
) -> list[dict[str, Any]]:
    talks = TALK.get(spec.strategy.name, {("convolve", "broadcast", "p", "H"): 1.0}) if spec.ranks > 1 else {}
    parts = {key: compute * share for key, share in SHARES.items()} | {k: talk * s for k, s in talks.items()}
    rows = []
    for (phase, op, axis, tensor), seconds in parts.items():
        words, size = 1e6 * (axis != ""), spec.grid.get(axis, spec.ranks)
        passes = 2 if op == "all_reduce" else 1
        rows.append(
            {
                "layer": 0 if phase == "convolve" else -1,
                "direction": "forward",
                "phase": phase,
                "op": op,
                "axis": axis,
                "peer": -1,
                "tensor": tensor,
                "calls": 1,
                "elements_payload": words,
                "elements_received": passes * words * (size - 1) / size,
                "bytes": int(4 * words),
                "seconds": seconds * random.lognormal(0, noise),
                "in_flight_seconds": 0.0,
                "flops": 0,
                "bytes_touched": 0,
            }
        )
    return rows


def make_record(spec: Spec, tables: dict[str, pd.DataFrame], **changes: Any) -> dict[str, Any]:
    """The record of a run that went well; `changes` replace its keys."""
    summary = summarize_tables(tables, spec.training.target)
    epochs = tables["epochs"]
    longest = epochs.groupby("rank_id").seconds.sum().max()
    return {
        "run_id": spec.run_id,
        "label": spec.label,
        "status": "ok",
        "source": "measured",
        "summary": {
            **summary,
            "graph": {"vertices": 12_000, "nonzeros": 90_000, "features": 64, "classes": 8, "trained": 6_000},
            "steps": 1,
            "vertices_per_second": 12_000 / summary["epoch_seconds_median"],
        },
        "provenance": provenance(finished=STARTED + max(60.0, 2 * longest)),
        "error": None,
        **changes,
    }


def provenance(**changes: Any) -> dict[str, Any]:
    """Where a run comes from."""
    return {
        "commit": "0e7347b5d0f1c2a3b4c5d6e7f8091a2b3c4d5e6f",
        "dirty": False,
        "command": "harness run --spec spec.json --out results/runs",
        "versions": VERSIONS,
        "host": "node17",
        "cpu": "AMD EPYC 7763 64-Core Processor",
        "cores": 64,
        "gpu": None,
        "threads": 1,
        "scheduling": "batch",
        "allocator": {},
        "env": {"OMP_NUM_THREADS": "1"},
        "engine": "gloo",
        "store_manifest": "9f2c",
        "graph_hash": "5e1d" * 16,
        "strategy_code": "a07b" * 16,
        "started": STARTED,
        "finished": STARTED + 60.0,
        "load_average": 3.1,
        **changes,
    }


def write_ok(runs: Path, spec: Spec, compute: float, talk: float = 0.0, **changes: Any) -> Path:
    """A run that went well."""
    tables = make_tables(spec, compute, talk)
    return write_record(runs, spec.model_dump(mode="json"), make_record(spec, tables, **changes), tables)


def write_failed(
    runs: Path, spec: Spec, status: str, kind: str, message: str, source: str = "measured"
) -> Path:
    """A run that left no tables."""
    record = {
        "run_id": spec.run_id,
        "label": spec.label,
        "status": status,
        "source": source,
        "summary": {},
        "provenance": {"started": 1.0, "finished": 2.0, "command": "harness run"},
        "error": {"rank": 3, "type": kind, "message": message, "trace": "Traceback: ..."},
    }
    return write_record(runs, spec.model_dump(mode="json"), record, {})


def write_quoted(runs: Path, spec: Spec, seconds: float, source: str, **told: object) -> Path:
    """A predicted or published number: a summary, and what else its record tells."""
    record = {"run_id": spec.run_id, "label": spec.label, "status": "ok", "source": source, **told}
    summary = {"epoch_seconds_median": seconds}
    record |= {"summary": summary, "provenance": {}, "error": None}
    return write_record(runs, spec.model_dump(mode="json"), record, {})


def write_study(runs: Path) -> None:
    """Two graphs, several strategies, grids and launches, failures, predictions and a published number."""
    for launch in range(2):
        write_ok(runs, make_spec("serial", "products-14m", {"p": 1}, launch=launch), 1.9)
        for ranks in (1, 2, 4):
            write_ok(
                runs, make_spec("cagnet-1d", "products-14m", {"p": ranks}, launch=launch), 2.0 / ranks, 0.16
            )
        for x, y, z, skew in ((2, 1, 1, 1.0), (1, 2, 2, 1.2), (2, 2, 1, 1.0)):
            plexus = make_spec("plexus", "products-14m", {"x": x, "y": y, "z": z}, launch=launch)
            write_ok(runs, plexus, 2.1 * skew / plexus.ranks, 0.2 / plexus.ranks**0.5)
        write_ok(runs, make_spec("bns-gcn", "isolate-3-8m", {"p": 2}, launch=launch), 0.5, 0.1)
    write_failed(
        runs, make_spec("cagnet-1d", "products-14m", {"p": 8}), "oom", "MemoryError", "out of memory"
    )
    write_failed(
        runs, make_spec("bns-gcn", "isolate-3-8m", {"p": 4}), "timeout", "TimeoutError", "no word for 30 s"
    )
    for x, ranks in ((4, 8), (8, 16)):
        spec = make_spec("plexus", "products-14m", {"x": x, "y": 2, "z": 1}, seed=7)
        write_quoted(runs, spec, 2.1 / ranks + 0.2 / ranks**0.5, "predicted")
        spec = make_spec("plexus", "products-14m", {"x": x, "y": 2, "z": 1}, seed=8)
        write_quoted(runs, spec, 2.5 / ranks + 0.1 / ranks**0.5, "published")


def claims() -> list[dict[str, Any]]:
    """The claims of a figure, one by each verdict, and one of a paper's text."""
    known = {"paper": "plexus", "place": "Section 7", "config": "", "formula": "f()", "printed": "2 x"}
    known |= dict.fromkeys(
        ("source", "duplicate_of", "error", "read", "marks", "words", "heading", "unprinted"), ""
    )
    none = {"ours": "", "ratio": None, "ratio_low": None, "ratio_high": None, "reason": "it takes the run"}

    def claim(number: int, basis: str, ratio: float, spread: float, verdict: str) -> dict[str, Any]:
        band = {"ratio": ratio, "ratio_low": ratio / spread, "ratio_high": ratio * spread}
        named = {
            "id": f"PLX-{number}",
            "figure": "plexus-fig8c",
            "what": f"speedup of plexus, graph {number}",
        }
        return {
            **known,
            **named,
            **band,
            "ours": f"{2 * ratio:g}",
            "basis": basis,
            "role": (role := "result" if basis in ("prediction", "formula", "run") else "fact"),
            "uncounted": "" if role == "result" else role,
            "verdict": verdict,
            "reason": "",
        }

    return [
        claim(1, "prediction", 1.1, 1.3, "holds"),
        claim(2, "prediction", 1.6, 1.2, "within a factor"),
        claim(3, "formula", 0.125, 1.0, "contradicted"),
        claim(4, "experiment", 1.0, 1.0, "holds"),
        {**claim(5, "run", 1.0, 1.0, "cannot be tested here"), **none},
        {**claim(6, "card", 1.0, 1.0, "holds"), "figure": ""},
    ]
