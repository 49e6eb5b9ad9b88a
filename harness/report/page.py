"""The page: one HTML file without a network, a script or an outside style sheet.

The page is a function of the tables and the figures: the same input gives the same bytes.
"""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.errors import UserError
from harness.figures.drawing import EMPTY, KINDS, name_of, tables_digest
from harness.figures.kind import FigureKind
from harness.figures.palette import BLUE, FAINT, GRID, INK, MUTED, NAVY, PAPER, place_of
from harness.figures.panels import panels
from harness.files import write_text
from harness.report import summary
from harness.report.result_tables import claims, graphs, results
from harness.results.parquet import read_claims_of, read_collected
from harness.results.schema import SCHEMA

HERE = Path(__file__).parent
SPECS_SHOWN = 200


def write(tables: Path, figures: Path, out: Path) -> Path:
    """Writes the page `out` from collected tables and drawn figures; returns its path."""
    runs = read_collected(tables, "runs")
    if runs.empty:
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run, so there is nothing to report. "
            "`harness run` or the workflow makes runs; then `harness collect`."
        )
    digest = tables_digest(tables)
    rows = {"runs": runs, "claims": read_claims_of(tables)}
    pictures = {kind.name: _pictures(figures, kind, rows[kind.of], digest) for kind in KINDS}
    commands = [
        f"harness collect --runs RUNS --out {shlex.quote(str(tables))}",
        f"harness figures --tables {shlex.quote(str(tables))} --out {shlex.quote(str(figures))}",
        f"harness report --tables {shlex.quote(str(tables))} --figures {shlex.quote(str(figures))} "
        f"--out {shlex.quote(str(out))}",
    ]
    page = _template().render(
        headline=summary.headline(runs),
        facts=summary.facts(runs),
        notes=summary.notes(runs),
        strategies=sorted(set(runs["strategy.name"]), key=place_of),
        coverage=summary.coverage(runs),
        machines=summary.machines(runs),
        settings=summary.settings(runs),
        results=[results(panel) for panel in panels(runs)],
        graphs=graphs(runs),
        claims=claims(rows["claims"]),
        kinds=[kind for kind in KINDS if pictures[kind.name]],
        pictures=pictures,
        failures=summary.failures(runs),
        origins=summary.origins(runs),
        commits=summary.commits(runs),
        commands=commands,
        specs=list(runs.spec) if len(runs) <= SPECS_SHOWN else [],
        runs=len(runs),
        digest=digest,
        schema=SCHEMA,
    )
    write_text(out, page)
    return out


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html")


# Figures as parts of the page: with names of their own, in the page's ink and on its paper, without outside links.

THEME = {
    INK: "var(--ink)",
    PAPER: "var(--paper)",
    MUTED: "var(--muted)",
    FAINT: "var(--faint)",
    GRID: "var(--rule)",
    BLUE: "var(--blue)",
    NAVY: "var(--navy)",
}
"""Neutral colours of a figure follow the page, light or dark. Colours with a meaning stay, except two blues, which are
lighter on a dark page."""


class Picture(NamedTuple):
    """An inline figure of one dataset."""

    dataset: str
    svg: Markup


def _pictures(figures: Path, kind: FigureKind[Any], rows: pd.DataFrame, digest: str) -> list[Picture]:
    """The figures of one kind, one for each dataset that has something to show."""
    datasets = sorted({panel.dataset for panel in kind.panels(rows)})
    drawn = [inlined(figures / f"{name_of(kind.name, name)}.svg", name, digest) for name in datasets]
    return [picture for picture in drawn if picture]


def inlined(path: Path, dataset: str, digest: str) -> Picture | None:
    """The SVG of a file, or None if it is empty; refused if it was drawn from tables with another digest."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(
            f"The figure {path} cannot be read: {error.strerror}. `harness figures` draws it."
        ) from None
    if f"tables {digest}" not in text:
        raise UserError(f"{path} was drawn from other tables than these. `harness figures` draws it anew.")
    if f"{EMPTY}: tables" in text:
        return None
    text = re.sub(r"^.*?(?=<svg\b)|<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = _with_prefix(text, path.stem)
    for colour, variable in THEME.items():
        text = text.replace(colour, variable)
    return Picture(dataset, Markup(text.strip()))


def _with_prefix(text: str, name: str) -> str:
    """Prefixes every id and every reference to an id, because two figures on a page may use the same."""
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)
