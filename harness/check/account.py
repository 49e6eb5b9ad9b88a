"""The account of a strategy's words: its formula, what it was seen to send, and what its paper says, side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from harness.graph.blocks import Blocks
from harness.ledger import MOVING, Amounts, Direction, Key, Op, TensorName
from harness.replay import replay
from harness.strategy import Counts, Published, Quantity, Strategy, WordsKey

LAYERS = 1 << 30
"""More than any model has: the loss, of layer -1, comes last."""


@dataclass(frozen=True)
class Sent:
    """What went under one row of the formula."""

    words: float = 0
    calls: float = 0


Seen = Mapping[WordsKey, Sent]


@dataclass(frozen=True)
class Account:
    """One rank's."""

    rows: list[dict[str, Any]]
    """A row of the formula each, with the words that were seen and the calls they took."""
    published: list[dict[str, Any]]

    @property
    def balances(self) -> bool:
        """Whether every row was seen to have the words of the formula."""
        return all(row["formula"] == row["seen"] for row in self.rows)


def account(strategy: Strategy, rank: int, counts: Counts, seen: Seen) -> Account:
    """Formula and sight, row by row, and the paper's totals."""
    formula = strategy.words(strategy.coordinates(rank), counts)
    rows = [
        {
            **key._asdict(),
            "formula": formula.get(key, 0),
            "seen": seen.get(key, Sent()).words,
            "calls": seen.get(key, Sent()).calls,
        }
        for key in sorted(formula.keys() | seen.keys(), key=_as_it_goes)
    ]
    return Account(rows, [_beside(line, seen) for line in strategy.published()])


def _as_it_goes(key: WordsKey) -> tuple[bool, int, WordsKey]:
    """Forward through the layers to the loss, and back."""
    back = key.direction is Direction.BACKWARD
    return back, -key.layer if back else key.layer % LAYERS, key


def seen_in_replay(strategy: Strategy, rank: int, blocks: Blocks | None = None) -> Seen:
    """What the rank would send."""
    return seen_in_epoch(replay(strategy, rank, blocks).entries)


def seen_in_epoch(entries: Mapping[Key, Amounts]) -> Seen:
    """What a rank sent, by the entries of its ledger."""
    found: dict[WordsKey, Sent] = {}
    for key, amounts in entries.items():
        if key.op in MOVING:
            assert key.axis is not None and key.tensor is not None, key
            _add(found, WordsKey(key.direction, key.layer, key.op, key.axis, key.tensor), amounts)
    return found


def seen_in_run(ledger: pd.DataFrame, rank: int) -> Seen:
    """What the rank sent in the last epoch of a recorded run."""
    found: dict[WordsKey, Sent] = {}
    mine = ledger[(ledger["rank"] == rank) & (ledger.epoch == ledger.epoch.max()) & ledger.op.isin(MOVING)]
    for row in mine.itertuples():
        key = WordsKey(Direction(row.direction), row.layer, Op(row.op), row.axis, TensorName(row.tensor))
        _add(found, key, row)
    return found


def _add(found: dict[WordsKey, Sent], key: WordsKey, amounts: Any) -> None:
    before = found.get(key, Sent())
    found[key] = Sent(before.words + amounts.words_payload, before.calls + amounts.calls)


def _beside(line: Published, seen: Seen) -> dict[str, Any]:
    forward = [sent for key, sent in seen.items() if key.direction is Direction.FORWARD and key.layer >= 0]
    counted = {
        Quantity.WORDS: sum(sent.words for sent in seen.values()),
        Quantity.CALLS: sum(sent.calls for sent in seen.values()),
        Quantity.FORWARD_WORDS: sum(sent.words for sent in forward),
        Quantity.FORWARD_CALLS: sum(sent.calls for sent in forward),
        Quantity.LAYOUT: line.ours,
    }
    return {**line._asdict(), "ours": counted[line.quantity]}
