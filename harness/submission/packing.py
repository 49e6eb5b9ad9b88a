"""Packs the recorded runs of a group into one archive, a submission.

    submission/submission.json      the contributor, and the version of the harness that packed it
    submission/runs/RUN_ID/         spec.json, record.json and the tables of each run
    submission/proofs/NAME.json     the proof of a check of the strategy NAME
    submission/SHA256SUMS           the checksum of every other file

Records are published, so paths in the home folder of a user lose its name. Specs are packed unchanged, because a run is
named by the hash of its spec.
"""

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from harness import __version__
from harness.errors import UserError
from harness.files import is_plain_file, list_complete_folders, replace_files
from harness.formatting import format_count
from harness.progress import OnStep, ignore_step
from harness.results.check_proof import CheckProof, read_proof
from harness.results.packed_archive import SUMS, list_checksums, pack_archive
from harness.results.record import Record, describe_refused, read_records
from harness.results.schema import RUN_TABLES
from harness.untrusted import hide_home_folders
from harness.validation import format_value

FOLDER = "submission"
SCHEMA = 1
ABOUT, RUNS, PROOFS = "submission.json", "runs", "proofs"
SPEC, RECORD = "spec.json", "record.json"
RUN_FILES = (SPEC, RECORD, *(f"{name}.parquet" for name in RUN_TABLES))
"""The files of a run folder that a submission may have."""
CONTRIBUTOR = re.compile(r"[\w][\w .,&'()-]{0,79}")
"""The name of a contributor: letters of any alphabet, digits, and a few signs."""


def pack_submission(
    folders: Sequence[Path],
    contributor: str,
    out: Path,
    on_step: OnStep = ignore_step,
    *,
    proofs: Sequence[Path] = (),
) -> Path:
    """Write the submission of all runs in `folders`, with proofs of their strategies, to `out`; return its path."""
    records = _read_runs(folders)
    proven = _read_proofs(proofs, {record.spec["strategy"]["name"] for record in records})
    if not CONTRIBUTOR.fullmatch(contributor):
        raise UserError(
            f"{contributor!r} is not accepted as a contributor: at most 80 letters, digits, spaces and .,&'()-."
        )
    about = {"schema": SCHEMA, "contributor": contributor, "harness": __version__}
    files = {ABOUT: f"{json.dumps(about, indent=1, ensure_ascii=False)}\n".encode()}
    for record in records:
        files |= _list_files(record)
    files |= {name_proof(proof.strategy): proof.to_json().encode() for proof in proven}
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


def _read_proofs(paths: Sequence[Path], strategies: Collection[str]) -> list[CheckProof]:
    """Read proofs of strategies whose runs are packed, at most one for each strategy."""
    proofs: dict[str, CheckProof] = {}
    for path in paths:
        proof = read_proof(path)
        if proof.strategy not in strategies:
            raise UserError(
                f"{path} is the proof of {format_value(proof.strategy)}, of which no run is packed. Packed are runs of "
                f"{', '.join(sorted(strategies))}."
            )
        if proof.strategy in proofs:
            raise UserError(f"{path} is the second proof of {proof.strategy}. Choose one of them.")
        proofs[proof.strategy] = proof
    return list(proofs.values())


def name_proof(strategy: str) -> str:
    """Return the name of a proof in the archive."""
    return f"{PROOFS}/{strategy}.json"


def _list_files(record: Record) -> dict[str, bytes]:
    """Return the files of a run by their names in the archive."""
    folder = record.folder
    names = [name for name in RUN_FILES if is_plain_file(folder / name)]
    files = {f"{RUNS}/{folder.name}/{name}": (folder / name).read_bytes() for name in names}
    place = f"{RUNS}/{folder.name}/{RECORD}"
    return {**files, place: hide_home_folders(files[place].decode()).encode()}
