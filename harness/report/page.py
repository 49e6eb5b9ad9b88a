"""The page: one self-contained HTML file that loads nothing from outside and runs no other script than its own.

The page depends only on the tables: the same tables give the same bytes.
"""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup

from harness.base.documents import read_json
from harness.base.errors import UserError
from harness.base.files import check_replaceable, read_head, write_text
from harness.base.progress import OnStep, ignore_step
from harness.report import run_panels, summary
from harness.report.charts import list_strategy_buttons, make_charts
from harness.report.embedding import TextTable, dump_json
from harness.report.figures.framed_tables import FramedTables
from harness.report.figures.palette import GROUPS, lighten_for_dark, named_colours
from harness.report.figures.panels import split_panels
from harness.report.result_tables import (
    Heading,
    merge_summaries,
    summarize_panel,
    tabulate_claims,
    tabulate_graphs,
    tabulate_panel,
    tabulate_verdicts,
)
from harness.report.templates import TEMPLATES, format_script_policy, load_template
from harness.report.vega import load_vega
from harness.results.parquet import read_collected
from harness.results.statistics import find_persistent_bytes
from harness.results.table_schema import SCHEMA
from harness.spec.plan import read_plan

if TYPE_CHECKING:
    from harness.report.comparison import PackComparison

SCRIPTS = ("tables.js", "charts.js", "runs.js")
"""The page's own scripts, which run as one."""
TITLE = "<title>Parallel GNN Harness: "
"""The beginning of the title of every page, by which it is known."""
SVG = "http://www.w3.org/2000/svg"


def write_report(
    framed: FramedTables,
    out: Path,
    plans: Path | None = None,
    on_step: OnStep = ignore_step,
    comparison: "PackComparison | None" = None,
) -> Path:
    """Write the page `out` of collected tables, and return its path.

    `plans` is the folder with the plans of the workflow. The plan that has exactly these runs names their experiment.
    For the tables of several packs, `comparison` says who wins; it takes the place of the summary.
    """
    check_replaceable(out, lambda path: TITLE in read_head(path, 4000), "a report of the harness")
    tables, runs, claims, by_run = framed.tables, framed.runs, framed.claims, framed.by_run
    if runs.empty:
        raise UserError(
            f"{tables / 'runs.parquet'} holds no run, so there is nothing to report. "
            "Make runs with `harness run` or the workflow, then call `harness collect`."
        )
    failures, compared = read_collected(tables, "failures"), framed.order_panels(split_panels(runs))
    texts = TextTable()
    sections, charts = make_charts(framed, texts)
    document = run_panels.build_document(runs, failures, by_run, texts, on_step) | {"charts": charts}
    persistent_bytes = {str(run): size for run, size in find_persistent_bytes(by_run.memory.rows).items()}
    answers, remarks = merge_summaries(
        {
            panel.title: found
            for panel in compared
            if not comparison and (found := summarize_panel(panel, by_run))
        }
    )
    scripts = [load_vega(), "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)]
    folder = "FOLDER" if comparison else shlex.quote(str(tables))  # the page of packs is published
    commands = [
        f"harness collect --runs RUNS --out {folder}",
        f"harness report --tables {folder} --out {shlex.quote(str(out))}",
    ]
    page = load_template("page.html").render(
        headline=summary.format_headline(runs),
        lead=summary.describe_sources(runs, is_of_paper=framed.is_of_paper),
        facts=[*(comparison.facts if comparison else []), *summary.summarize_runs(runs)],
        comparison=comparison,
        notes=summary.list_warnings(runs),
        answers=answers,
        remarks=remarks,
        strategies=list_strategy_buttons(list(runs["strategy.name"])),
        coverage=summary.tabulate_coverage(runs),
        machines=summary.tabulate_machines(runs),
        settings=summary.list_software(runs),
        results=[tabulate_panel(panel, persistent_bytes) for panel in compared],
        numbers={run_id: number for number, run_id in enumerate(runs.run_id, start=1)},
        graphs=tabulate_graphs(runs),
        claims=tabulate_claims(claims),
        scoreboard=tabulate_verdicts(claims),
        sections=sections,
        unsuccessful=summary.describe_unsuccessful(runs),
        failures=summary.list_failures(runs, failures),
        commits=summary.list_commits(runs),
        draw_command=f"harness figures --tables {folder}",
        commands=[f"harness report PACK.tar.gz ... --out {folder}"] if comparison else commands,
        experiment=find_experiment(runs, plans),
        digest=framed.digest,
        schema=SCHEMA,
        colours=Markup(format_colours()),
        document=Markup(dump_json(document | {"texts": list(texts.numbers)})),
        scripts=[Markup(script) for script in scripts],
        policy=format_script_policy(scripts),
        class_of=format_class_attribute,
        svg_names=SVG,
    )
    write_text(out, page)
    return out


def find_experiment(runs: pd.DataFrame, plans: Path | None) -> str:
    """Return the experiment file whose plan has exactly the runs that were made or planned; empty if no plan has."""
    own = set(runs.run_id[runs.source.isin(["measured", ""])])
    for path in sorted(plans.glob("*.json")) if plans else []:
        with suppress(UserError):  # an unreadable plan does not belong to a finished experiment
            if set(read_plan(path).runs_by_id) == own:
                name = read_json(path, f"The plan {path}").get("experiment")
                return f"workflows/experiments/{name}.yaml" if name else ""
    return ""


def format_class_attribute(heading: Heading) -> Markup:
    """Format the class attribute of a cell: numbers on the right, folded columns, what a narrow row shows."""
    kinds = {"number": heading.number, "fold": heading.folded, heading.brief: bool(heading.brief)}
    classes = " ".join(name for name, holds in kinds.items() if holds)
    return Markup(f' class="{classes}"') if classes else Markup()


def format_colours() -> str:
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
