"""A figure as PDF, PNG and SVG, the same bytes for the same figure.

Each file says which tables it was drawn from, so that a report can tell a figure of other tables.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import matplotlib.style
from matplotlib.figure import Figure

from harness.files import replace_files
from harness.results.schema import TABLES

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
