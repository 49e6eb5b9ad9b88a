"""The page: one HTML file with a small script of its own, and nothing from outside.

The page is a function of the tables and the figures: the same input gives the same bytes.
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
from harness.figures.drawing import KINDS, divided, names_of, tables_digest
from harness.figures.kind import read_tables
from harness.figures.page_layout import COLUMN
from harness.figures.palette import BLUE, FAINT, GRID, GROUPS, INK, MUTED, PAPER, coloured, on_dark
from harness.figures.panels import Panel, panels
from harness.files import is_plain_file, write_text
from harness.progress import OnStep, ignore_step
from harness.report import run_panels, summary
from harness.report.drawing_check import check_drawing
from harness.report.result_tables import Heading, answer, claims, graphs, results, scoreboard
from harness.results.parquet import read_claims_table, read_collected
from harness.results.schema import SCHEMA
from harness.spec.plan import read_plan

HERE = Path(__file__).parent
SVG = "http://www.w3.org/2000/svg"
NUMBERS = 60_000
"""The characters of a figure's numbers that the page holds; longer ones stay in their file."""


def write(
    tables: Path, figures: Path, out: Path, plans: Path | None = None, on_step: OnStep = ignore_step
) -> Path:
    """Writes the page `out` from collected tables and drawn figures; returns its path.

    `plans` is the folder of the workflow's plans: the one that has exactly these runs names their experiment.
    """
    runs = read_collected(tables, "runs")
    if runs.empty:
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run, so there is nothing to report. "
            "`harness run` or the workflow makes runs; then `harness collect`."
        )
    digest = tables_digest(tables)
    judged, of_runs = read_claims_table(tables), read_tables(tables)
    shared = divided(runs, judged)
    pictures = {kind.name: _pictures(figures, kind.name, shared[kind.panels], digest) for kind in KINDS}
    if not any(pictures.values()):
        raise UserError(f"{figures} holds no figure of these tables. `harness figures` draws them.")
    held = run_panels.held(of_runs.memory.items())
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
        answers=[
            (panel.title, sentences) for panel in shared[panels] if (sentences := answer(panel, of_runs))
        ],
        coverage=summary.coverage(runs),
        machines=summary.machines(runs),
        settings=summary.settings(runs),
        results=[results(panel, held) for panel in shared[panels]],
        numbers={run_id: number for number, run_id in enumerate(runs.run_id, start=1)},
        graphs=graphs(runs),
        claims=claims(judged),
        scoreboard=scoreboard(judged),
        kinds=[kind for kind in KINDS if pictures[kind.name]],
        pictures=pictures,
        unsuccessful=summary.unsuccessful(runs),
        failures=summary.failures(runs),
        commits=summary.commits(runs),
        commands=commands,
        experiment=experiment_of(runs, plans),
        digest=digest,
        schema=SCHEMA,
        colours=Markup(_colours()),
        document=Markup(run_panels.document(runs, of_runs, on_step)),
        class_of=_class_of,
        svg_names=SVG,
    )
    write_text(out, page)
    return out


def experiment_of(runs: pd.DataFrame, plans: Path | None) -> str:
    """The file of the experiment whose plan has exactly these runs, printed values of papers aside; or nothing."""
    own = set(runs.run_id[runs.source != "published"])
    for path in sorted(plans.glob("*.json")) if plans else []:
        with suppress(UserError):  # a plan that cannot be read is not the one of a finished experiment
            if set(read_plan(path).runs_by_id) == own:
                name = read_json(path, f"The plan {path}").get("experiment")
                return f"workflows/experiments/{name}.yaml" if name else ""
    return ""


def _class_of(heading: Heading, repeats: bool = False) -> Markup:
    """The class attribute of a cell: numbers stand on the right, columns may be folded, repeated names are faint."""
    kinds = {"number": heading.number, "same": repeats and not heading.number, "fold": heading.more}
    classes = " ".join(name for name, holds in kinds.items() if holds)
    return Markup(f' class="{classes}"') if classes else Markup()


def _colours() -> str:
    """The colours of strategies and groups as variables: on a light page, on a dark one, and on paper."""
    light = "".join(f"--{name}:{colour};" for name, colour in coloured().items())
    dark = "".join(f"--{name}:{on_dark(colour)};" for name, colour in coloured().items())
    names = {colour: name for name, colour in coloured().items()}
    groups = "".join(
        f".group-{number} {{ fill: var(--{names[fill.colour]}); background: var(--{names[fill.colour]}); }}\n"
        for number, fill in enumerate(GROUPS.values())
    )
    return (
        f":root {{{light}}}\n@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n"
        f"@media print {{ :root {{{light}}} }}\n{groups}"
    )


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
    **{colour: f"var(--{name})" for name, colour in coloured().items()},
}
"""Colours of a figure follow the page, light or dark."""


class Picture(NamedTuple):
    """An inline figure of one dataset."""

    dataset: str
    name: str
    svg: Markup
    wide: bool
    numbers: str


def _pictures(figures: Path, kind: str, some: Sequence[Panel], digest: str) -> list[Picture]:
    """The figures of one kind that were drawn: one for each dataset, or that of all if no dataset has its own."""
    paths = {dataset: figures / f"{name}.svg" for dataset, name in names_of(kind, some).items()}
    drawn = {dataset: path for dataset, path in paths.items() if is_plain_file(path)}
    if len(drawn) > 1:
        del drawn[""]
    return [inlined(path, dataset, digest) for dataset, path in drawn.items()]


def inlined(path: Path, dataset: str, digest: str) -> Picture:
    """The SVG of a file; refused if it was drawn from tables with another digest, or holds more than a drawing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"The figure {path} cannot be read: {error.strerror}. `harness figures` draws it."
        ) from None
    if f"tables {digest}" not in text:
        raise UserError(f"{path} was drawn from other tables than these. `harness figures` draws it anew.")
    text = re.sub(r"^.*?(?=<svg\b)|<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = _rounded(_with_prefix(text, path.stem))
    for colour, variable in THEME.items():
        text = text.replace(colour, variable)
    check_drawing(text, path)
    width = re.search(r'width="([\d.]+)pt"', text)
    csv = path.with_suffix(".csv")
    numbers = csv.read_text(encoding="utf-8") if is_plain_file(csv) and csv.stat().st_size <= NUMBERS else ""
    wide = width is not None and float(width[1]) > 72 * COLUMN + 1
    return Picture(dataset, path.stem, Markup(text.strip()), wide, numbers)


def _with_prefix(text: str, name: str) -> str:
    """Prefixes every id and every reference to an id, because two figures on a page may use the same.

    An id that nothing in the figure refers to is left out: matplotlib gives one to every mark.
    """
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', text))
    text = re.sub(r'\sid="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    prefix = re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):x}_", name)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)


def _rounded(text: str) -> str:
    """The drawing with the coordinates of lines and marks in hundredths of a point, which no eye tells from more."""
    short = re.compile(r"(\d\.\d\d)\d+")
    return re.sub(r'\b(?:d|x|y)="[^"]*"', lambda found: short.sub(r"\1", found[0]), text)
