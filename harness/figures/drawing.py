"""All figures of some collected tables: one for each dataset, and one page with all datasets."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.figures import (
    accuracy,
    beside_papers,
    breakdown,
    costs,
    page_layout,
    scaling,
    throughput,
    utilisation,
)
from harness.figures.kind import FigureKind, Tables, read_tables
from harness.files import replace_files
from harness.results.parquet import read_claims_of, read_collected
from harness.results.schema import MISSING, TABLES

# A figure as PDF, PNG and SVG: the same figure gives the same bytes.
#
# Each file names the digest of its tables, so that a report can refuse figures of other tables.

STYLE = Path(__file__).with_name("style.mplstyle")
FORMATS = ("pdf", "png", "svg")
EMPTY = "nothing to show"


@contextmanager
def styled() -> Iterator[None]:
    """The style of this project, whatever the user's settings; figures are both drawn and saved inside."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def tables_digest(tables: Path) -> str:
    """A digest of the contents of the collected tables."""
    digest = hashlib.sha256()
    for name in TABLES:
        digest.update((tables / f"{name}.parquet").read_bytes())
    digest.update(read_claims_of(tables).to_json().encode())
    return digest.hexdigest()[:16]


def save(figure: Figure, folder: Path, name: str, origin: str) -> list[Path]:
    """Writes the three files of a figure, laid out once; `origin` stands in their metadata."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    files = {folder / f"{name}.{kind}": rendered(figure, kind, name, origin) for kind in FORMATS}
    replace_files(files)
    return list(files)


def rendered(figure: Figure, kind: str, name: str, origin: str) -> bytes:
    """The bytes of one file of a figure."""
    metadata = {
        "pdf": {"CreationDate": None, "Title": name, "Subject": origin},
        "png": {"Title": name, "Description": origin},
        "svg": {"Date": None, "Title": name, "Description": origin},
    }
    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format=kind, metadata=metadata[kind])
    return buffer.getvalue()


KINDS: tuple[FigureKind[Any], ...] = (
    scaling.KIND,
    throughput.KIND,
    breakdown.KIND,
    breakdown.SAMPLING_KIND,
    utilisation.KIND,
    costs.KIND,
    accuracy.KIND,
    beside_papers.KIND,
)
"""All kinds of figures, in the order of the report."""


def name_of(kind: str, dataset: str = "") -> str:
    """The name of a figure's files without the ending: for one dataset, or for all of them."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}" if dataset else kind


def draw_all(tables: Path, out: Path) -> list[Path]:
    """Draws every figure of the tables; returns the files."""
    runs, collected = read_collected(tables, "runs"), read_tables(tables)
    if (runs.status == MISSING).all():
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run that took place, so there is nothing to draw. "
            "`harness run` or the workflow makes runs; then `harness collect`."
        )
    rows = {"runs": runs, "claims": read_claims_of(tables)}
    draw = partial(_draw, rows=rows, tables=collected, out=out, digest=tables_digest(tables))
    cores = len(os.sched_getaffinity(0))
    # Forked processes share what is imported already.
    with styled(), ProcessPoolExecutor(min(cores, len(KINDS)), get_context("fork")) as pool:
        return [path for paths in pool.map(draw, KINDS) for path in paths]


def _draw(
    kind: FigureKind[Any], rows: Mapping[str, pd.DataFrame], tables: Tables, out: Path, digest: str
) -> list[Path]:
    """One figure for all datasets and one for each; a figure with nothing to show has a line that says so."""
    panels, paths = kind.panels(rows[kind.of]), []
    contents = [kind.shown(panel, tables) for panel in panels]
    for dataset in ("", *sorted({panel.dataset for panel in panels})):
        chosen = [
            (panel, content)
            for panel, content in zip(panels, contents, strict=True)
            if content and dataset in ("", panel.dataset)
        ]
        figure = kind.page(*zip(*chosen, strict=True)) if chosen else page_layout.blank(EMPTY)
        origin = f"tables {digest}" if chosen else f"{EMPTY}: tables {digest}"
        paths += save(figure, out, name_of(kind.name, dataset), origin)
    return paths
