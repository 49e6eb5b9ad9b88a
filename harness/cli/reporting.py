"""harness collect, figures, report, artifact, compare and claims: evaluates recorded runs."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import ProgressLine, Verbs, add_verb, format_columns, print_answer, print_progress
from harness.errors import UserError
from harness.formatting import format_count
from harness.spec.root import find_results_folder, find_root

if TYPE_CHECKING:
    from harness.claims import Verdict
    from harness.results.statistics import Difference, Side


def add_verbs(verbs: Verbs) -> None:
    for add in (_add_collect, _add_figures, _add_report, _add_artifact, _add_compare, _add_claims):
        add(verbs)


def _add_tables_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="the folder of collected tables (default: results)"
    )


def _add_collect(verbs: Verbs) -> None:
    collect = add_verb(verbs, "collect", _collect_records, "Join the records of all runs into tables.")
    collect.add_argument(
        "--runs",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folders of run folders, if runs were made in several places (default: results/runs)",
    )
    collect.add_argument("--plan", type=Path, metavar="FILE", help="collect only the runs of this plan")
    collect.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="folders of records that are not in the plan: those of `harness claims --records`, "
        "`harness predict --out` and `harness emulate --out`",
    )
    collect.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for the tables (default: results)"
    )
    collect.add_argument(
        "--verify",
        action="store_true",
        help="exit with 1 if a run is missing, did not succeed, or received fewer words than its lower bound",
    )


def _collect_records(options: argparse.Namespace) -> int:
    from harness.results.collect import collect

    results = find_results_folder(find_root(options.root))
    with ProgressLine() as on_step:
        places, out = options.runs or [results / "runs"], options.out or results
        collected = collect(places, out, options.plan, options.beside, on_step)
    print_answer(options, collected.as_dict(), collected.as_text())
    return 1 if options.verify and not collected.is_complete else 0


def _add_figures(verbs: Verbs) -> None:
    figures = add_verb(verbs, "figures", _draw_figures, "Draw the figures of the collected tables.")
    _add_tables_option(figures)
    figures.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder for the figures (default: figures)"
    )


def _draw_figures(options: argparse.Namespace) -> int:
    from harness.figures import draw_all

    root = find_root(options.root)
    with ProgressLine() as on_step:
        paths = draw_all(
            options.tables or find_results_folder(root), options.out or root / "figures", on_step
        )
    print_answer(options, [str(path) for path in paths], "\n".join(map(str, paths)))
    return 0


def _add_report(verbs: Verbs) -> None:
    report = add_verb(
        verbs, "report", _write_report, "Write the report of the collected tables, one HTML file."
    )
    _add_tables_option(report)
    report.add_argument(
        "--figures", type=Path, metavar="DIR", help="the folder of drawn figures (default: figures)"
    )
    report.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: results/report.html)"
    )


def _write_report(options: argparse.Namespace) -> int:
    from harness.report import write_report

    root = find_root(options.root)
    results = find_results_folder(root)
    out = options.out or results / "report.html"
    figures = options.figures or root / "figures"
    with ProgressLine() as on_step:
        path = write_report(options.tables or results, figures, out, results / "plans", on_step)
    print_answer(options, {"report": str(path)}, str(path))
    return 0


def _add_artifact(verbs: Verbs) -> None:
    artifact = add_verb(
        verbs,
        "artifact",
        _pack_artifact,
        "Pack tables, figures, report, claims and environment into one archive.",
        "The archive is meant for the artifact evaluation of a paper. The same tables and figures give the same bytes.",
    )
    _add_tables_option(artifact)
    artifact.add_argument(
        "--figures", type=Path, metavar="DIR", help="the folder of drawn figures (default: figures)"
    )
    artifact.add_argument(
        "--report", type=Path, metavar="FILE", help="the report of the tables (default: results/report.html)"
    )
    artifact.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: results/artifact.tar.gz)"
    )


def _pack_artifact(options: argparse.Namespace) -> int:
    from harness.report.artifact import pack_artifact

    root = find_root(options.root)
    results = find_results_folder(root)
    report = options.report or results / "report.html"
    out = options.out or results / "artifact.tar.gz"
    figures = options.figures or root / "figures"
    with ProgressLine() as on_step:
        path = pack_artifact(root, options.tables or results, figures, report, out, on_step)
    print_answer(options, {"artifact": str(path)}, str(path))
    return 0


def _add_compare(verbs: Verbs) -> None:
    compare = add_verb(
        verbs,
        "compare",
        _compare_runs,
        "Compare two runs, or the same runs of two commits: ratios, and the phases, words and settings that differ.",
        "A and B are folders of collected tables, run folders, or run ids in results/runs. A ratio above 1 means that "
        "B is slower. Runs in two folders are paired by equal specs. With a single folder of tables, its competitors "
        "are compared by ratios within blocks: runs on the same nodes, one after the other.",
    )
    compare.add_argument("a", metavar="A", help="a folder of tables, a run folder, or the start of a run id")
    compare.add_argument(
        "b",
        metavar="B",
        nargs="?",
        help="the other side, given in the same way; without it, the competitors in A are compared",
    )


def _compare_runs(options: argparse.Namespace) -> int:
    from harness.results.collect import load_side
    from harness.results.statistics import compare_sides

    runs = find_results_folder(find_root(options.root)) / "runs"
    if options.b is None:
        return _compare_competitors(options, load_side(options.a, runs))
    rows = compare_sides(load_side(options.a, runs), load_side(options.b, runs))
    if not rows:
        raise UserError(
            f"{options.a} and {options.b} have no measured runs of the same spec, so no runs can be paired. "
            "`harness compare RUN RUN` compares two runs of any specs."
        )
    found = [{**row._asdict(), "verdict": row.verdict} for row in rows]
    counts = {name: sum(row.verdict == name for row in rows) for name in ("faster", "slower", "unsure")}
    total = "B against A: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    print_answer(options, found, "\n\n".join([*map(_format_comparison, rows), total]))
    return 0


def _compare_competitors(options: argparse.Namespace, side: "Side") -> int:
    from harness.results.statistics import compare_rivals

    rows = compare_rivals(side.runs)
    if not rows:
        raise UserError(
            f"{options.a} has no two measured competitors in the same block. Runs share a block if one job of a "
            "workflow, or one `harness run --spec FILE FILE`, starts them; `harness compare A B` compares others."
        )
    titles = [("case", "A", "B", "B over A", "95 %", "blocks")]
    lines = [
        (
            row.case,
            row.a,
            row.b,
            f"{row.ratio:.3f}",
            f"{row.interval.low:.3f} to {row.interval.high:.3f}" if row.interval else "fewer than six blocks",
            str(len(row.ratios)),
        )
        for row in rows
    ]
    print_answer(options, [row._asdict() for row in rows], format_columns([*titles, *lines]))
    return 0


CHANGES = 3
"""The maximum number of parts of an epoch that a comparison prints."""


def _format_comparison(row: "Difference") -> str:
    """Return a few lines about one configuration."""
    spread = f"{row.interval.low:.3f} to {row.interval.high:.3f}" if row.interval else "too few epochs"
    lines = [
        row.label,
        f"  B over A {row.ratio:.3f} ({spread}; {format_count(row.pairs, 'pair')}): {row.verdict}; "
        f"{1e3 * row.seconds[0]:.4g} -> {1e3 * row.seconds[1]:.4g} ms an epoch",
    ]
    lines += [f"  {part}: {1e3 * a:.4g} -> {1e3 * b:.4g} ms" for part, a, b in row.parts[:CHANGES] if a != b]
    before, after = row.elements_received
    if before != after:
        lines.append(f"  elements received: {before:,.0f} -> {after:,.0f}")
    lines += [f"  {name}: {a or 'none'} -> {b or 'none'}" for name, (a, b) in row.differs.items()]
    return "\n".join(lines)


def _add_claims(verbs: Verbs) -> None:
    claims = add_verb(
        verbs,
        "claims",
        _judge_claims,
        "Compare the claims of papers with our own values, with a verdict for each.",
        "Computes our value for every claim in workflows/claims/PAPER.csv from cards, experiments, replays, and the "
        "collected records of the papers' own runs, or from predictions where there is no record. All claims together "
        "take some minutes.",
    )
    claims.add_argument("--paper", metavar="NAME", help="the claims of one paper (default: all)")
    claims.add_argument(
        "--figure", nargs="+", default=[], metavar="ID", help="the claims in these figures or tables"
    )
    claims.add_argument(
        "--held-out",
        action="store_true",
        help="only the claims that were held out from all fits of constants",
    )
    claims.add_argument(
        "--twins",
        action="store_true",
        help="build twins of graphs for predictions that depend on the edges, which takes minutes",
    )
    claims.add_argument("--quick", action="store_true", help="skip predictions, which take most of the time")
    claims.add_argument("--score", action="store_true", help="print only the counts of verdicts")
    claims.add_argument(
        "--predictions",
        type=Path,
        metavar="DIR",
        help="use the records of `harness predict --out DIR` instead of predicting again",
    )
    claims.add_argument(
        "--records",
        type=Path,
        metavar="DIR",
        help="instead of judging, record each run for which a claim has a value, for `harness collect --beside DIR`",
    )
    claims.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="also write the table of claims, for figures and the report",
    )
    _add_tables_option(claims)


def _judge_claims(options: argparse.Namespace) -> int:
    from harness.claims import ClaimFilter, Evidence, judge_all, make_scoreboard
    from harness.claims.printed_runs import record_printed
    from harness.claims.verdicts import describe_held_out, describe_untested
    from harness.results.parquet import write_claims

    root = find_root(options.root)
    tables = options.tables or find_results_folder(root)
    evidence = Evidence(
        root, tables, predictions=options.predictions, twins=options.twins, log=print_progress
    )
    claim_filter = ClaimFilter(options.paper, tuple(options.figure), options.held_out)
    if options.records:
        claims = [claim for of_paper in claim_filter.read(root).values() for claim in of_paper]
        folders = [str(folder) for folder in record_printed(options.records, claims, evidence)]
        print_answer(options, folders, f"{len(folders)} records in {options.records}")
        return 0
    with ProgressLine() as on_step:
        verdicts = judge_all(root, evidence, claim_filter, quick=options.quick, on_step=on_step)
    everything = [verdict for some in verdicts.values() for verdict in some]
    pages = [] if options.score else [_format_verdicts(some) for some in verdicts.values()]
    pages += [
        format_columns(make_scoreboard(verdicts)),
        *describe_untested(everything),
        *describe_held_out(everything),
    ]
    rows = [verdict.as_row(paper) for paper, some in verdicts.items() for verdict in some]
    if options.out:
        write_claims(options.out, rows, tables)
    print_answer(options, rows, "\n\n".join(pages))
    return 0


def _format_verdicts(verdicts: "list[Verdict]") -> str:
    """Return a table with a row for each claim: the printed value, our value, their ratio and the verdict."""
    rows = [("claim", "place", "of what", "printed", "ours", "ours/printed", "verdict")]
    for verdict in verdicts:
        claim = verdict.claim
        ratio = f"{verdict.ratio.value:.3g}" if verdict.ratio else ""
        rows.append(
            (claim.id, claim.place, claim.what, claim.printed, verdict.ours, ratio, str(verdict.result))
        )
    return format_columns(rows)
