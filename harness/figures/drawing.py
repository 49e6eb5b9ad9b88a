"""All figures of some collected tables: one for each dataset, and one page with all datasets.

A kind of figure with nothing to show is not drawn, and its files of earlier tables are removed.
"""

import csv
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from html import escape
from io import BytesIO, StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from harness.children import die_with_parent
from harness.errors import UserError
from harness.figures.kind import FigureKind, Tables, find_kinds, read_tables
from harness.figures.panels import Panel, titles
from harness.files import read_head, replace_files
from harness.progress import OnStep, ignore_step, report_steps
from harness.results.parquet import read_claims_table, read_collected
from harness.results.schema import MISSING, TABLES
from harness.results.statistics import ON_SHARED_CORES
from harness.untrusted import make_file_stem, spreadsheet_cell

# A figure as PDF, PNG and SVG, with its numbers as CSV and its caption as text: the same tables give the same bytes.
#
# Each picture names the digest of its tables, so that a report can refuse figures of other tables.

STYLE = Path(__file__).with_name("style.mplstyle")
FORMATS = ("pdf", "png", "svg")
BESIDE = ("csv", "txt")


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
    digest.update(read_claims_table(tables).to_json().encode())
    return digest.hexdigest()[:16]


def save(figure: Figure, folder: Path, name: str, origin: str, label: str = "") -> list[Path]:
    """Writes the three pictures of a figure; `origin` stands in their metadata, `label` is read out for the blind."""
    files = pictures(figure, folder, name, origin, label)
    replace_files(files)
    return list(files)


def pictures(figure: Figure, folder: Path, name: str, origin: str, label: str = "") -> dict[Path, bytes]:
    """The three pictures of a figure, laid out once: text stays text in PDF and SVG."""
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):  # that one has nothing to lay out
        figure.draw_without_rendering()
    with mpl.rc_context({"svg.fonttype": "none", "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # `none` keeps a place for one, and each file is drawn twice
        files = {folder / f"{name}.{kind}": rendered(figure, kind, name, origin) for kind in FORMATS}
    drawn = folder / f"{name}.svg"
    said = f'<svg role="img" aria-label="{escape(label or name)}"'
    files[drawn] = files[drawn].replace(b"<svg", said.encode(), 1)
    return files


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


KINDS = find_kinds()
"""All kinds of figures, in the order of the report."""


def name_of(kind: str, dataset: str = "") -> str:
    """The name of a figure's files without the ending: for one dataset, or for all of them."""
    return f"{kind}-{make_file_stem(dataset)}" if dataset else kind


def names_of(kind: str, panels: Sequence[Panel]) -> dict[str, str]:
    """The names of the figures of one kind by dataset: of all datasets ("") first, of each if there are several."""
    datasets = sorted({panel.dataset for panel in panels})
    return {dataset: name_of(kind, dataset) for dataset in ("", *(datasets if len(datasets) > 1 else ()))}


def draw_all(tables: Path, out: Path, on_step: OnStep = ignore_step) -> list[Path]:
    """Draws every figure of the tables; returns the files."""
    runs, collected = read_collected(tables, "runs"), read_tables(tables)
    if (runs.status == MISSING).all():
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run that took place, so there is nothing to draw. "
            "`harness run` or the workflow makes runs; then `harness collect`."
        )
    shared = divided(_without_origin(runs), read_claims_table(tables))
    draw = partial(_draw, shared=shared, tables=collected, out=out, digest=tables_digest(tables))
    cores, start = min(len(os.sched_getaffinity(0)), len(KINDS)), get_context("fork")
    # Forked processes share what is imported and read already: neither modules nor tables travel to them.
    with styled(), ExitStack() as stack:
        try:
            pool = stack.enter_context(ProcessPoolExecutor(cores, start, _begin, (os.getpid(), draw)))
            drawn: Iterator[list[Path]] = pool.map(_drawn, range(len(KINDS)))
        except OSError:  # no semaphores, as where /dev/shm is read-only
            drawn = map(draw, KINDS)
        paths = [
            path
            for _ in report_steps(KINDS, lambda kind: f"drawing {kind.name}", on_step)
            for path in next(drawn)
        ]
    for path in _left_over(out, paths):
        path.unlink()
    return paths


ORIGIN = ("provenance.", "error.")
"""The prefixes of columns of runs that say where a number comes from."""


def _without_origin(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of runs that figures need. Each division into panels and curves copies every column."""
    unused = [name for name in runs if str(name).startswith(ORIGIN) and name not in ON_SHARED_CORES]
    return runs.drop(columns=[*unused, "spec", "extra"])


_DRAW: list[Callable[[FigureKind[Any]], list[Path]]] = []
"""In a process that draws: how it draws a kind."""


def _begin(parent: int, draw: Callable[[FigureKind[Any]], list[Path]]) -> None:
    die_with_parent(parent)()
    _DRAW.append(draw)


def _drawn(number: int) -> list[Path]:
    return _DRAW[-1](KINDS[number])


def divided(runs: pd.DataFrame, claims: pd.DataFrame) -> dict[Callable[..., Any], list[Panel]]:
    """The panels by every function that makes them: kinds of figures share panels, and so their curves."""
    of = {"runs": runs, "claims": claims}
    return {panels: panels(of[source]) for panels, source in {kind.panels: kind.of for kind in KINDS}.items()}


def _draw(
    kind: FigureKind[Any],
    shared: Mapping[Callable[..., Any], list[Panel]],
    tables: Tables,
    out: Path,
    digest: str,
) -> list[Path]:
    """One figure for all datasets, and one for each of several that has something to show."""
    paths = []
    contents = [(panel, content) for panel in shared[kind.panels] if (content := kind.shown(panel, tables))]
    names = names_of(kind.name, [panel for panel, _ in contents]) if contents else {}
    datasets = [name for panel, _ in contents for name in panel.graphs or (panel.dataset,)]
    datasets = sorted(set(datasets))
    for dataset, name in names.items():
        some, shown = zip(*(pair for pair in contents if dataset in ("", pair[0].dataset)), strict=True)
        several = not dataset and (len(datasets) > 1 or kind.of == "claims")  # a note names a single one
        subject = titles(some).note if kind.of == "runs" else dataset
        subject = "; ".join(part for part in (", ".join(datasets) if several else "", subject) if part)
        files = pictures(kind.page(some, shown), out, name, f"tables {digest}", f"{kind.title}: {subject}")
        files[out / f"{name}.csv"] = _numbers(kind, some, shown)
        files[out / f"{name}.txt"] = f"{kind.title}. {kind.caption.strip()}\n\nShown: {subject}.\n".encode()
        replace_files(files)
        paths += list(files)
    return paths


def _numbers(kind: FigureKind[Any], some: Sequence[Any], shown: Sequence[Any]) -> bytes:
    """The numbers that a figure draws, as CSV."""
    rows = [
        {"dataset": panel.dataset, "setting": panel.setting, **row}
        for panel, content in zip(some, shown, strict=True)
        for row in kind.data(content)
    ]
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if _nothing(value) else spreadsheet_cell(value) for key, value in row.items()}
        for row in rows
    )
    return text.getvalue().encode()


def _nothing(value: object) -> bool:
    return bool(pd.isna(value))  # type: ignore[call-overload]


def _left_over(out: Path, drawn: Sequence[Path]) -> list[Path]:
    """Files that an earlier call drew of other tables: a kind's name, then nothing or a dataset."""
    names = {kind.name for kind in KINDS}
    known = set(drawn)
    pictures = [
        path
        for path in out.glob("*.svg")
        if path not in known
        and any(path.stem == name or path.stem.startswith(f"{name}-") for name in names)
        and re.search(r"tables [0-9a-f]{16}", read_head(path, 2000))
    ]
    endings = [f".{ending}" for ending in (*FORMATS, *BESIDE)]
    return [
        path
        for picture in pictures
        for ending in endings
        if (path := picture.with_suffix(ending)) not in known and path.is_file()
    ]
