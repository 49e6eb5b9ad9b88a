"""Collects run folders into tables: `runs` with one row for each run, `failures` with one row for each run that is not
ok, and the concatenated tables of all runs.

The tables are a function of the records: collecting twice changes no file. A planned run without a record has a row in
`runs` and in `failures`, with status missing. Runs that were collected before are copied from the existing tables, so
only new or repeated runs are read completely.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa

from harness.base.children import map_in_forks
from harness.base.errors import UserError
from harness.base.files import check_replaceable, list_complete_folders, replace_files
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.results import parquet
from harness.results.consistency import count_columns, make_arrays
from harness.results.record import Record, describe_refused, find_run, read_record, read_records
from harness.results.run_row import RunRows, make_rows
from harness.results.schema import FAILURES, MISSING, RUN_TABLES, RUNS, TABLES
from harness.results.statistics import Side
from harness.spec.plan import read_plan

WORTH_PROCESSES = 100
"""The runs from which processes share the reading of their tables."""
ORDER = ["dataset.name", "strategy.name", "ranks", "grid", "launch"]
"""The columns by which runs are sorted. Ties are in the order of the plan, and then by parameters."""


@dataclass(frozen=True)
class Collection:
    """The result of collecting, for programs and for people."""

    out: Path
    runs: pd.DataFrame
    failures: pd.DataFrame
    """The table `failures`: the runs whose status is not ok, including missing ones."""
    refused: Sequence[UserError] = ()
    """The reasons why folders without a whole record were left out."""

    @property
    def contradictory(self) -> pd.DataFrame:
        """The runs whose records contradict themselves (`harness.results.consistency`)."""
        return self.runs[self.runs.contradiction != ""]

    @property
    def is_complete(self) -> bool:
        """True if all runs succeeded, none contradicts itself, and no folder was left out."""
        return self.failures.empty and self.contradictory.empty and not self.refused

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and failures as JSON data."""
        columns = ["run_id", "label", "status", "error", "message", "rank_id"]
        return {
            "tables": [str(self.out / f"{name}.parquet") for name in TABLES],
            "runs": self.runs.status.value_counts().to_dict(),
            "failures": json.loads(self.label_failures()[columns].to_json(orient="records")),
            "contradictory": self.contradictory[["run_id", "label", "contradiction"]].to_dict("records"),
            "left_out": [str(each) for each in self.refused],
        }

    def label_failures(self) -> pd.DataFrame:
        """Return the failures with the labels of their runs."""
        return self.failures.merge(self.runs[["run_id", "label"]], on="run_id")


def collect(
    runs: Path | Sequence[Path],
    out: Path,
    plan: Path | None = None,
    unplanned: Sequence[Path] = (),
    on_step: OnStep = ignore_step,
) -> Collection:
    """Collect run folders into tables.

    Args:
        runs: The folders of runs. If several contain the same run, the first one is used.
        out: The folder of the tables.
        plan: Collect only the runs of this plan, and add rows for its missing runs.
        unplanned: Further folders, whose records are collected although no plan lists them: values that papers print,
            predictions and emulations.
        on_step: Called before each step.
    """
    _check_tables(out)
    places = [runs] if isinstance(runs, Path) else list(runs)
    found: dict[str, Path] = {}
    for place in reversed(places):
        if not place.is_dir():
            raise UserError(
                f"The folder of runs {place} does not exist. `harness run` makes it, or name another one with --runs."
            )
        found |= {path.name: path for path in list_complete_folders(place)}
    planned = read_plan(plan).runs_by_id if plan else {run_id: {} for run_id in sorted(found)}
    order = list(planned) if plan else []
    others = {path.name: path for place in unplanned for path in list_complete_folders(place)}
    found, planned = found | others, planned | {run_id: {} for run_id in sorted(others)}
    folders = [found[run_id] for run_id in planned if run_id in found]
    records, refused = read_records(report_steps(folders, lambda folder: f"reading {folder.name}", on_step))
    while True:
        try:
            collection, files = build_tables(
                records, out, on_step, planned=planned, order=order, several=len(places) > 1
            )
        except UserError:  # a table is damaged: find all other damaged tables too
            sound, damaged = _split_damaged(records)
            if len(sound) == len(records):
                raise
            records, refused = sound, refused + damaged
        else:
            remaining = [record for record in records if record.folder.is_dir()]
            if len(remaining) == len(records):
                break
            records = remaining  # `harness runs prune` has removed the others meanwhile
    if not records:
        owner = f" of the plan {plan}" if plan else ""
        some = " and ".join(map(str, places))
        if refused:
            raise UserError(f"{some} holds no run{owner} that can be read. {describe_refused(refused)}")
        raise UserError(f"{some} holds no run{owner} yet. Make runs with `harness run` or the workflow.")
    replace_files({out / f"{name}.parquet": data for name, data in files.items()})
    return replace(collection, refused=refused)


def _check_tables(out: Path) -> None:
    """Raise UserError if a file of another program has the name of a table."""
    for name in TABLES:
        check_replaceable(out / f"{name}.parquet", parquet.is_collected, "a table of the harness")


def build_tables(
    records: Sequence[Record],
    out: Path,
    on_step: OnStep = ignore_step,
    *,
    planned: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    order: Sequence[str] = (),
    several: bool = False,
) -> tuple[Collection, dict[str, bytes]]:
    """Return the collection, and the content of all files by table name. Both are empty without records.

    The rows of unchanged runs are taken from the tables in `out`, if there are any.
    """
    if not records:
        return Collection(out, pd.DataFrame(), pd.DataFrame()), {}
    by_id = {record.record["run_id"]: record for record in records}
    rows = [
        _set_origin(record.table_rows, str(record.folder.parent) if several else "") for record in records
    ]
    rows += [_make_missing_rows(run) for run_id, run in planned.items() if run_id not in by_id and run]
    runs = _sort_runs(parquet.conform_frame(pd.DataFrame([row.run for row in rows]), RUNS), order)
    failures = _select_failures(rows, runs)
    ordered = [by_id[run_id] for run_id in runs.run_id if run_id in by_id]
    known, collected = _load_unchanged(out, runs, failures)
    whole = {"runs": (runs, RUNS), "failures": (failures, FAILURES)}
    # The mark depends only on the records.
    content = [parquet.serialize_table(parquet.to_arrow(*each), each[1]) for each in whole.values()]
    mark = sha256(b"".join(content)).hexdigest()
    files = {name: parquet.TableFile(TABLES[name], mark) for name in RUN_TABLES}
    changed = [record for record in ordered if record.record["run_id"] not in known]
    read = map_in_forks(_read_tables, changed, WORTH_PROCESSES)
    for record in report_steps(ordered, lambda record: f"collecting {record.folder.name}", on_step):
        run_id = record.record["run_id"]
        if run_id in known:
            tables = {name: rows[run_id] for name, rows in collected.items()}
        else:
            known[run_id], tables = next(read)
        for name, rows in tables.items():
            files[name].add(rows)
    for name in COUNTED:
        runs[name] = [known.get(run_id, {}).get(name) for run_id in runs.run_id]
    runs = parquet.conform_frame(runs, RUNS)
    serialized = {name: file.finish() for name, file in files.items()}
    serialized["runs"] = parquet.serialize_table(parquet.to_arrow(runs, RUNS), RUNS, mark)
    serialized["failures"] = parquet.serialize_table(parquet.to_arrow(failures, FAILURES), FAILURES, mark)
    return Collection(out, runs, failures), serialized


def _read_tables(record: Record) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return the counted columns of a run, and its tables as collected ones have them."""
    recorded = {name: record.rows(name) for name in RUN_TABLES}
    tables = {name: _add_run_id(rows, record.record["run_id"], name) for name, rows in recorded.items()}
    return count_columns(make_arrays(record.spec, record.record, recorded)), tables


def _set_origin(rows: RunRows, origin: str) -> RunRows:
    return rows._replace(run={**rows.run, "origin": origin})


def _select_failures(rows: Sequence[RunRows], runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table `failures`, in the order of `runs`."""
    by_id = {row.run["run_id"]: row.failure for row in rows if row.failure}
    ordered = [by_id[run_id] for run_id in runs.run_id if run_id in by_id]
    return parquet.conform_frame(pd.DataFrame(ordered), FAILURES)


def _split_damaged(records: Sequence[Record]) -> tuple[list[Record], list[UserError]]:
    """Return the records whose tables can be read, and the errors of the others. Removed runs are in neither."""
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


def _sort_runs(frame: pd.DataFrame, planned: Sequence[str]) -> pd.DataFrame:
    places = {run_id: place for place, run_id in enumerate(planned)}
    place = frame.run_id.map(lambda run_id: places.get(run_id, len(places)))
    by = [*ORDER, "place", "strategy.params", "run_id"]
    return frame.assign(place=place).sort_values(by, ignore_index=True).drop(columns="place")


def load_side_of_runs(folders: Sequence[Path]) -> Side:
    """Load run folders as one side of a comparison."""
    return make_side([read_record(folder) for folder in folders])


def make_side(records: Sequence[Record]) -> Side:
    """Make one side of a comparison of records."""
    epochs, ledgers = (
        {str(record.record["run_id"]): rows for record in records if len(rows := record.table(name))}
        for name in ("epochs", "ledger")
    )
    return Side(pd.concat([record.make_runs_row() for record in records], ignore_index=True), epochs, ledgers)


def find_launches(folder: Path) -> list[Path]:
    """Return the folder of a run, or of all its launches if they are in the same place: 0, 1 and so on."""
    record = read_record(folder)
    if record.record["source"] != "measured" or record.folder.name != record.record["run_id"]:
        return [folder]
    spec = record.parse_spec()
    places = (folder.parent / spec.model_copy(update={"launch": each}).run_id for each in count())
    launches = list(takewhile(lambda place: (place / "record.json").is_file(), places))
    return launches if folder.name in {place.name for place in launches} else [folder]


def load_side(name: str, runs: Path, *, all_launches: bool = True) -> Side:
    """Load the runs of a name: a folder of collected tables, a run folder, or the beginning of a run id.

    With `all_launches`, a run stands for all launches of its spec.
    """
    folder = Path(name)
    if (folder / "runs.parquet").is_file():
        frame = parquet.read_collected(folder, "runs")
        epochs, ledger = (parquet.read_collected(folder, table) for table in ("epochs", "ledger"))
        return Side(frame, parquet.RunTable(epochs), parquet.RunTable(ledger))
    try:
        folder = find_run(runs, name)
        return load_side_of_runs(find_launches(folder) if all_launches else [folder])
    except UserError as error:
        if folder.is_dir():
            way_out = "A folder of tables contains runs.parquet: make one with `harness collect`."
            raise UserError(f"{error} {way_out}") from None
        raise


COUNTED = [column.name for column in RUNS.columns if column.counted]


def _load_unchanged(
    out: Path, runs: pd.DataFrame, failures: pd.DataFrame
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, pa.Table]]]:
    """Return the counted columns of the runs whose rows in the existing tables are the same, and their other tables.

    The other columns contain the whole record with its measured times, so a repeated run has other rows.
    """
    try:
        before, failed = (parquet.read_collected(out, name) for name in ("runs", "failures"))
        same = _find_equal_rows(runs, before) - (set(failures.run_id) - _find_equal_rows(failures, failed))
        tables = {name: _load_collected_rows(out, name, same) for name in RUN_TABLES}
    except UserError:
        return {}, {}
    rows = before[before.run_id.isin(same)][["run_id", *COUNTED]].itertuples(index=False)
    return {str(run_id): dict(zip(COUNTED, values, strict=True)) for run_id, *values in rows}, tables


def _find_equal_rows(frame: pd.DataFrame, before: pd.DataFrame) -> set[str]:
    """Return the ids of the runs that have equal rows in both, apart from columns that collecting counts."""
    now, before = (
        each.drop(columns=COUNTED, errors="ignore").set_index("run_id") for each in (frame, before)
    )
    both = now.index.intersection(before.index)
    one, other = now.loc[both], before.loc[both]
    same = ((one == other) | (one.isna() & other.isna())).all(axis=1)
    return set(both[same])


def _load_collected_rows(out: Path, name: str, runs: set[str]) -> dict[str, pa.Table]:
    """Load the rows of these runs from an existing table, by run id. Raises UserError if it cannot be read."""
    if not runs:
        return {}
    rows = parquet.read_consistent_table(out, name)
    parts = parquet.find_run_slices(rows["run_id"].to_numpy())
    return {run_id: rows[parts.get(run_id, slice(0))] for run_id in runs}


def _add_run_id(rows: pa.Table, run_id: str, name: str) -> pa.Table:
    """Return the rows of a table of a run folder as a collected table has them, with the run id as first column."""
    column = pa.array([run_id] * len(rows), pa.string())
    return rows.add_column(0, parquet.arrow_schema(TABLES[name]).field(0), column)


def _make_missing_rows(run: dict[str, Any]) -> RunRows:
    """Return the rows of a run that was planned and not recorded."""
    record = {"run_id": run["run_id"], "label": run["label"], "status": MISSING, "source": ""}
    return make_rows(run["spec"], {**record, "summary": {}, "provenance": {}, "error": None})
