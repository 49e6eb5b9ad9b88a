"""The account of a strategy's words: its formula next to the counted words, and its paper's totals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.ledger import MOVING, Amounts, Direction, Key, Op, TensorName
from harness.results.run_summary import find_texts
from harness.strategy import Counts, PublishedCost, Quantity, Strategy, WordsKey

if TYPE_CHECKING:
    from harness.results.table_schema import Columns

LAYERS = 1 << 30
"""More layers than any model has. Modulo this number the loss, layer -1, sorts last."""


@dataclass(frozen=True)
class Sent:
    """The words and calls counted for one row of the formula."""

    words: float = 0
    calls: float = 0
    bytes: float = 0
    received: float = 0
    """The received words; `words` counts the payload."""


Seen = Mapping[WordsKey, Sent]
KEY_COLUMNS = ("rank_id", "direction", "layer", "op", "axis", "tensor")
AMOUNT_COLUMNS = ("calls", "elements_payload", "elements_received", "bytes")
"""The columns of a ledger that say what a row counts, and how much it counts."""


@dataclass(frozen=True)
class Account:
    """The account of one rank."""

    rows: list[dict[str, Any]]
    """One entry for each row of the formula, with the counted words and calls."""
    published: list[dict[str, Any]]

    @property
    def balances(self) -> bool:
        """Whether the counted elements equal the formula in every row."""
        return all(row["formula"] == row["seen"] for row in self.rows)


def account(strategy: Strategy, rank: int, counts: Counts, seen: Seen) -> Account:
    """Compare the formula with the counted words row by row, and with the paper's totals."""
    formula = strategy.words(strategy.coordinates(rank), counts)
    rows = [
        {
            **key._asdict(),
            "formula": formula.get(key, 0),
            "seen": seen.get(key, Sent()).words,
            "calls": seen.get(key, Sent()).calls,
        }
        for key in sorted(formula.keys() | seen.keys(), key=_sort_key)
    ]
    return Account(rows, [_compare_published(line, seen) for line in strategy.published_costs()])


def _sort_key(key: WordsKey) -> tuple[bool, int, WordsKey]:
    """Return the sort key of a row: forward through the layers to the loss, then backward."""
    back = key.direction is Direction.BACKWARD
    return back, -key.layer if back else key.layer % LAYERS, key


def find_words_key(key: Key) -> WordsKey | None:
    """Return the key of the formula for an entry of a ledger; None for an entry that moves nothing."""
    if key.op not in MOVING:
        return None
    assert key.axis is not None and key.tensor is not None, key
    return WordsKey(key.direction, key.layer, key.op, key.axis, key.tensor)


def count_epoch_words(entries: Mapping[Key, Amounts]) -> Seen:
    """Count the words that a rank sent, from the entries of its ledger."""
    seen: dict[WordsKey, Sent] = {}
    for key, amounts in entries.items():
        if place := find_words_key(key):
            _add(seen, place, amounts)
    return seen


def count_recorded_words(ledger: "Columns", chosen: int | None = None) -> dict[int, Seen]:
    """Count the words that each rank sent in an epoch of a recorded run, by default the last.

    Ranks that sent nothing are left out.
    """
    seen: dict[int, dict[WordsKey, Sent]] = {}
    epoch = np.asarray(ledger["epoch"])
    rows = np.flatnonzero(epoch == (epoch.max() if chosen is None else chosen))
    rows = rows[find_texts(np.asarray(ledger["op"])[rows], MOVING)]
    columns = (np.asarray(ledger[name])[rows].tolist() for name in (*KEY_COLUMNS, *AMOUNT_COLUMNS))
    for rank, direction, layer, op, axis, tensor, *amounts in zip(*columns, strict=True):
        key = WordsKey(Direction(direction), layer, Op(op), axis, TensorName(tensor))
        _add(seen.setdefault(rank, {}), key, Amounts(*amounts))
    return {**seen}


def _add(seen: dict[WordsKey, Sent], key: WordsKey, amounts: Amounts) -> None:
    before = seen.get(key, Sent())
    seen[key] = Sent(
        before.words + amounts.elements_payload,
        before.calls + amounts.calls,
        before.bytes + amounts.bytes,
        before.received + amounts.elements_received,
    )


def _compare_published(line: PublishedCost, seen: Seen) -> dict[str, Any]:
    forward = [sent for key, sent in seen.items() if key.direction is Direction.FORWARD and key.layer >= 0]
    counted = {
        Quantity.WORDS: sum(sent.words for sent in seen.values()),
        Quantity.CALLS: sum(sent.calls for sent in seen.values()),
        Quantity.FORWARD_WORDS: sum(sent.words for sent in forward),
        Quantity.FORWARD_CALLS: sum(sent.calls for sent in forward),
        Quantity.LAYOUT: line.ours,
    }
    return {**line._asdict(), "ours": counted[line.quantity]}
