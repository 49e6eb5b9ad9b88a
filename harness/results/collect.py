"""From run folders to tables: `runs` with one row a run, and the rows of all runs under each other.

The tables are a function of the records: collecting twice changes no file. Runs that failed are rows like the others,
and runs that a plan asks for and nobody recorded are rows of status missing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from harness.errors import UserError
from harness.files import replace_files, whole_folders
from harness.results import parquet
from harness.results.flatten import flatten
from harness.results.record import Record, read_record
from harness.results.schema import MISSING, RUN_TABLES, RUNS, TABLES, conform
from harness.spec.plan import read_plan

ORDER = ["dataset.name", "strategy.name", "ranks", "grid", "launch", "run_id"]
NAMED = 5


@dataclass(frozen=True)
class Collected:
    """What was collected, for a program and for a person."""

    out: Path
    runs: pd.DataFrame

    @property
    def failures(self) -> pd.DataFrame:
        """The runs that are not ok, missing ones included."""
        return self.runs[self.runs.status != "ok"]

    @property
    def complete(self) -> bool:
        """Whether every run is there and succeeded."""
        return self.failures.empty

    def as_dict(self) -> dict[str, Any]:
        """Counts and failures."""
        columns = ["run_id", "label", "status", "error.rank", "error.type", "error.message"]
        return {
            "tables": [str(self.out / f"{name}.parquet") for name in TABLES],
            "runs": self.runs.status.value_counts().to_dict(),
            "failures": json.loads(self.failures[columns].to_json(orient="records")),
        }

    def as_text(self) -> str:
        """A line of counts, then a table of failures and what to do about them."""
        counts = ", ".join(f"{count} {status}" for status, count in self.runs.status.value_counts().items())
        head = f"{len(self.runs)} runs ({counts}) in {self.out / 'runs.parquet'}"
        if self.complete:
            return head
        width = self.failures.label.str.len().max()
        lines = [
            f"  {run.label:<{width}}  {run.status:<7}  {cause(run)}" for _, run in self.failures.iterrows()
        ]
        way_out = (
            "A failed or missing run is tried again by `harness run --spec FILE`, others with --fresh too."
        )
        return "\n".join([head, *lines, way_out])


def collect(runs: Path, out: Path, plan: Path | None = None) -> Collected:
    """Makes the tables under `out` from the run folders under `runs`, all of them or those of a plan."""
    if not runs.is_dir():
        raise UserError(
            f"There is no folder of runs {runs}. `harness run` makes one, or name another by --runs."
        )
    planned = read_plan(plan) if plan else {path.name: {} for path in whole_folders(runs)}
    records = _read(runs / run_id for run_id in planned if not plan or (runs / run_id).is_dir())
    if not records:
        whose = f" of the plan {plan}" if plan else ""
        raise UserError(f"{runs} holds no run{whose} yet. `harness run` or the workflow makes some.")
    found = {record.record["run_id"]: record for record in records}
    rows = [flatten(record.spec, record.record) for record in records]
    rows += [_missing(run) for run_id, run in planned.items() if run_id not in found]
    frame = conform(pd.DataFrame(rows), RUNS).sort_values(ORDER, ignore_index=True)
    ordered = [found[run_id] for run_id in frame.run_id if run_id in found]
    summary = [parquet.to_arrow(frame, RUNS)]
    mark = sha256(parquet.to_bytes(summary, RUNS)).hexdigest()  # a function of the records, as the tables are
    files = {name: parquet.to_bytes(_rows(ordered, name), TABLES[name], mark) for name in RUN_TABLES}
    files["runs"] = parquet.to_bytes(summary, RUNS, mark)
    replace_files({out / f"{name}.parquet": data for name, data in files.items()})
    return Collected(out, frame)


def cause(run: "pd.Series[Any]") -> str:
    """Why a run is not ok, in a line."""
    if run.status == MISSING:
        return "planned, and there is no record of it"
    rank = run["error.rank"]
    where = "" if pd.isna(rank) or rank < 0 else f"rank {rank}: "
    message = " ".join(run["error.message"].split())
    return f"{where}{run['error.type']}: {message}" if run["error.type"] else f"{where}{message}"


def _read(folders: Iterator[Path]) -> list[Record]:
    """Every record, or one refusal that names those that cannot be read."""
    records, refused = [], []
    for folder in folders:
        try:
            records.append(read_record(folder))
        except UserError as error:
            refused.append(error)
    if len(refused) > 1:
        others = f" {len(refused) - NAMED} others cannot be read either." if len(refused) > NAMED else ""
        raise UserError(" ".join(map(str, refused[:NAMED])) + others)
    if refused:
        raise refused[0]
    return records


def _rows(records: list[Record], name: str) -> Iterator[pa.Table]:
    """The rows of every run, with its id before them."""
    for record in records:
        rows = record.rows(name)
        run_id = pa.array([record.record["run_id"]] * len(rows), pa.string())
        yield rows.add_column(0, TABLES[name].arrow.field(0), run_id)


def _missing(run: dict[str, Any]) -> dict[str, Any]:
    """The row of a run that was planned and never recorded."""
    told = {"run_id": run["run_id"], "label": run["label"], "status": MISSING, "source": ""}
    return flatten(run["spec"], {**told, "summary": {}, "provenance": {}, "error": None})
