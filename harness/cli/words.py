"""harness words: a strategy's formula, what it was seen to send, and what its paper says, side by side."""

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.request import Verbs, add_request, add_verb, columns, requested, show, whole
from harness.errors import RunError, UserError
from harness.spec.root import project_root
from harness.validation import RANKS

if TYPE_CHECKING:
    from harness.check.account import Account, Seen
    from harness.spec.spec import Spec


def add_verbs(verbs: Verbs) -> None:
    summary = "The words of a rank: by the formula, as it was seen to send them, and as the paper says."
    parser = add_verb(verbs, "words", _words, summary)
    add_request(parser)
    parser.add_argument("--rank", type=whole(0, RANKS - 1), default=0, help="whose words (default: rank 0)")
    parser.add_argument("--replay", action="store_true", help="start no ranks: replay the one, on shapes")


def _words(options: argparse.Namespace) -> int:
    from harness.check.account import account, seen_in_replay
    from harness.run.opening import opened
    from harness.strategy import BlockCounts

    root = project_root(options.root)
    spec = requested(root, options)
    if not 0 <= options.rank < spec.ranks:
        raise UserError(f"rank = {options.rank}: the ranks of this world are 0 to {spec.ranks - 1}.")
    strategy, blocks = opened(root, spec)
    rank, how = options.rank, "replayed" if options.replay else "sent"
    seen = seen_in_replay(strategy, rank, blocks) if options.replay else _run(spec, root, rank)
    found = account(strategy, rank, BlockCounts(blocks), seen)
    show(
        options,
        {"label": spec.label, "rank": options.rank, "seen": how, **asdict(found)},
        _page(spec, found, how),
    )
    return 0 if found.balances else 1


def _run(spec: "Spec", root: Path, rank: int) -> "Seen":
    """One epoch of the whole world, recorded where nobody looks."""
    from harness.check.account import seen_in_run
    from harness.launch.launch import launch
    from harness.results.record import read_record

    training = spec.training.model_copy(update={"epochs": 1, "warmup": 0})
    with tempfile.TemporaryDirectory() as runs:
        done = read_record(
            launch(spec.model_copy(update={"training": training}), root, Path(runs), lambda _: None)
        )
        if done.record["status"] != "ok":
            raise RunError(f"the run that was to show its words: {done.record['error']['message']}")
        return seen_in_run(done.table("ledger"), rank)


def _page(spec: "Spec", found: "Account", how: str) -> str:
    head = ("direction", "layer", "op", "axis", "tensor", "formula", how, "calls", "")
    rows: list[tuple[str, ...]] = [head]
    for row in found.rows:
        where = (
            row["direction"],
            "" if row["layer"] < 0 else str(row["layer"]),
            row["op"],
            row["axis"],
            row["tensor"],
        )
        told = (f"{row['formula']:,.0f}", f"{row['seen']:,.0f}", f"{row['calls']:.0f}")
        rows.append((*where, *told, "" if row["formula"] == row["seen"] else "DIFFERS"))
    totals = (f"{sum(row[key] for row in found.rows):,.0f}" for key in ("formula", "seen", "calls"))
    rows.append(("all", "", "", "", "", *totals, ""))
    beside = [_beside(line) for line in found.published]
    heading: tuple[str, ...] = ("", "formula", "claims", "paper", "here", "ratio")
    paper = (
        columns([heading, *beside]) if beside else "The strategy names no published formula for this grid."
    )
    reasons = [
        f"{line['quantity']} differ: {line['because']}."
        for line in found.published
        if line["because"] and line["ours"] != line["value"]
    ]
    return "\n".join([spec.label, "", columns(rows), "", paper, *reasons])


def _beside(line: dict[str, Any]) -> tuple[str, ...]:
    value, ours = line["value"], line["ours"]
    ratio = f"{ours / value:.3f}" if value else ""
    return (
        line["quantity"],
        line["formula"],
        ", ".join(line["claims"]),
        f"{value:,.4g}",
        f"{ours:,.4g}",
        ratio,
    )
