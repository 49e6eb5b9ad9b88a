"""harness words: compares the elements that a rank sends with the formulas of the strategy and of its paper."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from harness.base.errors import RunError, UserError
from harness.base.formatting import format_bytes, format_count, format_three_digits
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, FactList, Headline, Table, TableColumn, View
from harness.cli.commands.request import CONFIG
from harness.cli.commands.run_options import RequestedRank
from harness.cli.commands.verb import Reporter, verb
from harness.spec.spec import format_grid

if TYPE_CHECKING:
    from harness.cli.commands.replaying import ReplayAnswer
    from harness.conformance.account import Account, Seen
    from harness.spec.spec import Spec


@dataclass(frozen=True, config=CONFIG)
class WordsRequest(RequestedRank):
    """The run and the rank whose elements are counted."""

    _: KW_ONLY
    replay: bool = False
    """Run nothing: show the kernels, the collectives and the memory of the rank, on tensor shapes without data."""
    from_card: bool = False
    """With --replay: take the sizes of the graph from its card; the graph need not be built."""


@plain_dataclass(frozen=True)
class WordsAnswer(Answer):
    """The elements of a rank in an epoch, by the formula and as counted in a run."""

    spec: "Spec"
    rank: int
    account: "Account"
    received: float
    """The elements that the rank received."""
    buffer_bytes: float
    """The bytes of the buffers of all collectives."""
    lower_bound: float
    """The elements that a rank receives at least, with any strategy of this kind; 0 if no bound is known."""

    @property
    def exit_code(self) -> int:
        return 0 if self.account.balances else 1

    def to_document(self) -> Any:
        return {
            "label": self.spec.label,
            "rank": self.rank,
            "seen": "sent",
            "elements_received": self.received,
            "elements_bound": self.lower_bound,
            **asdict(self.account),
        }

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self.account.rows)

    def lay_out(self, view: View) -> Iterator[Block]:
        yield Headline(self._format_verdict())
        yield Table(ELEMENT_COLUMNS, list(_list_element_rows(self.account.rows)), most_rows=50)
        yield FactList(list(self._list_received()), f"Rank {self.rank} in an epoch")
        yield from _lay_out_published(self.account.published, view)

    def _format_verdict(self) -> str:
        spec, rows = self.spec, self.account.rows
        formula, counted = (sum(row[key] for row in rows) for key in ("formula", "seen"))
        where = f"{spec.strategy.name} on {spec.dataset.name}, {format_grid(spec.grid)}, rank {self.rank}"
        if self.account.balances:
            return f"{where}: formula and run agree on {format_count(round(counted), 'element')}"
        wrong = sum(row["formula"] != row["seen"] for row in rows)
        return (
            f"{where}: formula and run differ in {wrong} of {format_count(len(rows), 'row')}, "
            f"{formula:,.0f} by the formula and {counted:,.0f} counted"
        )

    def _list_received(self) -> Iterator[tuple[str, str]]:
        counted, calls = (sum(row[key] for row in self.account.rows) for key in ("seen", "calls"))
        buffers = f"{counted:,.0f} elements, {format_bytes(self.buffer_bytes)}"
        yield "in buffers", f"{buffers}, {format_count(round(calls), 'call')}"
        yield "received", f"{self.received:,.0f} elements"
        if self.lower_bound:
            yield "lower bound", f"{self.lower_bound:,.0f} elements"


ELEMENT_COLUMNS = (
    TableColumn("direction", "pass"),
    TableColumn("layer", "layer", "whole"),
    TableColumn("op", "collective"),
    TableColumn("axis", "axis"),
    TableColumn("tensor", "tensor"),
    TableColumn("formula", "formula", "whole"),
    TableColumn("seen", "counted", "whole"),
    TableColumn("calls", "calls", "whole"),
    TableColumn("differs", ""),
)
PUBLISHED_COLUMNS = (
    TableColumn("quantity", "quantity"),
    TableColumn("formula", "formula", may_wrap=True),
    TableColumn("claims", "claims", format=", ".join, may_wrap=True, may_drop=True),
    TableColumn("value", "paper", "number", format=format_three_digits),
    TableColumn("ours", "here", "number", format=format_three_digits),
    TableColumn("ratio", "ratio", "number", format=format_three_digits),
)


def _list_element_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table, those that differ first."""
    for row in sorted(rows, key=lambda row: row["formula"] == row["seen"]):
        is_equal = row["formula"] == row["seen"]
        layer = None if row["layer"] < 0 else row["layer"]
        yield {**row, "layer": layer, "differs": None if is_equal else "DIFFERS"}


def _lay_out_published(published: Sequence[Mapping[str, Any]], view: View) -> Iterator[Block]:
    """Yield the formulas of the paper, and with --why the reasons for differences."""
    if not published:
        yield "The paper of the strategy has no formula for this grid."
        return
    rows = [
        {
            **line,
            "quantity": line["quantity"].replace("words", "elements"),
            "ratio": line["ours"] / line["value"] if line["value"] else None,
        }
        for line in published
    ]
    yield Table(PUBLISHED_COLUMNS, rows, title="The paper's formula")
    differing = [line for line in rows if line["because"] and line["ours"] != line["value"]]
    if view.why:
        yield from (f"The {line['quantity']} differ: {line['because']}." for line in differing)
    elif differing:
        yield f"{format_count(len(differing), 'quantity differs', 'quantities differ')} from the paper (--why)."


@verb(WordsRequest)
def words(request: WordsRequest, reporter: Reporter) -> "WordsAnswer | ReplayAnswer":
    """Compare the elements that a rank sends with the formulas of the strategy and of its paper.

    Trains one epoch, and counts the elements in the buffers of every collective. Prints a row for each collective, and
    then the formula of the paper. The exit code is 1 if formula and run differ.

    With --replay, executes the strategy's own code on tensor shapes without data, so that a run of any size fits on
    this machine. Prints every kernel and every collective with its elements, flops and bytes, next to the strategy's
    formula, and the memory of the rank.
    """
    from harness.conformance.account import account
    from harness.runtime.open_run import open_run
    from harness.strategy import BlockCounts

    if request.from_card and not request.replay:
        raise UserError("--from-card needs --replay: an epoch is trained on the graph, which must be built.")
    root, spec, rank = request.home, request.make_spec("words"), request.rank
    if request.replay:
        from harness.cli.commands.replaying import replay_rank

        return replay_rank(root, spec, rank, reporter.log, from_card=request.from_card)
    strategy, blocks = open_run(root, spec)
    seen, counts = _count_trained_elements(spec, root, rank, reporter), BlockCounts(blocks)
    return WordsAnswer(
        spec,
        rank,
        account(strategy, rank, counts, seen),
        sum(sent.received for sent in seen.values()),
        sum(sent.bytes for sent in seen.values()),
        strategy.words_lower_bound(strategy.coordinates(rank), counts),
    )


def _count_trained_elements(spec: "Spec", root: Path, rank: int, reporter: Reporter) -> "Seen":
    """Return the elements of a rank, counted by training one epoch in a temporary folder."""
    from harness.conformance.account import count_recorded_words
    from harness.results.record import read_record
    from harness.runtime.launch.launch import launch

    training = spec.training.model_copy(update={"epochs": 1, "warmup": 0})
    spec = spec.model_copy(update={"training": training})
    with tempfile.TemporaryDirectory() as runs:
        done = read_record(launch(spec, root, Path(runs), reporter.log))
        if done.record["status"] != "ok":
            raise RunError(
                f"The elements cannot be counted, because the run failed: {done.record['error']['message']}"
            )
        return count_recorded_words(done.table("ledger")).get(rank, {})
