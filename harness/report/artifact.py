"""The archive that the evaluation of a paper's artifact asks for: runs, results, and how to check and repeat them.

The archive is a function of the tables, the figures and the checkout: the same input gives the same bytes.
"""

import csv
import gzip
import json
import tarfile
from hashlib import sha256
from io import BytesIO, StringIO
from pathlib import Path

import pandas as pd

from harness.errors import UserError
from harness.figures.drawing import tables_digest
from harness.files import is_plain_file, replace_files
from harness.progress import OnStep, ignore_step, report_steps
from harness.report import summary
from harness.results.parquet import read_claims_table, read_collected
from harness.results.schema import OK, TABLES
from harness.untrusted import spreadsheet_cell
from harness.validation import check_name, format_value

ALONE = ("constraints.txt", "pyproject.toml", "README.md", "LICENSE")
"""Files of the checkout that go along."""
FOLDER = "artifact"
DRAWINGS = (".pdf", ".png", ".svg", ".csv", ".txt")


def pack(
    root: Path, tables: Path, figures: Path, report: Path, out: Path, on_step: OnStep = ignore_step
) -> Path:
    """Writes the archive `out`; returns its path."""
    runs, claims = read_collected(tables, "runs"), read_claims_table(tables)
    if not report.is_file() or tables_digest(tables) not in report.read_text(encoding="utf-8"):
        raise UserError(f"{report} is not the report of these tables. `harness report` writes it.")
    names = [name for name in (*TABLES, "claims") if (tables / f"{name}.parquet").is_file()]
    files = {
        **{name: (root / name).read_bytes() for name in ALONE if (root / name).is_file()},
        **{f"tables/{name}.parquet": (tables / f"{name}.parquet").read_bytes() for name in names},
        **{f"figures/{path.name}": path.read_bytes() for path in _drawings(figures)},
        **{f"specs/{_member(run.run_id)}.json": f"{run.spec}\n".encode() for _, run in runs.iterrows()},
        "report.html": report.read_bytes(),
        "claims.csv": _claims(claims).encode(),
        "environment.json": _environment(runs).encode(),
        "ARTIFACT.md": _page(
            runs, claims, sum(path.stat().st_size for path in tables.glob("*.parquet"))
        ).encode(),
    }
    sums = "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    files["SHA256SUMS"] = sums.encode()
    replace_files({out: _packed(files, on_step)})
    return out


def _member(run_id: str) -> str:
    """The id of a run as a name in the archive. A record may come from others, and must not be unpacked elsewhere."""
    try:
        return check_name(run_id)
    except ValueError as error:
        raise UserError(
            f"The tables have a run with the id {format_value(run_id)}: {error}. Find its record by "
            "`harness runs list`, move its folder away, and collect again."
        ) from None


def _drawings(folder: Path) -> list[Path]:
    """The files of figures in a folder, with their numbers and captions; a link may lead to any file of the machine."""
    return [path for path in sorted(folder.iterdir()) if path.suffix in DRAWINGS and is_plain_file(path)]


def _packed(files: dict[str, bytes], on_step: OnStep) -> bytes:
    """A tar archive, compressed, without dates and owners."""
    buffer = BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in report_steps(sorted(files.items()), lambda file: f"packing {file[0]}", on_step):
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    return buffer.getvalue()


def _claims(claims: pd.DataFrame) -> str:
    """Every claim with our value, the verdict, and the command that checks it."""
    text = StringIO()
    said = ["id", "paper", "place", "what", "config", "printed", "ours", "verdict", "reason"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*said, "command"])
    for _, claim in claims.iterrows():
        which = f"--figure {claim.figure}" if claim.figure else f"--paper {claim.paper}"
        cells = [*(claim[name] for name in said), f"harness claims {which}"]
        writer.writerow(map(spreadsheet_cell, cells))
    return text.getvalue()


def _environment(runs: pd.DataFrame) -> str:
    """Every different machine, version and setting of the runs, with the number of runs."""
    names = [name for name in map(str, runs) if name.startswith("provenance.") and name not in OF_A_RUN]
    counts = runs[runs.status == OK][names].map(str).value_counts(sort=False)
    found = [
        {name.removeprefix("provenance."): value for name, value in zip(names, key, strict=True)}
        | {"runs": int(number)}
        for key, number in zip(counts.index, counts, strict=True)
    ]
    return json.dumps(found, indent=1) + "\n"


OF_A_RUN = {
    f"provenance.{name}" for name in ("command", "started", "finished", "load_average", "store_manifest")
}
"""Provenance that differs from run to run."""


def _page(runs: pd.DataFrame, claims: pd.DataFrame, size: int) -> str:
    """The page of the artifact: what it holds, how long it took, how to check it."""
    measured = runs[(runs.source == "measured") & (runs.status == OK)]
    hours = (measured["provenance.finished"] - measured["provenance.started"]).sum() / 3600
    most = int(measured.ranks.max()) if len(measured) else 0
    verdicts = "".join(f"- {count} {name}\n" for name, count in claims.verdict.value_counts().items())
    graphs = ", ".join(sorted(set(runs["dataset.name"])))
    return f"""# Artifact

{summary.headline(runs)}; {"; ".join(summary.facts(runs))}.

| | |
| --- | --- |
| time of the measured runs, one after the other | {hours:.2f} hours, on at most {most} ranks |
| size of the tables | {size / 1e6:.1f} MB |
| graphs | {graphs} |

## What is where

- `report.html`: everything on one page. `figures/` has each figure as PDF, PNG and SVG, with
  its numbers (CSV) and its caption.
- `tables/`: the measurements; `docs/tables.md` of the harness names every column.
- `claims.csv`: the claims of papers, our values, the verdicts, and the command that checks each.
- `environment.json`: machines, versions and settings of the runs. `constraints.txt`: the versions to install.
- `specs/`: every run, to be repeated. `SHA256SUMS`: `sha256sum --check SHA256SUMS` checks all files.

## To repeat it

Check out the commit that `environment.json` names, and `make setup`. Then

    harness run --spec specs/*.json --out results/runs
    harness collect
    harness claims --out results/claims.parquet
    harness figures
    harness report
    harness artifact

`harness data fetch NAME` fetches the files of a graph; `harness data info NAME` says where they are from.

## Claims

{verdicts or "No claims were judged."}"""
