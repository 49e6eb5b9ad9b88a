"""Run folders that were changed by hand, packed with right checksums, as a cheating contributor would, and verified."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

import harness
from harness.report.pack.archive import SUMS, list_checksums, pack_archive
from harness.report.pack.packing import pack_results
from harness.report.pack.reading import ABOUT, FOLDER, SCHEMA, read_pack
from harness.report.pack.verification import Verification, verify_pack
from harness.results.record import read_record
from harness.results.run_summary import summarize_tables
from harness.results.schema import RUN_TABLES
from harness.spec.root import find_root
from tests.synthetic_packs import change_record

ROOT = find_root()


def find_run(runs: Path, strategy: str) -> Path:
    found = [each for each in runs.iterdir() if read(each / "spec.json")["strategy"]["name"] == strategy]
    return found[0]


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def change_table(folder: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> None:
    path = folder / f"{name}.parquet"
    table = pq.read_table(path)
    frame = table.to_pandas()
    changed = change(frame)
    frame = frame if changed is None else changed
    pq.write_table(type(table).from_pandas(frame, table.schema, preserve_index=False), path)


def change_summary(folder: Path) -> None:
    record = read_record(folder)
    summary = summarize_tables({name: record.rows(name).to_pandas() for name in RUN_TABLES})
    change_record(folder, lambda data: data["summary"].update(summary))


def pack(runs: Path, out: Path, *certificates: Path) -> Path:
    none = out.parent / "none"
    return pack_results([runs], "Some Group", out, tables=none, figures=none, certificates=certificates).path


def pack_unchecked(runs: Path, out: Path) -> None:
    """Pack the folder of runs as `pack_results` does, without reading it."""
    files = {
        f"runs/{path.relative_to(runs)}": path.read_bytes() for path in runs.rglob("*") if path.is_file()
    }
    write_pack(files, out)


def write_pack(files: dict[str, bytes], out: Path) -> None:
    about = {"schema": SCHEMA, "contributor": "Some Group", "harness": harness.__version__}
    files = {ABOUT: json.dumps(about).encode()} | files
    out.write_bytes(pack_archive(FOLDER, files | {SUMS: list_checksums(files)}))


def verify_file(path: Path, root: Path = ROOT) -> Verification:
    return verify_pack(read_pack(path), root)


def verify(runs: Path, tmp_path: Path) -> Verification:
    return verify_file(pack(runs, tmp_path / "pack.tar.gz"))


def verify_unchecked(runs: Path, tmp_path: Path) -> Verification:
    """Verify a pack of runs that were changed by hand."""
    pack_unchecked(runs, tmp_path / "pack.tar.gz")
    return verify_file(tmp_path / "pack.tar.gz")


def verdicts_of(found: Verification, run: str) -> dict[str, str]:
    return {result.check: result.verdict for result in found.results if result.run == run}
