"""All figures of some collected tables: of each dataset by itself, and of all datasets on one page."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure

from harness.errors import UserError
from harness.figures import accuracy, breakdown, costs, layout, scaling, throughput, utilisation
from harness.figures.kind import Kind, Tables, read_tables
from harness.files import replace_files
from harness.results.parquet import read_collected
from harness.results.schema import MISSING, TABLES

# A figure as PDF, PNG and SVG, the same bytes for the same figure.
#
# Each file says which tables it was drawn from, so that a report can tell a figure of other tables.

STYLE = Path(__file__).with_name("style.mplstyle")
FORMATS = ("pdf", "png", "svg")
EMPTY = "nothing to show"


@contextmanager
def styled() -> Iterator[None]:
    """Our look, whatever the user's settings; figures are both drawn and saved inside."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def tables_digest(tables: Path) -> str:
    """What stands for the contents of the collected tables that figures are drawn from."""
    digest = hashlib.sha256()
    for name in TABLES:
        digest.update((tables / f"{name}.parquet").read_bytes())
    return digest.hexdigest()[:16]


def save(figure: Figure, folder: Path, name: str, said: str) -> list[Path]:
    """The three files of a figure; `said` is what they say of its origin."""
    files = {folder / f"{name}.{kind}": rendered(figure, kind, name, said) for kind in FORMATS}
    replace_files(files)
    return list(files)


def rendered(figure: Figure, kind: str, name: str, said: str) -> bytes:
    """One file of a figure."""
    metadata = {
        "pdf": {"CreationDate": None, "Title": name, "Subject": said},
        "png": {"Title": name, "Description": said},
        "svg": {"Date": None, "Title": name, "Description": said},
    }
    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format=kind, metadata=metadata[kind])
    return buffer.getvalue()


KINDS: tuple[Kind[Any], ...] = (
    scaling.KIND,
    throughput.KIND,
    breakdown.KIND,
    breakdown.SAMPLING_KIND,
    utilisation.KIND,
    costs.KIND,
    accuracy.KIND,
)
"""In the order in which they are shown."""


def name_of(kind: str, dataset: str = "") -> str:
    """The name of a figure's files, without their ending: of one dataset, or of all."""
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '-', dataset)}" if dataset else kind


def draw_all(tables: Path, out: Path) -> list[Path]:
    """Draws what the tables hold; returns the files."""
    runs, collected = read_collected(tables, "runs"), read_tables(tables)
    if (runs.status == MISSING).all():
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run that took place, so there is nothing to draw."
        )
    digest = tables_digest(tables)
    with styled():
        return [path for kind in KINDS for path in _draw(kind, runs, collected, out, digest)]


def _draw(kind: Kind[Any], runs: pd.DataFrame, tables: Tables, out: Path, digest: str) -> list[Path]:
    """Of each dataset, and of all. A figure that has nothing to show is there too, and says so."""
    found, paths = kind.panels(runs), []
    shown = [kind.shown(panel, tables) for panel in found]
    for dataset in ("", *sorted({panel.dataset for panel in found})):
        chosen = [
            (panel, what)
            for panel, what in zip(found, shown, strict=True)
            if what and dataset in ("", panel.dataset)
        ]
        figure = kind.page(*zip(*chosen, strict=True)) if chosen else layout.blank(EMPTY)
        said = f"tables {digest}" if chosen else f"{EMPTY}: tables {digest}"
        paths += save(figure, out, name_of(kind.name, dataset), said)
    return paths
