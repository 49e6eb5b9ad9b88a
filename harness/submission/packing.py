"""Packs the recorded runs of a group into one archive, a submission.

    submission/submission.json      the contributor, and the version of the harness that packed it
    submission/runs/RUN_ID/         spec.json, record.json and the tables of each run
    submission/SHA256SUMS           the checksum of every other file

Records are published, so paths in the home folder of a user lose its name. Specs are packed unchanged, because a run is
named by the hash of its spec.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from harness import __version__
from harness.errors import UserError
from harness.files import is_plain_file, list_complete_folders, replace_files
from harness.formatting import format_count
from harness.progress import OnStep, ignore_step
from harness.results.packed_archive import SUMS, list_checksums, pack_archive
from harness.results.record import Record, describe_refused, read_records
from harness.results.schema import RUN_TABLES
from harness.untrusted import hide_home_folders

FOLDER = "submission"
SCHEMA = 1
ABOUT, RUNS = "submission.json", "runs"
SPEC, RECORD = "spec.json", "record.json"
RUN_FILES = (SPEC, RECORD, *(f"{name}.parquet" for name in RUN_TABLES))
"""The files of a run folder that a submission may have."""
CONTRIBUTOR = re.compile(r"[\w][\w .,&'()-]{0,79}")
"""The name of a contributor: letters of any alphabet, digits, and a few signs."""


def pack_submission(
    folders: Sequence[Path], contributor: str, out: Path, on_step: OnStep = ignore_step
) -> Path:
    """Write the submission of all runs in `folders` to `out`, and return its path."""
    records = _read_runs(folders)
    if not CONTRIBUTOR.fullmatch(contributor):
        raise UserError(
            f"{contributor!r} is not accepted as a contributor: at most 80 letters, digits, spaces and .,&'()-."
        )
    about = {"schema": SCHEMA, "contributor": contributor, "harness": __version__}
    files = {ABOUT: f"{json.dumps(about, indent=1, ensure_ascii=False)}\n".encode()}
    for record in records:
        files |= _list_files(record)
    files[SUMS] = list_checksums(files)
    replace_files({out: pack_archive(FOLDER, files, on_step)})
    return out


def _read_runs(folders: Sequence[Path]) -> list[Record]:
    """Return the records in the folders, sorted by run id. A run in two folders must be recorded once."""
    records: dict[str, Record] = {}
    for folder in folders:
        found, refused = read_records(list_complete_folders(folder))
        if refused:
            raise UserError(f"{describe_refused(refused)} A submission has whole records only.")
        for record in found:
            if (run_id := record.folder.name) in records:
                raise UserError(
                    f"{run_id} is in {records[run_id].folder.parent} and in {folder}. Move one of them away."
                )
            records[run_id] = record
    if not records:
        raise UserError(f"There are no runs in {', '.join(map(str, folders))}. `harness run` records some.")
    if local := [record for record in records.values() if ".py:" in record.spec["strategy"]["name"]]:
        raise UserError(
            f"{format_count(len(local), 'run')} trained with a strategy in a file, such as "
            f"{local[0].spec['strategy']['name']}, which others do not have. Install it as a package "
            "(`harness new strategy`), and run its specs again."
        )
    return [records[run_id] for run_id in sorted(records)]


def _list_files(record: Record) -> dict[str, bytes]:
    """Return the files of a run by their names in the archive."""
    folder = record.folder
    names = [name for name in RUN_FILES if is_plain_file(folder / name)]
    files = {f"{RUNS}/{folder.name}/{name}": (folder / name).read_bytes() for name in names}
    place = f"{RUNS}/{folder.name}/{RECORD}"
    return {**files, place: hide_home_folders(files[place].decode()).encode()}
