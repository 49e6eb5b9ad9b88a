"""Puts the page together: one HTML file that needs no network, no script and no colour.

The page is a function of the tables and the figures; writing it twice gives the same bytes.
"""

import shlex
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from harness.errors import UserError
from harness.figures.drawing import KINDS, name_of, tables_digest
from harness.figures.kind import Kind
from harness.figures.palette import place_of
from harness.figures.panels import panels
from harness.files import write_text
from harness.report import origin, story
from harness.report.svg import Picture, graphs, inlined
from harness.report.table import results
from harness.results.parquet import read_collected
from harness.results.schema import SCHEMA

HERE = Path(__file__).parent
SPECS_SHOWN = 200


def write(tables: Path, figures: Path, out: Path) -> Path:
    """Writes the page `out` from collected tables and drawn figures; returns its path."""
    runs = read_collected(tables, "runs")
    if runs.empty:
        raise UserError(f"{tables / 'runs.parquet'} holds no run, so there is nothing to report.")
    found = panels(runs)
    digest = tables_digest(tables)
    pictures = {kind.name: _pictures(figures, kind, runs, digest) for kind in KINDS}
    commands = [
        f"harness collect --runs RUNS --out {shlex.quote(str(tables))}",
        f"harness figures --tables {shlex.quote(str(tables))} --out {shlex.quote(str(figures))}",
        f"harness report --tables {shlex.quote(str(tables))} --figures {shlex.quote(str(figures))} "
        f"--out {shlex.quote(str(out))}",
    ]
    page = _template().render(
        headline=story.headline(runs),
        facts=story.facts(runs),
        notes=story.notes(runs),
        strategies=sorted(set(runs["strategy.name"]), key=place_of),
        coverage=story.coverage(runs),
        machines=origin.machines(runs),
        settings=origin.settings(runs),
        results=[results(panel) for panel in found],
        graphs=graphs(runs),
        kinds=[kind for kind in KINDS if pictures[kind.name]],
        pictures=pictures,
        failures=story.failures(runs),
        origins=origin.origins(runs),
        commits=origin.commits(runs),
        commands=commands,
        specs=list(runs.spec) if len(runs) <= SPECS_SHOWN else [],
        runs=len(runs),
        digest=digest,
        schema=SCHEMA,
    )
    write_text(out, page)
    return out


def _pictures(figures: Path, kind: Kind[Any], runs: pd.DataFrame, digest: str) -> list[Picture]:
    """Of each dataset of which there is anything to show."""
    datasets = sorted({panel.dataset for panel in kind.panels(runs)})
    drawn = [inlined(figures / f"{name_of(kind.name, name)}.svg", name, digest) for name in datasets]
    return [picture for picture in drawn if picture]


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
