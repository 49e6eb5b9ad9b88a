"""harness words and harness check: the words of a strategy beside its formula, and all laws that it must keep."""

import argparse
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.options import (
    Verbs,
    add_rank,
    add_request,
    add_verb,
    check_rank,
    columns,
    requested,
    say,
    show,
)
from harness.errors import RunError, UserError
from harness.spec.root import project_root

if TYPE_CHECKING:
    from harness.check import Finding
    from harness.check.account import Account, Seen
    from harness.launch.fork_server import Waiting
    from harness.spec.spec import Spec


def add_verbs(verbs: Verbs) -> None:
    words = add_verb(
        verbs,
        "words",
        _words,
        "Compare the words that a rank sends with the strategy's formula and with its paper's.",
        "Trains one epoch. Prints a line for each collective, with the words of the formula and the words sent; then "
        "the paper's own formula, with the reasons for any difference. The exit code is 1 if formula and run differ.",
    )
    add_request(words)
    add_rank(words)
    words.add_argument(
        "--replay", action="store_true", help="start no ranks: replay the rank on tensor shapes"
    )
    check = add_verb(
        verbs,
        "check",
        _check,
        "Prove a strategy: equal to serial training, words equal to its formula, bad grids refused.",
        "Trains small graphs on several grids. Prints a line for each case; a broken law names the place to look at. "
        "The exit code is 1 if a law is broken.",
    )
    check.add_argument("strategy", help="a name of `harness list strategies`, or path/to/file.py:Class")
    extent = check.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick",
        action="store_const",
        const="quick",
        dest="extent",
        help="check one grid of each size, in fewer cases",
    )
    extent.add_argument(
        "--full", action="store_const", const="full", dest="extent", help="check every grid of up to 16 ranks"
    )
    check.add_argument(
        "--machine",
        metavar="NAME",
        help="the machine card; on local-gpu each rank has a GPU of its own, and no case has more ranks than there are "
        "GPUs (default: ranks on the cores of this machine)",
    )
    check.set_defaults(extent="usual")


def _words(options: argparse.Namespace) -> int:
    from harness.check.account import account, seen_in_replay
    from harness.run.open_run import open_run
    from harness.strategy import BlockCounts

    root = project_root(options.root)
    spec = requested(root, options)
    check_rank(options, spec)
    strategy, blocks = open_run(root, spec)
    rank, how = options.rank, "replayed" if options.replay else "sent"
    seen = seen_in_replay(strategy, rank, blocks) if options.replay else _trained(spec, root, rank)
    result = account(strategy, rank, BlockCounts(blocks), seen)
    document = {"label": spec.label, "rank": rank, "seen": how, **asdict(result)}
    show(options, document, _account_page(spec, result, how))
    return 0 if result.balances else 1


def _trained(spec: "Spec", root: Path, rank: int) -> "Seen":
    """The words of a rank in one epoch of the whole run, recorded in a temporary folder."""
    from harness.check.account import seen_in_run
    from harness.launch.launch import launch
    from harness.results.record import read_record

    training = spec.training.model_copy(update={"epochs": 1, "warmup": 0})
    spec = spec.model_copy(update={"training": training})
    with tempfile.TemporaryDirectory() as runs:
        done = read_record(launch(spec, root, Path(runs), lambda _: None))
        if done.record["status"] != "ok":
            raise RunError(
                f"the run whose words were to be counted failed: {done.record['error']['message']}"
            )
        return seen_in_run(done.table("ledger"), rank)


def _account_page(spec: "Spec", result: "Account", how: str) -> str:
    rows: list[tuple[str, ...]] = [
        ("direction", "layer", "op", "axis", "tensor", "formula", how, "calls", "")
    ]
    for row in result.rows:
        layer = "" if row["layer"] < 0 else str(row["layer"])
        place = (row["direction"], layer, row["op"], row["axis"], row["tensor"])
        numbers = (f"{row['formula']:,.0f}", f"{row['seen']:,.0f}", f"{row['calls']:.0f}")
        rows.append((*place, *numbers, "" if row["formula"] == row["seen"] else "DIFFERS"))
    totals = (f"{sum(row[key] for row in result.rows):,.0f}" for key in ("formula", "seen", "calls"))
    rows.append(("all", "", "", "", "", *totals, ""))
    paper = "The strategy names no published formula for this grid."
    if result.published:
        head: tuple[str, ...] = ("", "formula", "claims", "paper", "here", "ratio")
        paper = columns([head, *map(_published_row, result.published)])
    reasons = [
        f"{line['quantity']} differ: {line['because']}."
        for line in result.published
        if line["because"] and line["ours"] != line["value"]
    ]
    return "\n".join([spec.label, "", columns(rows), "", paper, *reasons])


def _published_row(line: dict[str, Any]) -> tuple[str, ...]:
    value, ours = line["value"], line["ours"]
    ratio = f"{ours / value:.3f}" if value else ""
    claims = ", ".join(line["claims"])
    return line["quantity"], line["formula"], claims, f"{value:,.4g}", f"{ours:,.4g}", ratio


def _check(options: argparse.Namespace) -> int:
    from harness.comm.engine import Engine, most_ranks
    from harness.launch.worker_pool import Pool
    from harness.spec.machine_card import Machine, load_machine

    begun, findings = time.monotonic(), []
    machine = (
        load_machine(project_root(options.root), options.machine) if options.machine else Machine(name="kit")
    )
    with Pool(waiting=_waiting(options.root), engine=Engine(machine.engine)) as pool:
        from harness.check import check  # while the ranks' fork server imports

        for finding in check(
            options.strategy, pool.run, options.extent, machine, most_ranks(Engine(machine.engine))
        ):
            findings.append(finding)
            if sys.stderr.isatty():
                print(f"\r{len(findings)} laws checked", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    cases = len({finding.case for finding in findings})
    broken = [finding for finding in findings if not finding.holds]
    took = f"{len(findings)} laws on {cases} cases in {time.monotonic() - begun:.0f} s"
    verdict = f"{options.strategy}: {'conforms' if not broken else f'{len(broken)} laws broken'} ({took})"
    document = {
        "strategy": options.strategy,
        "conforms": not broken,
        "findings": [asdict(finding) for finding in findings],
    }
    show(options, document, f"{_findings_page(findings)}\n\n{verdict}")
    return 1 if broken else 0


def _waiting(root: str | None) -> "Waiting":
    """How long ranks may take to start, by the card of this machine; the default outside of a project."""
    from harness.launch.fork_server import Waiting
    from harness.launch.rank_starter import waiting_on

    try:
        waiting = waiting_on(project_root(root), "local")
    except UserError:
        waiting = Waiting()
    return waiting._replace(progress=say)


def _findings_page(findings: list["Finding"]) -> str:
    """A line for each case, followed by two lines for each broken law."""
    cases: dict[str, list[Finding]] = {}
    for finding in findings:
        cases.setdefault(finding.case, []).append(finding)
    lines = []
    for case, laws in cases.items():
        holds = all(law.holds for law in laws)
        kept = ", ".join(f"{law.law} ({law.detail})" for law in laws if law.holds)
        lines.append((("holds" if holds else "BROKEN"), case, kept))
        for law in (law for law in laws if not law.holds):
            lines += [("", "", f"BROKEN {law.law}: {law.detail}"), ("", "", f"  look at {law.look}")]
    return columns(lines)
