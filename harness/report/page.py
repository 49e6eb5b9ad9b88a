"""The page: one self-contained HTML file with a small script, which loads nothing from outside.

The page depends only on the tables and figures: the same input gives the same bytes.
"""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.documents import read_json
from harness.errors import UserError
from harness.figures.drawing import KINDS, file_stems, make_panels, tables_digest
from harness.figures.kind import read_tables
from harness.figures.page_layout import COLUMN_WIDTH
from harness.figures.palette import (
    BLUE,
    FAINT,
    GRID,
    GROUPS,
    INK,
    MUTED,
    PAPER,
    lighten_for_dark,
    named_colours,
)
from harness.figures.panels import Panel, split_panels
from harness.files import is_plain_file, write_text
from harness.progress import OnStep, ignore_step
from harness.report import run_panels, summary
from harness.report.drawing_check import check_drawing
from harness.report.result_tables import (
    Heading,
    summarize_panel,
    tabulate_claims,
    tabulate_graphs,
    tabulate_panel,
    tabulate_verdicts,
)
from harness.results.parquet import read_claims_table, read_collected
from harness.results.table_schema import SCHEMA
from harness.spec.plan import read_plan

TEMPLATES = Path(__file__).parent
SVG = "http://www.w3.org/2000/svg"
MAX_CSV_BYTES = 60_000
"""The size up to which the page includes the CSV file of a figure. It only names larger files."""


def write_report(
    tables: Path, figures: Path, out: Path, plans: Path | None = None, on_step: OnStep = ignore_step
) -> Path:
    """Write the page `out` from collected tables and drawn figures, and return its path.

    `plans` is the folder with the plans of the workflow. The plan that has exactly these runs names their experiment.
    """
    runs, failures = (read_collected(tables, name) for name in ("runs", "failures"))
    if runs.empty:
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run, so there is nothing to report. "
            "Make runs with `harness run` or the workflow, then call `harness collect`."
        )
    digest = tables_digest(tables)
    claims, by_run = read_claims_table(tables), read_tables(tables)
    panels = make_panels(runs, claims)
    pictures = {
        kind.name: _load_pictures(figures, kind.name, panels[kind.split_panels], digest) for kind in KINDS
    }
    if not any(pictures.values()):
        raise UserError(f"{figures} holds no figure of these tables. `harness figures` draws them.")
    persistent_bytes = run_panels.persistent_bytes_by_run(by_run.memory.items())
    commands = [
        f"harness collect --runs RUNS --out {shlex.quote(str(tables))}",
        f"harness figures --tables {shlex.quote(str(tables))} --out {shlex.quote(str(figures))}",
        f"harness report --tables {shlex.quote(str(tables))} --figures {shlex.quote(str(figures))} "
        f"--out {shlex.quote(str(out))}",
    ]
    page = _load_template().render(
        headline=summary.format_headline(runs),
        facts=summary.summarize_runs(runs),
        notes=summary.list_warnings(runs),
        answers=[
            (panel.title, sentences)
            for panel in panels[split_panels]
            if (sentences := summarize_panel(panel, by_run))
        ],
        coverage=summary.tabulate_coverage(runs),
        machines=summary.tabulate_machines(runs),
        settings=summary.list_software(runs),
        results=[tabulate_panel(panel, persistent_bytes) for panel in panels[split_panels]],
        numbers={run_id: number for number, run_id in enumerate(runs.run_id, start=1)},
        graphs=tabulate_graphs(runs),
        claims=tabulate_claims(claims),
        scoreboard=tabulate_verdicts(claims),
        kinds=[kind for kind in KINDS if pictures[kind.name]],
        pictures=pictures,
        unsuccessful=summary.describe_unsuccessful(runs),
        failures=summary.list_failures(runs, failures),
        commits=summary.list_commits(runs),
        commands=commands,
        experiment=find_experiment(runs, plans),
        digest=digest,
        schema=SCHEMA,
        colours=Markup(_format_colours()),
        document=Markup(run_panels.build_document(runs, failures, by_run, on_step)),
        class_of=format_class_attribute,
        svg_names=SVG,
    )
    write_text(out, page)
    return out


def find_experiment(runs: pd.DataFrame, plans: Path | None) -> str:
    """Return the experiment file whose plan has exactly these runs, except published values; empty if there is none."""
    own = set(runs.run_id[runs.source != "published"])
    for path in sorted(plans.glob("*.json")) if plans else []:
        with suppress(UserError):  # an unreadable plan does not belong to a finished experiment
            if set(read_plan(path).runs_by_id) == own:
                name = read_json(path, f"The plan {path}").get("experiment")
                return f"workflows/experiments/{name}.yaml" if name else ""
    return ""


def format_class_attribute(heading: Heading, repeats: bool = False) -> Markup:
    """Format the class attribute of a cell: numbers on the right, folded columns, faint repeated names."""
    kinds = {"number": heading.number, "same": repeats and not heading.number, "fold": heading.folded}
    classes = " ".join(name for name, holds in kinds.items() if holds)
    return Markup(f' class="{classes}"') if classes else Markup()


def _format_colours() -> str:
    """Format the colours of strategies and groups as CSS variables for a light page, a dark page, and paper."""
    light = "".join(f"--{name}:{colour};" for name, colour in named_colours().items())
    dark = "".join(f"--{name}:{lighten_for_dark(colour)};" for name, colour in named_colours().items())
    names = {colour: name for name, colour in named_colours().items()}
    groups = "".join(
        f".group-{number} {{ fill: var(--{names[fill.colour]}); background: var(--{names[fill.colour]}); }}\n"
        for number, fill in enumerate(GROUPS.values())
    )
    return (
        f":root {{{light}}}\n@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n"
        f"@media print {{ :root {{{light}}} }}\n{groups}"
    )


def _load_template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html")


# Figures within the page: with unique ids, in the colours of the page, and without links to the outside.

THEME = {
    INK: "var(--ink)",
    PAPER: "var(--paper)",
    MUTED: "var(--muted)",
    FAINT: "var(--faint)",
    GRID: "var(--rule)",
    BLUE: "var(--blue)",
    **{colour: f"var(--{name})" for name, colour in named_colours().items()},
}
"""Replaces the colours of figures by CSS variables, so that they follow a light or dark page."""


class InlineFigure(NamedTuple):
    """An inline figure of one dataset."""

    dataset: str
    name: str
    svg: Markup
    wide: bool
    numbers: str


def _load_pictures(figures: Path, kind: str, panels: Sequence[Panel], digest: str) -> list[InlineFigure]:
    """Load the drawn figures of a kind: one for each dataset, or else the figure of all datasets."""
    paths = {dataset: figures / f"{name}.svg" for dataset, name in file_stems(kind, panels).items()}
    drawn = {dataset: path for dataset, path in paths.items() if is_plain_file(path)}
    if len(drawn) > 1:
        del drawn[""]
    return [inline_figure(path, dataset, digest) for dataset, path in drawn.items()]


def inline_figure(path: Path, dataset: str, digest: str) -> InlineFigure:
    """Read an SVG file for the page. Refuse it if it was drawn from other tables or holds more than a drawing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"The figure {path} cannot be read: {error.strerror}. `harness figures` draws it."
        ) from None
    if f"tables {digest}" not in text:
        raise UserError(f"{path} was drawn from other tables than these. `harness figures` draws it again.")
    text = re.sub(r"^.*?(?=<svg\b)|<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = _round_coordinates(_prefix_ids(text, path.stem))
    for colour, variable in THEME.items():
        text = text.replace(colour, variable)
    check_drawing(text, path)
    width = re.search(r'width="([\d.]+)pt"', text)
    csv = path.with_suffix(".csv")
    numbers = (
        csv.read_text(encoding="utf-8") if is_plain_file(csv) and csv.stat().st_size <= MAX_CSV_BYTES else ""
    )
    wide = width is not None and float(width[1]) > 72 * COLUMN_WIDTH + 1
    return InlineFigure(dataset, path.stem, Markup(text.strip()), wide, numbers)


def _prefix_ids(text: str, name: str) -> str:
    """Prefix every id and every reference to an id, because two figures on a page may use the same ids.

    Ids without a reference are removed: matplotlib gives one to every mark.
    """
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', text))
    text = re.sub(r'\sid="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    prefix = re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):x}_", name)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)


def _round_coordinates(text: str) -> str:
    """Truncate the coordinates of lines and marks to hundredths of a point, a difference that nobody can see."""
    short = re.compile(r"(\d\.\d\d)\d+")
    return re.sub(r'\b(?:d|x|y)="[^"]*"', lambda found: short.sub(r"\1", found[0]), text)
