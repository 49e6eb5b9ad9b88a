"""Reads submissions for the site: verifies each archive once, and keeps its rows next to the site.

An archive that is refused contributes nothing. A run with a broken check has a row, which the rules mark.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness import __version__
from harness.children import die_with_parent
from harness.documents import read_json
from harness.errors import UserError
from harness.files import hash_file, replace_files
from harness.progress import OnStep, ignore_step, report_steps
from harness.results.check_proof import CheckProof
from harness.results.contributed_rows import ROWS, make_rows
from harness.results.parquet import read_table, serialize_table
from harness.results.run_summary import compute_bytes_received
from harness.submission.verification import HOLDS, RunCheck, SubmittedRun, read_submission, verify_run

DIGITS = 12
"""The digits of a checksum that name a submission."""
SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class Contribution:
    """What one archive contributes."""

    file: str
    """The name of the archive."""
    digest: str
    """The first digits of its checksum."""
    contributor: str = ""
    rows: pa.Table | None = None
    """Its runs; None if it was refused."""
    unreadable: Sequence[RunCheck] = ()
    """The answers for runs that could not be read, which have no row."""
    refusal: str = ""
    """Why the archive was refused."""


def find_archives(places: Sequence[Path]) -> list[Path]:
    """Return the archives in the folders, sorted by name. A place may be an archive itself."""
    found: list[Path] = []
    for place in places:
        if place.is_file():
            found.append(place)
        elif place.is_dir():
            found += sorted(path for path in place.rglob(f"*{SUFFIX}") if path.is_file())
        else:
            raise UserError(f"{place} does not exist. Name folders of archives of `harness submission pack`.")
    if not found:
        raise UserError(
            f"There are no archives ({SUFFIX}) in {', '.join(map(str, places))}. `harness submission pack` makes them."
        )
    return list(dict.fromkeys(path.resolve() for path in found))


def read_contributions(
    archives: Sequence[Path], root: Path, kept: Path, on_step: OnStep = ignore_step
) -> list[Contribution]:
    """Return what the archives contribute, each archive once. Those verified before are read from the folder `kept`."""
    read = partial(read_contribution, root=root, kept=kept)
    workers = min(len(os.sched_getaffinity(0)), len(archives))
    with ExitStack() as stack:
        found: Iterator[Contribution] = map(read, archives)
        if workers > 1:
            context = get_context("fork")
            pool = ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(),))
            found = stack.enter_context(pool).map(read, archives, chunksize=1)
        contributions = [
            next(found) for _ in report_steps(archives, lambda path: f"verifying {path.name}", on_step)
        ]
    by_digest = {each.digest: each for each in reversed(contributions)}
    return sorted(by_digest.values(), key=lambda each: (each.contributor, each.file, each.digest))


def _start_worker(parent: int) -> None:
    die_with_parent(parent)()


def read_contribution(archive: Path, root: Path, kept: Path) -> Contribution:
    """Verify an archive and keep its rows, or read the rows that were kept."""
    digest = hash_file(archive)[:DIGITS]
    about, table = kept / f"{digest}.json", kept / f"{digest}.parquet"
    try:
        known = read_json(about, str(about))
        if known.get("harness") == __version__:
            rows = read_table(table, ROWS, "Build the site again.")
            unreadable = [RunCheck(*each) for each in known["unreadable"]]
            return Contribution(archive.name, digest, known["contributor"], rows, unreadable)
    except (UserError, KeyError, TypeError):
        pass  # it was not verified before, or by another version
    try:
        contribution = _verify(archive, digest, root)
    except UserError as reason:
        return Contribution(archive.name, digest, refusal=str(reason).replace(str(archive), archive.name))
    assert contribution.rows is not None
    document = {
        "harness": __version__,
        "contributor": contribution.contributor,
        "unreadable": [list(each) for each in contribution.unreadable],
    }
    replace_files(
        {
            table: serialize_table([contribution.rows], ROWS),
            about: json.dumps(document).encode(),
        }
    )
    return contribution


def _verify(archive: Path, digest: str, root: Path) -> Contribution:
    rows: list[dict[str, Any]] = []
    unreadable: list[RunCheck] = []
    submission = read_submission(archive)
    for run_id in submission.runs:
        run, checks = verify_run(run_id, submission, root)
        if run is None:
            unreadable += [check for check in checks if check.reason]
            continue
        rows.append(
            {
                "contributor": submission.contributor,
                "submission": digest,
                "place": len(rows),
                "results": _read_promise(run, checks, submission.proofs),
                "checks": json.dumps({check.check: [check.verdict, check.reason] for check in checks}),
                **_make_row(run),
            }
        )
    return Contribution(archive.name, digest, submission.contributor, make_rows(rows), unreadable)


def _read_promise(run: SubmittedRun, checks: Sequence[RunCheck], proofs: Mapping[str, CheckProof]) -> str:
    """Return what the proof of a run's strategy says that it promises; empty without a proof of its code."""
    proof = proofs.get(run.record.spec["strategy"]["name"])
    is_proven = any(check.check == "proof" and check.verdict == HOLDS for check in checks)
    return proof.promise if proof and is_proven else ""


def _make_row(run: SubmittedRun) -> dict[str, Any]:
    """Return the row of a run in the table `runs`, and its memory."""
    row = {**run.record.table_rows.run, "origin": ""}
    if row["elements_received"] is not None:
        row["bytes_received"] = compute_bytes_received(run.table("ledger"))
    memory = run.table("memory")
    if len(memory["rank_id"]):
        _, rank = np.unique(memory["rank_id"], return_inverse=True)
        held = np.bincount(rank, np.nan_to_num(memory["persistent_bytes"]))
        on_device, on_host = (float(memory[f"{place}_peak_bytes"].max()) for place in ("device", "host"))
        row["persistent_bytes"] = float(held.max()) or None
        row["peak_bytes"] = on_device or on_host or None
    return row
