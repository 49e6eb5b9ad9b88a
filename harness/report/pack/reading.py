"""Reads a pack: an archive with the recorded runs of a group.

    pack/pack.json                the contributor, and the version of the harness that packed it
    pack/runs/RUN_ID/             spec.json, record.json and the tables of each run
    pack/certificates/NAME.json         the certificate of a check of the strategy NAME
    pack/tables/, pack/figures/   the collected tables of the runs, and figures drawn of them
    pack/claims.csv, pack/environment.json, pack/README.md
    pack/SHA256SUMS               the checksum of every other file

A pack comes from a stranger. Only its runs and certificates are read; everything else is for people.
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
from harness.results.check_certificate import MAX_BYTES as MAX_CERTIFICATE_BYTES
from harness.results.check_certificate import CheckCertificate, parse_certificate
from harness.results.record import MAX_BYTES, Record, check_name, read_record
from harness.results.schema import RUN_TABLES, TABLES

FOLDER = "pack"
SCHEMA = 1
ABOUT, RUNS, CERTIFICATES, FIGURES = "pack.json", "runs", "certificates", "figures"
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
    certificates: Mapping[str, CheckCertificate]
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
        certificates = _read_certificates(files)
    except UserError as reason:
        raise UserError(f"{path} is refused: {str(reason).rstrip('.')}.") from None
    runs: dict[str, dict[str, bytes]] = {}
    for folder, run_id, name in sorted(place for each in files if len(place := tuple(each.split("/"))) == 3):
        runs.setdefault(run_id, {})[name] = files[f"{folder}/{run_id}/{name}"]
    return Pack(contributor, runs, certificates, sorted(filter(_is_for_people, files)))


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
    if folder == CERTIFICATES:
        return len(rest) == 1 and rest[0].endswith(".json")
    is_of_run = folder == RUNS and len(rest) == 2 and rest[1] in RUN_FILES
    return name in (ABOUT, SUMS) or is_of_run or _is_for_people(name)


def _is_for_people(name: str) -> bool:
    folder, *rest = name.split("/")
    if folder == FIGURES:
        return len(rest) == 1 and rest[0].endswith(FIGURE_SUFFIXES)
    return name in (CLAIMS, ENVIRONMENT, README, *TABLE_FILES.values())


def _read_certificates(files: Mapping[str, bytes]) -> dict[str, CheckCertificate]:
    """Return the certificates of a pack by the names of their strategies. Raises UserError for a damaged one."""
    certificates = {}
    for name in sorted(name for name in files if name.startswith(f"{CERTIFICATES}/")):
        if len(files[name]) > MAX_CERTIFICATE_BYTES:
            raise UserError(f"{name} has more than {MAX_CERTIFICATE_BYTES:,} bytes")
        certificate = parse_certificate(files[name], name)
        if name_certificate(certificate.strategy) != name:
            raise UserError(
                f"{name} is the certificate of another strategy, {format_value(certificate.strategy)}"
            )
        certificates[certificate.strategy] = certificate
    return certificates


def name_certificate(strategy: str) -> str:
    """Return the name of a certificate in the archive."""
    return f"{CERTIFICATES}/{strategy}.json"
