"""The report of several packs: verifies them, applies the rules of comparison, and writes tables and one page.

A pack that is refused contributes nothing. A run with a broken check is shown, and the rules mark it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.base.errors import UserError
from harness.base.files import replace_files
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.experiment.trained_models import describe_strategy
from harness.registry import registered_strategies
from harness.report.comparison import ReadPack, compare_packs
from harness.report.figures.framed_tables import FramedTables
from harness.report.pack.reading import RECORD, Pack, read_pack
from harness.report.pack.verification import BROKEN, HOLDS, RunCheck, verify_pack
from harness.report.page import write_report
from harness.results.collect import build_tables
from harness.results.parquet import conform_frame, is_collected, serialize_table, to_arrow
from harness.results.ranking import CONTRIBUTIONS, apply_rules
from harness.results.record import Record
from harness.results.run_row import RunRows
from harness.results.schema import RUNS
from harness.results.statistics import BLOCK
from harness.spec.machine_card import load_machine_card

SUFFIX = ".tar.gz"
MARKER = f"{CONTRIBUTIONS.name}.parquet"
"""The file by which a folder is known as that of a report of packs."""
PAGE = "index.html"


@dataclass(frozen=True)
class PacksReport:
    """A report of packs that was written."""

    page: Path
    rows: pd.DataFrame
    """The runs, with what the rules say about them."""
    packs: Sequence[ReadPack]


def write_packs_report(
    places: Sequence[Path], out: Path, root: Path, on_step: OnStep = ignore_step
) -> PacksReport:
    """Write the page and the tables of all packs in `places` to the folder `out`.

    Graphs that are built under `root` are used to verify the elements of runs.
    """
    is_known = (out / MARKER).is_file() and is_collected(out / MARKER)
    if out.exists() and not is_known and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"{out} exists and is not the folder of a report of packs. Name a new or an empty folder by --out."
        )
    packs = [
        read_and_verify(path, root, folder)
        for path, folder in report_steps(
            find_packs(places).items(), lambda found: f"verifying {found[0].name}", on_step
        )
    ]
    records, rows = list_runs(packs)
    if not records:
        reasons = [each.refusal for each in packs if each.refusal]
        raise UserError(f"No pack has a run that can be read. {' '.join(reasons[:1])}".strip())
    rows = judge_rows(rows, root)
    named = [_name_apart(record, row) for record, (_, row) in zip(records, rows.iterrows(), strict=True)]
    _, tables = build_tables(named, out, on_step)
    files = {out / f"{name}.parquet": data for name, data in tables.items()}
    contributions = serialize_table(to_arrow(rows[CONTRIBUTIONS.names], CONTRIBUTIONS), CONTRIBUTIONS)
    replace_files(files | {out / MARKER: contributions})
    write_report(FramedTables(out), out / PAGE, on_step=on_step, comparison=compare_packs(rows, packs))
    return PacksReport(out / PAGE, rows, packs)


def find_packs(places: Sequence[Path]) -> dict[Path, str]:
    """Return the packs in folders, sorted by name, with the folder of their group: the first below the place.

    A place may be a pack itself, which has no such folder.
    """
    found: dict[Path, str] = {}
    for place in places:
        if place.is_dir():
            for path in sorted(path for path in place.rglob(f"*{SUFFIX}") if path.is_file()):
                found.setdefault(
                    path.resolve(), path.relative_to(place).parts[0] if path.parent != place else "."
                )
        elif place.is_file():
            found.setdefault(place.resolve(), "")
        else:
            raise UserError(f"{place} does not exist. Name packs of `harness pack`, or folders of packs.")
    if not found:
        raise UserError(
            f"There are no packs ({SUFFIX}) in {', '.join(map(str, places))}. `harness pack` makes them."
        )
    return found


def read_and_verify(path: Path, root: Path, folder: str = "") -> ReadPack:
    """Return a pack with the answers of all checks, or the reason why it is refused."""
    try:
        return ReadPack(path.name, verify_pack(read_pack(path), root), folder=folder)
    except UserError as reason:
        return ReadPack(path.name, refusal=str(reason).replace(str(path), path.name))


def list_runs(packs: Sequence[ReadPack]) -> tuple[list[Record], pd.DataFrame]:
    """Return the records of all packs, and their rows. A run that a group packed twice counts once."""
    records, rows, known = [], [], set()
    for number, pack in enumerate(packs, start=1):
        if pack.found is None:
            continue
        for run in pack.found.runs:
            content = run.times or pack.found.pack.runs[run.run_id].get(RECORD)
            measurement = pack.found.pack.contributor, run.run_id, content
            if run.record and measurement not in known:
                known.add(measurement)
                records.append(run.record)
                row = _make_row(run.record, run.checks, pack.found.pack)
                block = f"{number} {row[BLOCK]}" if row[BLOCK] else ""
                own = {"pack": pack.file, "pack_number": number, "folder": pack.folder, "times": run.times}
                rows.append({**row, BLOCK: block, **own})
    frame = pd.DataFrame(rows)
    others = [name for name in frame if name not in RUNS.names]
    return records, conform_frame(frame.drop(columns=others), RUNS).join(frame[others])


def _make_row(record: Record, checks: Sequence[RunCheck], pack: Pack) -> dict[str, Any]:
    """Return the row of a run in the table `runs`, and what its pack says about it."""
    row, verdicts = record.table_rows.run, {check.check: check.verdict for check in checks}
    is_certified, certificate = verdicts["certificate"] == HOLDS, pack.certificates.get(row["strategy.name"])
    return {
        **row,
        "origin": "",
        "bytes_received": None,
        "contributor": pack.contributor,
        "broken": ", ".join(check for check, verdict in verdicts.items() if verdict == BROKEN),
        "is_certified": is_certified,
        "results": certificate.promise if certificate and is_certified else "",
    }


def judge_rows(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Return the rows with what the rules say about them, and with ids that no run of another pack has."""
    promises = find_promises(sorted(set(rows["strategy.name"])))
    judged = apply_rules(rows, promises, find_checked_cards(root, sorted(set(rows["machine.name"]))))
    return judged.assign(run_id=judged.pack_number.astype(str) + "-" + judged.run_id)


def find_checked_cards(root: Path, names: Sequence[str]) -> set[str]:
    """Return the machine cards of this project that were compared with runs."""
    checked = set()
    for name in names:
        with suppress(UserError):  # a card of others is not here
            if load_machine_card(root, name).checked is not None:
                checked.add(name)
    return checked


def find_promises(strategies: Sequence[str]) -> dict[str, str]:
    """Return what strategies promise, as far as they are installed: exact, estimator or approximate."""
    installed = {point.name for point in registered_strategies()}
    promises = {}
    for name in installed.intersection(strategies):
        with suppress(UserError):  # it is registered twice, or cannot be imported
            promises[name] = describe_strategy(name).promise
    return promises


def _name_apart(record: Record, row: "pd.Series[Any]") -> Record:
    """Return the record with a run id, a machine and a block that no other pack has, so that tables keep them apart."""
    own = {"run_id": row.run_id}
    run, failure = record.table_rows
    named = {**run, **own, "machine.name": row.on_machine, BLOCK: row[BLOCK]}
    rows = RunRows(named, {**failure, **own} if failure else None)
    return replace(record, record={**record.record, **own}, table_rows=rows)
