"""harness check: the conformance kit on one page."""

import argparse
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.cli.request import Verbs, add_verb, columns, show

if TYPE_CHECKING:
    from harness.check import Finding


def add_verbs(verbs: Verbs) -> None:
    summary = "Prove a strategy: equal to serial training, words equal to its formula, bad grids refused."
    parser = add_verb(verbs, "check", _check, summary)
    parser.add_argument("strategy", help="a registered name, or path/to/file.py:Class")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--quick",
        action="store_const",
        const="quick",
        dest="extent",
        help="one grid of each size, fewer cases",
    )
    extent.add_argument(
        "--full", action="store_const", const="full", dest="extent", help="every grid of up to 16 ranks"
    )
    parser.set_defaults(extent="usual")


def _check(options: argparse.Namespace) -> int:
    from harness.check import check
    from harness.launch.worker_pool import Pool

    begun, findings = time.monotonic(), []
    with Pool() as pool:
        for finding in check(options.strategy, pool.run, options.extent):
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
        "findings": [asdict(f) for f in findings],
    }
    show(options, document, f"{_page(findings)}\n\n{verdict}")
    return 1 if broken else 0


def _page(findings: list["Finding"]) -> str:
    """One line a case; each broken law once more, in full."""
    cases: dict[str, list[Finding]] = {}
    for finding in findings:
        cases.setdefault(finding.case, []).append(finding)
    lines = []
    for case, laws in cases.items():
        holds = all(law.holds for law in laws)
        told = ", ".join(f"{law.law} ({law.detail})" for law in laws if law.holds or holds)
        lines.append((("holds" if holds else "BROKEN"), case, told))
        for law in (law for law in laws if not law.holds):
            lines += [("", "", f"BROKEN {law.law}: {law.detail}"), ("", "", f"  look at {law.look}")]
    return columns(lines)
