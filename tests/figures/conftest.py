"""What the tests of figures share: collected tables of a synthetic study, and studies of many strategies."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from harness.report.figures.kind import READ_TABLES, Tables, make_tables
from harness.report.figures.palette import BUILT_IN
from harness.results.collect import collect
from harness.results.parquet import conform_frame, read_collected
from harness.results.run_row import make_rows
from harness.results.schema import RUNS, TABLES

LONG_GRAPH = "a-graph-with-a-long-name@1-4096w1024"
PLUGINS = ("my-strategy", "another-plugin-of-somebody-with-a-long-name")
BASELINE = "distdgl"


@pytest.fixture(scope="session")
def tables(study: Path) -> Path:
    """The collected tables of the study."""
    return study / "tables"


@pytest.fixture(scope="session")
def runs(tables: Path) -> pd.DataFrame:
    return read_collected(tables, "runs")


@pytest.fixture
def collected(tmp_path: Path) -> Callable[[Callable[[Path], object]], Path]:
    """`collected(write)`: tables of the runs that `write` puts into the folder it is given."""

    def make(write: Callable[[Path], object]) -> Path:
        write(tmp_path / "runs")
        collect(tmp_path / "runs", tmp_path)
        return tmp_path

    return make


class Study(NamedTuple):
    """Runs and their tables, and claims, as the kinds of figures take them."""

    runs: pd.DataFrame
    claims: pd.DataFrame
    tables: Tables


class StudyBuilder:
    """Adds runs to a study."""

    def __init__(self, synthetic: SimpleNamespace, seed: int) -> None:
        self.synthetic, self.random = synthetic, np.random.default_rng(seed)
        self.rows: list[dict[str, Any]] = []
        self.frames: dict[str, list[pd.DataFrame]] = {name: [] for name in READ_TABLES}

    def add(self, spec: Any, compute: float, talk: float, features: int = 9) -> None:
        """Add a measured run with all tables. Accuracy, loss, memory and elements differ between runs."""
        factor = float(self.random.uniform(0.5, 2))
        frames = self.synthetic.make_tables(spec, compute, talk)
        rows = [
            {
                "epoch": e,
                "train_seconds": (e + 1) * compute,
                "eval_seconds": 0.1,
                "split": "test",
                "accuracy": 0.3 + 0.08 * factor * e,
            }
            for e in range(6)
        ]
        frames["accuracy"] = pd.DataFrame(rows)
        frames["epochs"]["loss"] *= 1 + 0.01 * factor
        frames["ledger"].loc[frames["ledger"].phase == "loss", "phase"] = "sample"
        frames["epochs"]["loss"] *= factor
        frames["memory"]["persistent_bytes"] = (frames["memory"].persistent_bytes * factor).astype(int)
        record = self.synthetic.make_record(spec, frames)
        record["summary"] |= {"seconds_to_target": 5 * compute, "evaluation_seconds": 0.1 * compute}
        record["summary"]["graph"]["features"] = features
        if spec.ranks > 1:
            received = record["summary"]["elements_received"] * factor
            record["summary"] |= {"elements_received": received, "elements_bound": received / (1 + factor)}
        self.rows.append(make_rows(spec.model_dump(mode="json"), record).run)
        for name, kept in self.frames.items():
            rows = frames[name]
            kept.append(rows.assign(run_id=spec.run_id))

    def add_prediction(self, spec: Any, seconds: float) -> None:
        interval = {"low": 0.8 * seconds, "value": seconds, "high": 1.3 * seconds}
        record = {"run_id": f"p{spec.run_id[1:]}", "label": spec.label, "status": "ok", "source": "predicted"}
        record |= {"summary": {"epoch_seconds_median": seconds}, "provenance": {}, "error": None}
        record["predicted"] = {"seconds": interval}
        self.rows.append(make_rows(spec.model_dump(mode="json"), record).run)

    def build(self, claims: pd.DataFrame, marks: Sequence[dict[str, Any]] = ()) -> Study:
        frames = {name: conform_frame(pd.concat(rows), TABLES[name]) for name, rows in self.frames.items()}
        tables = make_tables(frames)._replace(marks=marks)
        return Study(conform_frame(pd.DataFrame(self.rows), RUNS), claims, tables)

    def add_failure(self, spec: Any) -> None:
        error = {"rank": 0, "type": "MemoryError", "message": "", "trace": ""}
        record = {"run_id": spec.run_id, "label": spec.label, "status": "oom", "source": "measured"}
        record |= {"summary": {}, "provenance": {}, "error": error}
        self.rows.append(make_rows(spec.model_dump(mode="json"), record).run)


def make_mark(kind: str, number: float, runs: dict[str, Any], slower: Any = None, bound: str = "") -> Any:
    """A mark as figures read it from the table of claims; settings are given as single values."""

    def settings(values: dict[str, Any]) -> dict[str, list[Any]]:
        return {"dataset.name": [LONG_GRAPH], **{name: [value] for name, value in values.items()}}

    mark: dict[str, Any] = {"kind": kind, "number": number, "bound": bound, "mean_of": 1}
    claim = f"PLX-{kind}-{number:g}-{bound}"
    mark |= {
        "claim": claim,
        "original": claim,
        "read": "text",
        "place": "Section 7",
        "printed": f"{number:g} x",
    }
    return mark | {"runs": settings(runs), "relative_to": settings(slower) if slower else None}


def make_marks(one: str, other: str) -> list[Any]:
    """Marks of all kinds about two strategies on 2 and 4 ranks."""

    def at(name: str, ranks: int) -> dict[str, Any]:
        return {"strategy.name": name, "ranks": ranks}

    return [
        make_mark("ratio", 3.0, at(other, 4), at(one, 4)),
        make_mark("ratio", 5.0, at(other, 4), at(one, 4), "at most"),
        make_mark("ratio", 1.5, at(other, 4), at(other, 2), "at least"),
        make_mark("ratio", 1.9, at(other, 4), at(other, 2), "at most"),
        make_mark("ratio", 1.7, at(one, 4), at(one, 2)),
        make_mark("ratio", 2.0, at(one, 4), at(BASELINE, 4)),
        make_mark("ratio", 2.5, at(one, 4), at(BASELINE, 4), "at most"),
        make_mark("seconds", 0.2, at(one, 2), bound="at most"),
        make_mark("end of scaling", 4, {"strategy.name": one}),
        make_mark("crossing", 4, {}),
        make_mark("end of axis", 3.0, {}),
    ]


@pytest.fixture(scope="session")
def study_of(synthetic: SimpleNamespace) -> Callable[[int], Study]:
    """`study_of(n)`: n strategies, most of which scale, on a graph of a long name, and two panels of another."""

    @lru_cache
    def make(count: int) -> Study:
        others = [name for name in BUILT_IN if name not in ("serial", BASELINE)]
        names = ["plexus", BASELINE] if count == 2 else ["serial", *others[: count - 4], BASELINE, *PLUGINS]
        builder, target = StudyBuilder(synthetic, count), {"target": 0.6}
        for number, name in enumerate(names):
            base = float(builder.random.uniform(0.5, 2))
            for ranks in (1,) if name == "serial" else (2, 4, 8) if number % 3 else (4,):
                grid = {"x": ranks // 2, "y": 2, "z": 1} if number % 2 and ranks > 1 else {"p": ranks}
                spec = synthetic.make_spec(name, LONG_GRAPH, grid, training=target)
                builder.add(spec, base / ranks, 0.1)
                if number < 3:
                    error = float(builder.random.uniform(0.5, 1.5))
                    builder.add_prediction(spec, error * (base / ranks + 0.1))
            if number % 4 == 1:
                builder.add_failure(synthetic.make_spec(name, LONG_GRAPH, {"p": 16}, training=target))
        full = {"projection": True, "norm": True, "residual": True, "dropout": 0.2}
        for hidden, parts in ((16, {}), (1024, full)):
            model = {"hidden": hidden, **parts}
            for batch in (0, 64):
                training = {"batch": batch, **target}
                spec = synthetic.make_spec("bulk-ladies", "tiny", {"p": 2}, model=model, training=training)
                builder.add(spec, 2e-6, 0.0)
        claims = pd.DataFrame(
            [{**claim, "what": f"{claim['what']} {'word ' * 30}"} for claim in synthetic.claims()]
        )
        return builder.build(claims, make_marks(*names[1:3]) if count > 2 else ())

    return make


@pytest.fixture(scope="session")
def growth_study_of(synthetic: SimpleNamespace) -> Callable[[int], Study]:
    """`growth_study_of(n)`: n strategies with models of three depths, and on graphs of three widths."""

    @lru_cache
    def make(count: int) -> Study:
        builder = StudyBuilder(synthetic, count)
        for name in list(BUILT_IN)[-count:]:
            base = float(builder.random.uniform(0.5, 2))
            for width in (64, 256, 1024):
                spec = synthetic.make_spec(name, f"a-graph-with-a-long-name@1-4096w{width}", {"p": 4})
                builder.add(spec, base * width / 64, 0.1, width)
            for layers in (2, 4, 8):
                spec = synthetic.make_spec(name, LONG_GRAPH, {"p": 2}, model={"layers": layers})
                builder.add(spec, base * layers, 0.1)
        return builder.build(pd.DataFrame())

    return make
