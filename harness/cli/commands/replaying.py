"""harness words --replay: shows what one rank of a run of any size does in an epoch, without running it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.formatting import format_bytes, format_count, format_si, format_whole
from harness.base.progress import Log
from harness.cli.commands.answer import Answer
from harness.cli.commands.graph_options import describe_size_source
from harness.cli.commands.output import Block, FactList, Headline, Table, TableColumn, View
from harness.spec.spec import format_grid

if TYPE_CHECKING:
    from harness.graph.blocks import Blocks
    from harness.ledger import Amounts, Key
    from harness.prediction.replay import ReplayedRank
    from harness.spec.spec import Spec
    from harness.strategy import Facts, Strategy, WordsKey


@dataclass(frozen=True)
class ReplayAnswer(Answer):
    """What a rank does in an epoch: its kernels and calls with their amounts, and its memory."""

    spec: "Spec"
    facts: "Facts"
    replayed: "ReplayedRank"
    formula: Mapping["WordsKey", float]
    """The elements in buffers by the strategy's own formula."""
    lower_bound: float
    """The elements that a rank receives at least, with any strategy of this kind; 0 if no bound is known."""

    def sum(self, amount: str) -> Any:
        """Return an amount of the ledger, such as flops, over the epoch."""
        return sum(getattr(amounts, amount) for amounts in self.replayed.entries.values())

    def to_document(self) -> Any:
        replayed = self.replayed
        return {
            "label": self.spec.label,
            "rank": replayed.rank,
            "facts": asdict(self.facts),
            "elements_received": self.sum("elements_received"),
            "elements_bound": self.lower_bound,
            "entries": self.list_entries(),
            "events": [
                {
                    **_make_row(event.key, event.amounts),
                    "products": [product._asdict() for product in event.products],
                    "leaves": event.leaves,
                    "waits_for": event.waits_for,
                }
                for event in replayed.events
            ],
            "persistent_bytes": {name.value: size for name, size in replayed.persistent_bytes.items()},
            "peak_bytes": replayed.peak_bytes,
        }

    def list_entries(self) -> list[dict[str, Any]]:
        """Return a row for each entry of the ledger, in the order of the epoch.

        The formula covers all phases of a call together; the first entry of the call has its elements.
        """
        from harness.conformance.account import find_words_key

        missing, rows = dict(self.formula), list[dict[str, Any]]()
        for key, amounts in self.replayed.entries.items():
            place = find_words_key(key)
            formula = missing.pop(place) if place in missing else None
            rows.append({**_make_row(key, amounts), "elements_formula": formula})
        unsent = [
            {**dict.fromkeys(rows[0]), **key._asdict(), "elements_formula": elements}
            for key, elements in missing.items()
            if elements and rows
        ]
        return rows + unsent

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self.list_entries())

    def lay_out(self, view: View) -> Iterator[Block]:
        spec, replayed = self.spec, self.replayed
        yield Headline(
            f"{spec.strategy.name} on {spec.dataset.name}, {format_grid(spec.grid)}, rank {replayed.rank} of "
            f"{spec.ranks}: receives {format_si(self.sum('elements_received'))} elements, "
            f"{format_si(self.sum('flops'))}flop, peak {format_bytes(replayed.peak_bytes)}"
        )
        yield Table(list_entry_columns(view), list(self._list_shown_entries()), most_rows=50)
        yield self._describe_formula()
        yield FactList(list(self._list_memory()), "Memory")
        if view.verbose:
            yield FactList(list(self._list_details()), "Epoch")
        yield f"Sizes {describe_size_source(self.facts)}."

    def _list_shown_entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries with nonzero amounts, without zeros."""
        for row in self.list_entries():
            if any(row[amount] for amount in ("calls", "elements_payload", "flops", "bytes_touched")):
                layer = None if row["layer"] < 0 else row["layer"]
                yield {name: (value or None) if name in AMOUNTS else value for name, value in row.items()} | {
                    "layer": layer
                }

    def _describe_formula(self) -> str:
        from harness.conformance.account import count_epoch_words

        seen = {key: sent.words for key, sent in count_epoch_words(self.replayed.entries).items()}
        total = f"{sum(seen.values()):,.0f}"
        wrong = sum(seen.get(key, 0) != self.formula.get(key, 0) for key in seen.keys() | self.formula.keys())
        if not wrong:
            return f"The strategy's formula agrees: {total} elements in buffers."
        formula = f"{sum(self.formula.values()):,.0f}"
        rows = format_count(wrong, "collective")
        if self.facts.exact:
            return f"The strategy's formula differs in {rows}: {formula} elements in buffers, and {total} replayed."
        return (
            f"The strategy's formula gives {formula} elements in buffers, and the replay {total}: both estimate "
            f"the edges of a block, and differ in {rows}."
        )

    def _list_memory(self) -> Iterator[tuple[str, str]]:
        for name, size in self.replayed.persistent_bytes.items():
            yield name.value, format_bytes(size)
        held = sum(self.replayed.persistent_bytes.values())
        yield (
            "activations, gradients, optimizer and buffers",
            f"up to {format_bytes(self.replayed.peak_bytes - held)}",
        )
        yield "peak", format_bytes(self.replayed.peak_bytes)

    def _list_details(self) -> Iterator[tuple[str, str]]:
        yield "events", f"{len(self.replayed.events):,}"
        yield "collective calls", f"{self.sum('calls'):,}"
        yield "elements in buffers", f"{self.sum('elements_payload'):,.0f}"
        yield "elements received", f"{self.sum('elements_received'):,.0f}"
        if self.lower_bound:
            yield "lower bound", f"{self.lower_bound:,.0f} elements received"
        yield "bytes in buffers", format_bytes(self.sum("bytes"))
        yield "read and written by kernels", format_bytes(self.sum("bytes_touched"))


AMOUNTS = ("calls", "elements_payload", "elements_received", "bytes", "flops", "bytes_touched")
"""The amounts of an entry."""


def list_entry_columns(view: View) -> list[TableColumn]:
    """Return the columns of the entries. With -v elements are printed in full."""
    number = format_whole if view.verbose else format_si
    return [
        TableColumn("direction", "pass"),
        TableColumn("layer", "layer", "whole"),
        TableColumn("op", "op"),
        TableColumn("axis", "axis"),
        TableColumn("tensor", "tensor"),
        TableColumn("calls", "calls", "whole"),
        TableColumn("elements_payload", "elements", "number", format=number),
        TableColumn("elements_formula", "formula", "number", format=number, may_drop=True),
        TableColumn("flops", "flop", "count"),
        TableColumn("bytes_touched", "touched", "B"),
        TableColumn("phase", "phase", may_drop=True),
    ]


def _make_row(key: "Key", amounts: "Amounts") -> dict[str, Any]:
    return {**key._asdict(), **{name: getattr(amounts, name) for name in AMOUNTS}}


def replay_rank(root: Path, spec: "Spec", rank: int, log: Log, *, from_card: bool) -> ReplayAnswer:
    """Replay a rank of a run on tensor shapes without data. With `from_card`, the graph need not be built."""
    from harness.prediction.replay import replay
    from harness.strategy import BlockCounts
    from harness.strategy.facts import ShapeBlocks

    strategy, blocks = _admit_spec(root, spec, from_card)
    log(f"replaying rank {rank} of {spec.ranks}")
    replayed = replay(strategy, rank, blocks)
    counts = BlockCounts(blocks or ShapeBlocks(strategy.facts, spec.dataset.permutation))
    at = strategy.coordinates(rank)
    return ReplayAnswer(
        spec, strategy.facts, replayed, strategy.words(at, counts), strategy.words_lower_bound(at, counts)
    )


def _admit_spec(root: Path, spec: "Spec", from_card: bool) -> "tuple[Strategy, Blocks | None]":
    """Return the strategy of a spec, and the blocks of its graph if they are not taken from its card."""
    from harness.experiment.known_graph import facts_of_card
    from harness.graph.cards.catalog import load_card
    from harness.registry import load_strategy
    from harness.runtime.open_run import open_run
    from harness.strategy import admit

    if not from_card:
        return open_run(root, spec)
    facts = facts_of_card(load_card(root, spec.dataset.name))
    return admit(load_strategy(spec.strategy.name), spec, facts), None
