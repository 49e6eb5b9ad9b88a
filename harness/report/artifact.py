"""The archive for the artifact evaluation of a paper: runs, results, and how to check and repeat them.

The archive depends only on the tables, the figures and the checkout: the same input gives the same bytes.
"""

import csv
import json
from io import StringIO
from pathlib import Path

import pandas as pd

from harness.errors import UserError
from harness.figures.drawing import tables_digest
from harness.files import is_plain_file, replace_files
from harness.progress import OnStep, ignore_step
from harness.report import summary
from harness.results.packed_archive import SUMS, list_checksums, pack_archive
from harness.results.parquet import read_claims_table, read_collected
from harness.results.schema import OK, TABLES
from harness.untrusted import spreadsheet_cell
from harness.validation import check_name, format_value

CHECKOUT_FILES = ("constraints.txt", "pyproject.toml", "README.md", "LICENSE")
"""Files of the checkout that the archive includes."""
FOLDER = "artifact"
FIGURE_SUFFIXES = (".pdf", ".png", ".svg", ".csv", ".txt")


def pack_artifact(
    root: Path, tables: Path, figures: Path, report: Path, out: Path, on_step: OnStep = ignore_step
) -> Path:
    """Write the archive `out` and return its path."""
    runs, claims = read_collected(tables, "runs"), read_claims_table(tables)
    if not report.is_file() or tables_digest(tables) not in report.read_text(encoding="utf-8"):
        raise UserError(f"{report} is not the report of these tables. `harness report` writes it.")
    names = [name for name in (*TABLES, "claims") if (tables / f"{name}.parquet").is_file()]
    files = {
        **{name: (root / name).read_bytes() for name in CHECKOUT_FILES if (root / name).is_file()},
        **{f"tables/{name}.parquet": (tables / f"{name}.parquet").read_bytes() for name in names},
        **{f"figures/{path.name}": path.read_bytes() for path in _list_drawings(figures)},
        **{
            f"specs/{_check_member_name(run.run_id)}.json": f"{run.spec}\n".encode()
            for _, run in runs.iterrows()
        },
        "report.html": report.read_bytes(),
        "claims.csv": _format_claims(claims).encode(),
        "environment.json": _describe_environments(runs).encode(),
        "ARTIFACT.md": _format_readme(
            runs, claims, sum(path.stat().st_size for path in tables.glob("*.parquet"))
        ).encode(),
    }
    files[SUMS] = list_checksums(files)
    replace_files({out: pack_archive(FOLDER, files, on_step)})
    return out


def _check_member_name(run_id: str) -> str:
    """Return a run id that is safe as a file name. Ids from other people must not unpack elsewhere."""
    try:
        return check_name(run_id)
    except ValueError as error:
        raise UserError(
            f"The tables have a run with the id {format_value(run_id)}: {error}. Find its record by "
            "`harness runs list`, move its folder away, and collect again."
        ) from None


def _list_drawings(folder: Path) -> list[Path]:
    """List the files of figures in a folder. Links are skipped, because they may lead to any file of the machine."""
    return [
        path for path in sorted(folder.iterdir()) if path.suffix in FIGURE_SUFFIXES and is_plain_file(path)
    ]


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


PER_RUN_PROVENANCE = {
    f"provenance.{name}"
    for name in (
        "command",
        "started",
        "finished",
        "load_average",
        "store_manifest",
        "graph_hash",
        "strategy_code",
    )
}
"""Columns of provenance that differ from run to run."""


def _format_readme(runs: pd.DataFrame, claims: pd.DataFrame, size: int) -> str:
    """Format ARTIFACT.md: what the archive holds, how long the runs took, and how to check and repeat them."""
    measured = runs[(runs.source == "measured") & (runs.status == OK)]
    hours = (measured["provenance.finished"] - measured["provenance.started"]).dt.total_seconds().sum() / 3600
    most = int(measured.ranks.max()) if len(measured) else 0
    verdicts = "".join(
        f"- {count} {name}\n" for name, count in claims.verdict[claims.uncounted == ""].value_counts().items()
    )
    graphs = ", ".join(sorted(set(runs["dataset.name"])))
    return f"""# Artifact

{summary.format_headline(runs)}; {"; ".join(summary.summarize_runs(runs))}.

| | |
| --- | --- |
| total time of the measured runs | {hours:.2f} hours, on at most {most} ranks |
| size of the tables | {size / 1e6:.1f} MB |
| graphs | {graphs} |

## Contents

- `report.html`: everything on one page. `figures/` has each figure as PDF, PNG and SVG, with
  its numbers (CSV) and its caption.
- `tables/`: the measurements; `docs/reference/tables.md` of the harness names every column.
- `claims.csv`: the claims of papers, our values, the verdicts, and the command that checks each.
- `environment.json`: machines, versions and settings of the runs. `constraints.txt`: the versions to install.
- `specs/`: the spec of every run. `SHA256SUMS`: `sha256sum --check SHA256SUMS` checks all files.

## How to repeat it

Check out the commit that `environment.json` names and call `make setup`. Then call

    harness run --spec specs/*.json --out results/runs
    harness collect
    harness claims --out results/claims.parquet
    harness figures
    harness report
    harness artifact

`harness data fetch NAME` fetches the files of a graph; `harness data info NAME` says where they come from.

## Claims

{verdicts or "No claims were judged."}"""
