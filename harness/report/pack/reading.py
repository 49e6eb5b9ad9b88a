"""Reads a pack: an archive with the recorded runs of a group.

    pack/pack.json                the contributor, and the version of the harness that packed it
    pack/runs/RUN_ID/             spec.json, record.json and the tables of each run
    pack/proofs/NAME.json         the proof of a check of the strategy NAME
    pack/tables/, pack/figures/   the collected tables of the runs, and figures drawn of them
    pack/claims.csv, pack/environment.json, pack/README.md
    pack/SHA256SUMS               the checksum of every other file

A pack comes from a stranger. Only its runs and proofs are read; everything else is for people.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from harness.base.documents import parse_json
from harness.base.errors import UserError
from harness.base.untrusted import find_confusable
from harness.base.validation import format_value
from harness.report.pack.archive import SUMS, read_archive
from harness.results.check_proof import MAX_BYTES as MAX_PROOF_BYTES
from harness.results.check_proof import CheckProof, parse_proof
from harness.results.record import MAX_BYTES, Record, check_name, read_record
from harness.results.schema import RUN_TABLES, TABLES

FOLDER = "pack"
SCHEMA = 1
ABOUT, RUNS, PROOFS, FIGURES = "pack.json", "runs", "proofs", "figures"
CLAIMS, ENVIRONMENT, README = "claims.csv", "environment.json", "README.md"
SPEC, RECORD = "spec.json", "record.json"
RUN_FILES = (SPEC, RECORD, *(f"{name}.parquet" for name in RUN_TABLES))
"""The files of a run folder that a pack may have."""
TABLE_FILES = {name: f"tables/{name}.parquet" for name in TABLES}
FIGURE_SUFFIXES = (".pdf", ".png", ".svg", ".csv", ".txt")
CONTRIBUTOR = re.compile(r"[\w][\w .,&'()-]{0,79}")
"""The name of a contributor: letters of any alphabet, digits, and a few signs."""


class Pack(NamedTuple):
    """A pack that was read."""

    contributor: str
    runs: Mapping[str, Mapping[str, bytes]]
    """The files of each run, by run id and by name."""
    proofs: Mapping[str, CheckProof]
    """What its contributor says about checks of strategies, by the name of the strategy."""
    others: Sequence[str]
    """The names of the files for people, which nothing reads or verifies."""

    def read_run(self, run_id: str) -> Record:
        """Return the record of a run. Raises UserError if it is damaged."""
        return check_name(read_record(Path(RUNS, run_id), self.runs[run_id]))


def read_pack(path: Path) -> Pack:
    """Read the pack in an archive. Raises UserError for any other archive."""
    files = read_archive(path, FOLDER)
    try:
        contributor = _check_files(files)
        proofs = _read_proofs(files)
    except UserError as reason:
        raise UserError(f"{path} is refused: {str(reason).rstrip('.')}.") from None
    runs: dict[str, dict[str, bytes]] = {}
    for folder, run_id, name in sorted(place for each in files if len(place := tuple(each.split("/"))) == 3):
        runs.setdefault(run_id, {})[name] = files[f"{folder}/{run_id}/{name}"]
    return Pack(contributor, runs, proofs, sorted(filter(_is_for_people, files)))


def _check_files(files: Mapping[str, bytes]) -> str:
    """Compare all files with their checksums and their names with those of a pack; return the contributor."""
    if unknown := [name for name in files if not _is_expected(name)]:
        raise UserError(f"{unknown[0]} is not a file of a pack")
    if missing := [name for name in (ABOUT, SUMS) if name not in files]:
        raise UserError(f"{missing[0]} is missing")
    if large := [name for name in (ABOUT, SUMS) if len(files[name]) > MAX_BYTES]:
        raise UserError(f"{large[0]} has more than {MAX_BYTES:,} bytes")
    lines = files[SUMS].decode("utf-8", "replace").splitlines()
    sums = {name: given for given, _, name in (line.partition("  ") for line in lines)}
    if len(sums) != len(lines) or set(sums) != set(files) - {SUMS}:
        raise UserError(f"{SUMS} does not list exactly the other files")
    if wrong := [name for name, given in sums.items() if sha256(files[name]).hexdigest() != given]:
        raise UserError(f"{wrong[0]} was changed: it does not have the checksum in {SUMS}")
    about = parse_json(files[ABOUT], ABOUT)
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise UserError(f"{ABOUT} does not have the schema {SCHEMA}, which this harness reads")
    contributor = about.get("contributor")
    if not isinstance(contributor, str):
        raise UserError(f"{ABOUT} has no contributor, but {format_value(contributor)}")
    return check_contributor(contributor)


def check_contributor(name: str) -> str:
    """Return the name of a contributor. Raises UserError for one that is not accepted."""
    if not CONTRIBUTOR.fullmatch(name):
        raise UserError(
            f"{format_value(name)} is not accepted as a contributor: at most 80 letters, digits, spaces and .,&'()-"
        )
    if reason := find_confusable(name):
        raise UserError(
            f"{format_value(name)} is not accepted as a contributor: it {reason}, so it may look like another name"
        )
    return name


def _is_expected(name: str) -> bool:
    """Return True for the name of a file that a pack may have."""
    folder, *rest = name.split("/")
    if folder == PROOFS:
        return len(rest) == 1 and rest[0].endswith(".json")
    is_of_run = folder == RUNS and len(rest) == 2 and rest[1] in RUN_FILES
    return name in (ABOUT, SUMS) or is_of_run or _is_for_people(name)


def _is_for_people(name: str) -> bool:
    folder, *rest = name.split("/")
    if folder == FIGURES:
        return len(rest) == 1 and rest[0].endswith(FIGURE_SUFFIXES)
    return name in (CLAIMS, ENVIRONMENT, README, *TABLE_FILES.values())


def _read_proofs(files: Mapping[str, bytes]) -> dict[str, CheckProof]:
    """Return the proofs of a pack by the names of their strategies. Raises UserError for a damaged one."""
    proofs = {}
    for name in sorted(name for name in files if name.startswith(f"{PROOFS}/")):
        if len(files[name]) > MAX_PROOF_BYTES:
            raise UserError(f"{name} has more than {MAX_PROOF_BYTES:,} bytes")
        proof = parse_proof(files[name], name)
        if name_proof(proof.strategy) != name:
            raise UserError(f"{name} is the proof of another strategy, {format_value(proof.strategy)}")
        proofs[proof.strategy] = proof
    return proofs


def name_proof(strategy: str) -> str:
    """Return the name of a proof in the archive."""
    return f"{PROOFS}/{strategy}.json"
