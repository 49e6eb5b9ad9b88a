"""Packs the recorded runs of a group into one archive. `harness.report.pack.reading` lists what is in it.

Packs are published, so paths in the home folder of a user lose its name. Specs are packed unchanged, because a run is
named by the hash of its spec. The tables are made of the packed runs; figures and claims are packed if they are of the
same runs.
"""

import csv
import json
from collections.abc import Collection, Sequence
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd

from harness import __version__
from harness.base.errors import UserError
from harness.base.files import (
    check_replaceable,
    is_plain_file,
    list_complete_folders,
    read_head,
    replace_files,
)
from harness.base.formatting import format_count
from harness.base.progress import OnStep, ignore_step
from harness.base.untrusted import hide_home_folders, spreadsheet_cell
from harness.base.validation import format_value
from harness.report.figures.framed_tables import tables_digest
from harness.report.pack.archive import SUMS, has_folder, list_checksums, pack_archive
from harness.report.pack.reading import (
    ABOUT,
    CLAIMS,
    ENVIRONMENT,
    FIGURE_SUFFIXES,
    FIGURES,
    FOLDER,
    README,
    RECORD,
    RUN_FILES,
    RUNS,
    SCHEMA,
    TABLE_FILES,
    check_contributor,
    name_certificate,
)
from harness.results.check_certificate import CheckCertificate, read_certificate
from harness.results.collect import build_tables
from harness.results.parquet import read_claims_table, read_collected
from harness.results.record import Record, describe_refused, read_record, read_records
from harness.results.schema import OK


class PackedResults(NamedTuple):
    """A pack that was written, and how much is in it."""

    path: Path
    runs: int
    certificates: int
    figures: int
    claims: int
    left_out: str
    """Why there are no figures and no claims; empty if they were packed or there are none."""
    skipped: Sequence[str] = ()
    """Which runs are not packed, and why."""


def pack_results(
    folders: Sequence[Path],
    contributor: str,
    out: Path,
    *,
    tables: Path,
    figures: Path,
    certificates: Sequence[Path] = (),
    on_step: OnStep = ignore_step,
) -> PackedResults:
    """Write the pack of the runs in `folders`, with certificates of their strategies, to `out`.

    Damaged records, and runs of strategies that others cannot have, are skipped. Figures and claims of the collected
    tables in `tables` are packed if these are of the same runs.
    """
    check_replaceable(out, lambda path: has_folder(path, FOLDER), "a pack")
    records, skipped = _read_runs(folders)
    proven = _read_certificates(certificates, {record.spec["strategy"]["name"] for record in records})
    check_contributor(contributor)
    about = {"schema": SCHEMA, "contributor": contributor, "harness": __version__}
    files = {ABOUT: f"{json.dumps(about, indent=1, ensure_ascii=False)}\n".encode()}
    packed = []
    for record in records:
        contents = _list_files(record)
        packed.append(read_record(Path(RUNS, record.folder.name), contents))
        files |= {f"{RUNS}/{record.folder.name}/{name}": data for name, data in contents.items()}
    with TemporaryDirectory() as folder:  # which has no earlier tables
        collection, made = build_tables(packed, Path(folder), on_step)
    files |= {TABLE_FILES[name]: data for name, data in made.items()}
    files |= {
        name_certificate(certificate.strategy): certificate.to_json().encode() for certificate in proven
    }
    left_out = _find_difference(tables, collection.runs)
    claims = pd.DataFrame() if left_out else read_claims_table(tables)
    drawn = [] if left_out else _list_figures(figures, tables)
    files |= {f"{FIGURES}/{path.name}": path.read_bytes() for path in drawn}
    files |= {CLAIMS: _format_claims(claims).encode()} if len(claims) else {}
    files[ENVIRONMENT] = _describe_environments(collection.runs).encode()
    files[README] = _format_readme(contributor, collection.runs).encode()
    files[SUMS] = list_checksums(files)
    replace_files({out: pack_archive(FOLDER, files, on_step)})
    pictures = len({path.stem for path in drawn})
    return PackedResults(out, len(packed), len(proven), pictures, len(claims), left_out, skipped)


def _read_runs(folders: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """Return the records to pack, sorted by run id, and what is skipped. A run in two folders must be recorded once."""
    records, skipped = dict[str, Record](), list[str]()
    for folder in folders:
        found, refused = read_records(list_complete_folders(folder))
        if refused:
            skipped.append(describe_refused(refused))
        for record in found:
            if (run_id := record.folder.name) in records:
                raise UserError(
                    f"{run_id} is in {records[run_id].folder.parent} and in {folder}. Move one of them away."
                )
            records[run_id] = record
    local = [run_id for run_id, record in records.items() if ".py:" in record.spec["strategy"]["name"]]
    if local:
        skipped.append(
            f"{format_count(len(local), 'run')} trained with a strategy in a file, such as "
            f"{records[local[0]].spec['strategy']['name']}, which others do not have. Install it as a package "
            "(`harness new strategy`), and run its specs again."
        )
    if not (packed := sorted(records.keys() - set(local))):
        nothing = f"There are no runs in {', '.join(map(str, folders))} to pack. `harness run` records some."
        raise UserError(" ".join([nothing, *skipped]))
    return [records[run_id] for run_id in packed], skipped


def _read_certificates(paths: Sequence[Path], strategies: Collection[str]) -> list[CheckCertificate]:
    """Read certificates of strategies whose runs are packed, at most one for each strategy."""
    certificates: dict[str, CheckCertificate] = {}
    for path in paths:
        certificate = read_certificate(path)
        if certificate.strategy not in strategies:
            raise UserError(
                f"{path} is the certificate of {format_value(certificate.strategy)}, of which no run is packed. Packed "
                f"are runs of {', '.join(sorted(strategies))}."
            )
        if certificate.strategy in certificates:
            raise UserError(
                f"{path} is the second certificate of {certificate.strategy}. Choose one of them."
            )
        certificates[certificate.strategy] = certificate
    return list(certificates.values())


def _list_files(record: Record) -> dict[str, bytes]:
    """Return the files of a run folder by their names."""
    paths = [record.folder / name for name in RUN_FILES if is_plain_file(record.folder / name)]
    files = {path.name: path.read_bytes() for path in paths}
    return {**files, RECORD: hide_home_folders(files[RECORD].decode()).encode()}


def _find_difference(tables: Path, packed: pd.DataFrame) -> str:
    """Return in what collected tables differ from those of the packed runs; empty if they do not, or do not exist.

    Values that were not measured need no record in a pack.
    """
    if not (tables / "runs.parquet").is_file():
        return ""
    collected, ours = (
        {*frame[frame.source == "measured"][["run_id", "provenance.started"]].itertuples(index=False)}
        for frame in (read_collected(tables, "runs"), packed)
    )
    if collected == ours:
        return ""
    return (
        f"{tables / 'runs.parquet'} has {format_count(len(collected), 'measured run')}, of which "
        f"{len(collected & ours)} are among the {len(ours)} that are packed"
    )


def _list_figures(folder: Path, tables: Path) -> list[Path]:
    """List the files of the figures that were drawn of these tables.

    Links are skipped, because they may lead to any file of the machine.
    """
    if not (tables / "runs.parquet").is_file() or not folder.is_dir():
        return []
    mark = f"tables {tables_digest(tables)}"
    paths = [
        path for path in sorted(folder.iterdir()) if path.suffix in FIGURE_SUFFIXES and is_plain_file(path)
    ]
    ours = {path.stem for path in paths if path.suffix == ".svg" and mark in read_head(path, 2000)}
    return [path for path in paths if path.stem in ours]


def _format_claims(claims: pd.DataFrame) -> str:
    """Format every claim as CSV, with our value, the verdict, and the command that checks it."""
    text = StringIO()
    columns = ["id", "paper", "place", "what", "config", "printed", "ours", "verdict", "uncounted", "reason"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "command"])
    for _, claim in claims.iterrows():
        option = f"--figure {claim.figure}" if claim.figure else f"--paper {claim.paper}"
        cells = [*(claim[name] for name in columns), f"harness claims {option}"]
        writer.writerow(map(spreadsheet_cell, cells))
    return text.getvalue()


PER_RUN_PROVENANCE = {
    f"provenance.{name}"
    for name in (
        *("command", "started", "finished", "load_average", "store_manifest", "graph_hash", "strategy_code"),
        *("block", "position", "process"),
    )
}
"""Columns of provenance that differ from run to run."""


def _describe_environments(runs: pd.DataFrame) -> str:
    """Describe every distinct machine, version and setting of the runs as JSON, with the number of runs."""
    names = [
        name for name in map(str, runs) if name.startswith("provenance.") and name not in PER_RUN_PROVENANCE
    ]
    counts = runs[runs.status == OK][names].map(str).value_counts(sort=False)
    found = [
        {name.removeprefix("provenance."): value for name, value in zip(names, key, strict=True)}
        | {"runs": int(number)}
        for key, number in zip(counts.index, counts, strict=True)
    ]
    return json.dumps(found, indent=1) + "\n"


def _format_readme(contributor: str, runs: pd.DataFrame) -> str:
    """Format README.md: what the pack has, how long its runs took, and how to verify and repeat them."""
    measured = runs[(runs.source == "measured") & (runs.status == OK)]
    hours = (measured["provenance.finished"] - measured["provenance.started"]).dt.total_seconds().sum() / 3600
    most = int(measured.ranks.max()) if len(measured) else 0
    return f"""# Results of {contributor}

{format_count(len(runs), "run")} of {", ".join(sorted(set(runs["strategy.name"])))} on \
{", ".join(sorted(set(runs["dataset.name"])))}. The measured runs took {hours:.2f} hours in all, on at most \
{format_count(most, "rank")}.

- `runs/`: the spec, the record and the tables of each run; `tables/`: the tables of all runs.
- `certificates/`: checks of strategies. `figures/` and `claims.csv`, if they were made: figures of the runs, and the
  claims of papers with our values and the command that checks each.
- `environment.json`: machines, versions and settings. `SHA256SUMS`: `sha256sum --check SHA256SUMS` checks all files.

    harness verify PACK.tar.gz
    harness report PACK.tar.gz --out report

verify the pack and show its runs. To repeat them, check out the commit that `environment.json` names, call `make setup`
and then

    harness run --spec runs/*/spec.json --out repeated

`harness data info NAME` says where a graph comes from.
"""
