"""Draws all figures of a folder of collected tables: for each kind one figure of all datasets, and one of each.

Figures without data are skipped, and files that were drawn from earlier tables are removed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from html import escape
from importlib import import_module
from io import BytesIO
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine

from harness.base.children import map_in_forks
from harness.base.errors import UserError
from harness.base.files import check_replaceable, read_head, replace_files
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.base.untrusted import make_file_stem, spreadsheet_cell
from harness.base.validation import unknown_name_error
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.framed_tables import KINDS, FramedTables
from harness.report.figures.kind import FigureKind
from harness.report.figures.marks import Facet
from harness.report.figures.panels import title_panels
from harness.report.figures.placed_marks import describe_marks, join_marks
from harness.results.schema import MISSING

# A figure is written as PDF, PNG and SVG, its numbers as CSV, its caption as text. The same tables give the same bytes.
#
# Each picture names the digest of its tables, so that the report can refuse figures of other tables.

STYLE = Path(__file__).with_name("style.mplstyle")
FORMATS = ("pdf", "png", "svg")
TEXT_FORMATS = ("csv", "txt")
CAPTION_WIDTH = 120


@contextmanager
def style_context() -> Iterator[None]:
    """Use the project's matplotlib style, whatever the user's settings. Draw and save figures inside this context."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def save_figure(figure: Figure, folder: Path, name: str, origin: str, label: str = "") -> list[Path]:
    """Write a figure as PDF, PNG and SVG. `origin` goes into the metadata; screen readers read `label`."""
    pictures = render_formats(figure, FORMATS, name, origin, label)
    files = {folder / f"{name}.{file_format}": picture for file_format, picture in pictures.items()}
    replace_files(files)
    return list(files)


def render_formats(
    figure: Figure, formats: Sequence[str], name: str, origin: str, label: str = ""
) -> dict[str, bytes]:
    """Render a figure in some file formats after one layout. Text stays text in PDF and SVG."""
    if (engine := figure.get_layout_engine()) and not isinstance(engine, PlaceHolderLayoutEngine):
        engine.execute(figure)  # a placeholder lays nothing out
    with mpl.rc_context({"svg.fonttype": "none", "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # with "none", a placeholder stays and each file is drawn twice
        for axes in figure.axes:  # the last digits of the layout's solver differ from one process to another
            left, bottom, width, height = axes.get_position(original=True).bounds
            axes.set_position((round(left, 6), round(bottom, 6), round(width, 6), round(height, 6)))
        pictures = {file_format: render_figure(figure, file_format, name, origin) for file_format in formats}
    if "svg" in pictures:
        element = f'<svg role="img" aria-label="{escape(label or name)}"'
        pictures["svg"] = pictures["svg"].replace(b"<svg", element.encode(), 1)
    return pictures


def render_figure(figure: Figure, file_format: str, name: str, origin: str) -> bytes:
    """Render a figure in one file format and return the bytes."""
    metadata = {
        "pdf": {"CreationDate": None, "Title": name, "Subject": origin},
        "png": {"Title": name, "Description": origin},
        "svg": {"Date": None, "Title": name, "Description": origin},
    }
    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format=file_format, metadata=metadata[file_format])
    return buffer.getvalue()


def file_stem(kind: str, dataset: str = "") -> str:
    """Return the stem of a figure's files, for one dataset or for all datasets."""
    return f"{kind}-{make_file_stem(dataset)}" if dataset else kind


def draw_all(
    framed: FramedTables,
    out: Path,
    on_step: OnStep = ignore_step,
    chosen: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw every figure of the tables and return the files. The strategies `chosen` are never grey.

    The formats include svg: from it, a later call knows which files it may replace.
    """
    if (framed.runs.status == MISSING).all():
        raise UserError(
            f"{framed.tables / 'runs.parquet'} holds no recorded run, so there are no figures to draw. "
            "Make runs with `harness run` or the workflow, then call `harness collect`."
        )
    known = set(framed.runs["strategy.name"])
    for name in chosen:
        if name not in known:
            raise unknown_name_error(f"{framed.tables}: strategy", name, list(known))
    draw = partial(_draw_kind, framed=framed, out=out, chosen=chosen, formats=formats)
    import_module("seaborn")  # which marks import when they draw
    with style_context():
        drawn = map_in_forks(draw, KINDS)
        paths = [
            path
            for _ in report_steps(KINDS, lambda kind: f"drawing {kind.name}", on_step)
            for path in next(drawn)
        ]
    for path in _find_stale_files(out, paths):
        path.unlink()
    return paths


def _draw_kind(
    kind: FigureKind, framed: FramedTables, out: Path, chosen: Sequence[str], formats: Sequence[str]
) -> list[Path]:
    """Draw a kind for all datasets together and, in all formats, for each of several datasets that have data."""
    facets = framed.make_facets(kind, chosen)
    datasets = sorted({facet.dataset for facet in facets})
    paths = []
    apart = datasets if len(datasets) > 1 and formats == FORMATS else ()
    for dataset in ("", *apart) if facets else ():
        shown = [facet for facet in facets if dataset in ("", facet.dataset)]
        name, (titles, note) = file_stem(kind.name, dataset), title_panels([facet.panel for facet in shown])
        titled = [replace(facet, title=title) for facet, title in zip(shown, titles, strict=True)]
        # The note names a single dataset.
        subject = "; ".join(
            part for part in (", ".join(datasets) if titles[0] and not dataset else "", note) if part
        )
        figure = compose_figure(
            titled, kind.mark, note if dataset else framed.complete_note(kind, facets, note)
        )
        pictures = render_formats(
            figure, formats, name, f"tables {framed.digest}", f"{kind.title}: {subject}"
        )
        files = {out / f"{name}.{file_format}": picture for file_format, picture in pictures.items()}
        files[out / f"{name}.csv"] = _format_csv(shown)
        printed = fill(describe_marks([facet.printed for facet in shown]), CAPTION_WIDTH)
        caption = "\n\n".join(filter(None, (kind.caption.strip(), printed)))
        shows = [f"{facet.title or facet.dataset}: {facet.headline}." for facet in titled if facet.headline]
        names = "\n".join([f"Shown: {subject}.", *shows])  # the paragraph that may have any name
        files[out / f"{name}.txt"] = f"{kind.question}\n\n{caption}\n\n{names}\n".encode()
        _check_own(out / f"{name}.svg", files)
        replace_files(files)
        paths += list(files)
    return paths


def _format_csv(facets: Sequence[Facet]) -> bytes:
    """Format the frames that a figure shows as CSV."""
    frames = [
        rows.assign(dataset=facet.panel.dataset, setting=facet.panel.setting)
        for facet in facets
        for rows in join_marks(facet.frame, facet.printed)
    ]
    frame = pd.concat(frames, ignore_index=True).map(spreadsheet_cell, na_action="ignore")
    return frame.to_csv(index=False, lineterminator="\n").encode()


def _check_own(picture: Path, files: Iterable[Path]) -> None:
    """Raise UserError if one of the files of a figure is the user's own."""
    check_replaceable(picture, _is_drawn, "a figure of the harness")
    for path in files:
        check_replaceable(path, lambda _: picture.is_file(), "a file of a figure of the harness")


def _is_drawn(picture: Path) -> bool:
    """Return True for an SVG of this module under its own name. A copy under another name is the user's."""
    head = read_head(picture, 2000)
    return f"<title>{escape(picture.stem)}</title>" in head and bool(re.search(r"tables [0-9a-f]{16}", head))


def _find_stale_files(out: Path, drawn: Sequence[Path]) -> list[Path]:
    """Find files that an earlier call drew, by the name of a kind and what the SVG says of itself.

    They are of other tables, or of formats that were not drawn again.
    """
    names = {kind.name for kind in KINDS}
    current = set(drawn)
    pictures = [
        path
        for path in out.glob("*.svg")
        if any(path.stem == name or path.stem.startswith(f"{name}-") for name in names) and _is_drawn(path)
    ]
    endings = [f".{ending}" for ending in (*FORMATS, *TEXT_FORMATS)]
    return [
        path
        for picture in pictures
        for ending in endings
        if (path := picture.with_suffix(ending)) not in current and path.is_file()
    ]
