"""harness collect, figures and report: from run folders to tables, figures and a page."""

import argparse
from pathlib import Path

from harness.cli.options import Verbs, add_verb, show
from harness.spec.root import project_root, results_folder


def add_verbs(verbs: Verbs) -> None:
    collect = add_verb(verbs, "collect", _collect, "Join the records of all runs into tables.")
    collect.add_argument(
        "--runs", type=Path, metavar="DIR", help="the folder of run folders (default: results/runs)"
    )
    collect.add_argument("--plan", type=Path, metavar="FILE", help="take only the runs of this plan")
    collect.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for the tables (default: results)"
    )
    collect.add_argument(
        "--verify", action="store_true", help="exit with 1 if a run is missing or did not succeed"
    )

    figures = add_verb(verbs, "figures", _figures, "Draw the figures of the collected tables.")
    _add_tables(figures)
    figures.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for the figures (default: figures)"
    )

    report = add_verb(verbs, "report", _report, "Write the report of the collected tables, one HTML file.")
    _add_tables(report)
    report.add_argument(
        "--figures", type=Path, metavar="DIR", help="the folder of drawn figures (default: figures)"
    )
    report.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: results/report.html)"
    )


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="the folder of collected tables (default: results)"
    )


def _collect(options: argparse.Namespace) -> int:
    from harness.results.collect import collect

    results = results_folder(project_root(options.root))
    collected = collect(options.runs or results / "runs", options.out or results, plan=options.plan)
    show(options, collected.as_dict(), collected.as_text())
    return 1 if options.verify and not collected.complete else 0


def _figures(options: argparse.Namespace) -> int:
    from harness.figures import draw_all

    root = project_root(options.root)
    paths = draw_all(options.tables or results_folder(root), options.out or root / "figures")
    show(options, [str(path) for path in paths], "\n".join(map(str, paths)))
    return 0


def _report(options: argparse.Namespace) -> int:
    from harness.report import write

    root = project_root(options.root)
    results = results_folder(root)
    out = options.out or results / "report.html"
    path = write(options.tables or results, options.figures or root / "figures", out)
    show(options, {"report": str(path)}, str(path))
    return 0
