"""Collects run folders into tables: `runs` with one row a run, and the rows of all runs under each other.

The tables are a function of the records: collecting twice changes no file. A failed run is a row like any other, and a
run that a plan lists without a record is a row of status missing. The rows of a run that was collected before are taken
from the tables in place: only new or repeated runs are read whole.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from harness.errors import UserError
from harness.files import complete_folders, replace_files
from harness.progress import OnStep, ignore_step, report_steps
from harness.results import parquet
from harness.results.record import Record, find_run, left_out, read_record, read_records
from harness.results.run_row import flatten
from harness.results.schema import MISSING, OK, RUN_TABLES, RUNS, TABLES
from harness.results.statistics import Side
from harness.spec.plan import read_plan
from harness.untrusted import escape_line

ORDER = ["dataset.name", "strategy.name", "ranks", "grid", "launch"]
"""The columns that order the runs; those that agree in them stand as the plan lists them, all others by parameters."""


@dataclass(frozen=True)
class Collected:
    """The collected runs, for a program and for a person."""

    out: Path
    runs: pd.DataFrame
    refused: Sequence[UserError] = ()
    """Why folders were left out: they hold no whole record."""

    @property
    def failures(self) -> pd.DataFrame:
        """The runs that are not ok, missing ones included."""
        return self.runs[self.runs.status != OK]

    @property
    def below_bound(self) -> pd.DataFrame:
        """The runs that are ok and received fewer words than their lower bound: one of the two is wrong.

        Newer versions record such a run as failed.
        """
        ok = self.runs[self.runs.status == OK]
        return ok[ok.words_received < ok.words_floor]

    @property
    def complete(self) -> bool:
        """Whether every run was recorded and succeeded, all accounts hold, and no folder was left out."""
        return self.failures.empty and self.below_bound.empty and not self.refused

    def as_dict(self) -> dict[str, Any]:
        """Counts and failures."""
        columns = ["run_id", "label", "status", "error.rank", "error.type", "error.message"]
        bounds = ["run_id", "label", "words_received", "words_floor"]
        return {
            "tables": [str(self.out / f"{name}.parquet") for name in TABLES],
            "runs": self.runs.status.value_counts().to_dict(),
            "failures": json.loads(self.failures[columns].to_json(orient="records")),
            "below_bound": json.loads(self.below_bound[bounds].to_json(orient="records")),
            "left_out": [str(each) for each in self.refused],
        }

    def as_text(self) -> str:
        """A line of counts, then the failures and the way out, then runs below their bounds and folders left out."""
        counts = ", ".join(f"{count} {status}" for status, count in self.runs.status.value_counts().items())
        head = f"{len(self.runs)} runs ({counts}) in {self.out / 'runs.parquet'}"
        warning = [
            f"  {escape_line(run.label)}: received {run.words_received:,.0f} words, fewer than the lower bound of "
            f"{run.words_floor:,.0f}, so the ledger or the bound is wrong. Repeat it with `harness run --fresh`."
            for _, run in self.below_bound.iterrows()
        ]
        warning += [left_out(self.refused)] if self.refused else []
        if self.failures.empty:
            return "\n".join([head, *warning])
        width = self.failures.label.str.len().max()
        lines = [
            f"  {escape_line(run.label):<{width}}  {run.status:<7}  {escape_line(cause(run))}"
            for _, run in self.failures.iterrows()
        ]
        way_out = (
            "A failed or missing run is tried again by `harness run --spec FILE`, others with --fresh too."
        )
        return "\n".join([head, *lines, way_out, *warning])


def collect(
    runs: Path | Sequence[Path],
    out: Path,
    plan: Path | None = None,
    beside: Sequence[Path] = (),
    on_step: OnStep = ignore_step,
) -> Collected:
    """Makes the tables under `out` from all run folders under `runs`, or from those of a plan.

    A run that several places have is taken from the first of them. `beside` are folders of records that no plan lists:
    values that papers print, predictions, emulations.
    """
    places = [runs] if isinstance(runs, Path) else list(runs)
    found: dict[str, Path] = {}
    for place in reversed(places):
        if not place.is_dir():
            raise UserError(
                f"There is no folder of runs {place}. `harness run` makes one, or name another by --runs."
            )
        found |= {path.name: path for path in complete_folders(place)}
    planned = read_plan(plan).runs_by_id if plan else {run_id: {} for run_id in sorted(found)}
    order = list(planned) if plan else []
    unplanned = {path.name: path for place in beside for path in complete_folders(place)}
    found, planned = found | unplanned, planned | {run_id: {} for run_id in sorted(unplanned)}
    folders = [found[run_id] for run_id in planned if run_id in found]
    records, refused = read_records(report_steps(folders, lambda folder: f"reading {folder.name}", on_step))
    while True:
        try:
            frame, files = _tables(records, planned, order, out, on_step, several=len(places) > 1)
        except UserError:  # of a damaged table: the others are looked for at once
            sound, damaged = _with_sound_tables(records)
            if len(sound) == len(records):
                raise
            records, refused = sound, refused + damaged
        else:
            there = [record for record in records if record.folder.is_dir()]
            if len(there) == len(records):
                break
            records = there  # `harness runs prune` has removed the others meanwhile
    if not records:
        owner = f" of the plan {plan}" if plan else ""
        some = " and ".join(map(str, places))
        if refused:
            raise UserError(f"{some} holds no run{owner} that can be read. {left_out(refused)}")
        raise UserError(f"{some} holds no run{owner} yet. `harness run` or the workflow makes some.")
    replace_files({out / f"{name}.parquet": data for name, data in files.items()})
    return Collected(out, frame, refused)


def _tables(
    records: Sequence[Record],
    planned: Mapping[str, dict[str, Any]],
    order: Sequence[str],
    out: Path,
    on_step: OnStep,
    *,
    several: bool,
) -> tuple[pd.DataFrame, dict[str, bytes]]:
    """The table `runs`, and the files of all tables by name. Nothing without records."""
    if not records:
        return pd.DataFrame(), {}
    by_id = {record.record["run_id"]: record for record in records}
    rows = [record.row | {"origin": str(record.folder.parent) if several else ""} for record in records]
    rows += [_missing(run) for run_id, run in planned.items() if run_id not in by_id and run]
    frame = _in_order(parquet.conform(pd.DataFrame(rows), RUNS), order)
    ordered = [by_id[run_id] for run_id in frame.run_id if run_id in by_id]
    summary = [parquet.to_arrow(frame, RUNS)]
    mark = sha256(parquet.to_bytes(summary, RUNS)).hexdigest()  # a function of the records, as the tables are
    known = _unchanged(out, frame)
    files = {
        name: parquet.to_bytes(_rows(ordered, name, _collected(out, name, known)), TABLES[name], mark)
        for name in report_steps(RUN_TABLES, lambda name: f"writing {name}", on_step)
    }
    return frame, {**files, "runs": parquet.to_bytes(summary, RUNS, mark)}


def _with_sound_tables(records: Sequence[Record]) -> tuple[list[Record], list[UserError]]:
    """The records whose tables can all be read, and the refusals of the others but for runs that are gone."""
    sound, damaged = [], []
    for record in records:
        try:
            for name in RUN_TABLES:
                record.rows(name)
            sound.append(record)
        except UserError as error:
            if record.folder.is_dir():
                damaged.append(error)
    return sound, damaged


def _in_order(frame: pd.DataFrame, planned: Sequence[str]) -> pd.DataFrame:
    places = {run_id: place for place, run_id in enumerate(planned)}
    place = frame.run_id.map(lambda run_id: places.get(run_id, len(places)))
    by = [*ORDER, "place", "strategy.params", "run_id"]
    return frame.assign(place=place).sort_values(by, ignore_index=True).drop(columns="place")


def side_of_run(folder: Path) -> Side:
    """One run folder as a side of a comparison."""
    record = read_record(folder)
    run_id = str(record.record["run_id"])
    frame = parquet.conform(pd.DataFrame([record.row | {"origin": ""}]), RUNS)
    tables = {name: record.rows(name).to_pandas() for name in ("epochs", "ledger")}
    return Side(frame, *({run_id: rows} if len(rows) else {} for rows in tables.values()))


def side_of(name: str, runs: Path) -> Side:
    """The runs that a name stands for: a folder of collected tables, a run folder, or the beginning of a run's id."""
    folder = Path(name)
    if (folder / "runs.parquet").is_file():
        frames = (parquet.by_run(parquet.read_collected(folder, table)) for table in ("epochs", "ledger"))
        return Side(parquet.read_collected(folder, "runs"), *frames)
    try:
        return side_of_run(find_run(runs, name))
    except UserError as error:
        if folder.is_dir():
            way_out = "A folder of tables has runs.parquet: `harness collect` makes one."
            raise UserError(f"{error} {way_out}") from None
        raise


def cause(run: "pd.Series[Any]") -> str:
    """The cause of a failed or missing run, in a line."""
    if run.status == MISSING:
        return "planned, but never recorded"
    rank = run["error.rank"]
    where = "" if pd.isna(rank) or rank < 0 else f"rank {rank}: "
    message = " ".join(run["error.message"].split())
    return f"{where}{run['error.type']}: {message}" if run["error.type"] else f"{where}{message}"


PROJECT_FRAME = re.compile(r'File "[^"\n]*?((?:harness|strategies)/[\w/]+\.py)", line (\d+), in ')
"""A frame of a Python traceback in a file of the harness or of its strategies."""


def error_origin(trace: str) -> str:
    """Return the file, the line and the package in which an error began, or an empty string if no frame tells.

    The origin is the innermost frame in a file of the harness or of its strategies.
    """
    frames = PROJECT_FRAME.findall(trace)
    if not frames:
        return ""
    file, line = frames[-1]
    *package, _ = file.removeprefix("harness/").removesuffix(".py").split("/")
    return f"{file}, line {line}" + (f" ({'.'.join(package)})" if package else "")


def _unchanged(out: Path, frame: pd.DataFrame) -> set[str]:
    """The runs whose row in the tables in place is the one of `frame`.

    The row of a run has its record whole, with medians of measured times: a run that is repeated has another row.
    """
    try:
        before = parquet.read_collected(out, "runs").set_index("run_id")
    except UserError:
        return set()
    now = frame.set_index("run_id")
    both = now.index.intersection(before.index)
    one, other = now.loc[both], before.loc[both]
    same = ((one == other) | (one.isna() & other.isna())).all(axis=1)
    return set(both[same])


def _collected(out: Path, name: str, runs: set[str]) -> dict[str, pa.Table]:
    """The rows of these runs in a table in place, by run."""
    if not runs:
        return {}
    try:
        rows = parquet.table_of_one_call(out, name)
    except UserError:
        return {}
    ids = rows["run_id"].to_numpy()
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1), len(ids)] if len(ids) else []
    slices = {str(ids[start]): rows.slice(start, stop - start) for start, stop in pairwise(starts)}
    return {run_id: slices.get(run_id, rows.slice(0, 0)) for run_id in runs}


def _rows(records: list[Record], name: str, known: Mapping[str, pa.Table]) -> Iterator[pa.Table]:
    """The rows of every run, each with the run id as its first column; `known` are those that need not be read."""
    for record in records:
        run_id = record.record["run_id"]
        if run_id in known:
            yield known[run_id]
            continue
        rows = record.rows(name)
        column = pa.array([run_id] * len(rows), pa.string())
        yield rows.add_column(0, parquet.arrow_schema(TABLES[name]).field(0), column)


def _missing(run: dict[str, Any]) -> dict[str, Any]:
    """The row of a run that was planned and never recorded."""
    record = {"run_id": run["run_id"], "label": run["label"], "status": MISSING, "source": ""}
    return flatten(run["spec"], {**record, "summary": {}, "provenance": {}, "error": None})
