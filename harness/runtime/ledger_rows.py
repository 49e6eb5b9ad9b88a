"""The rows of a rank's ledger over all epochs, kept by columns: 80 bytes a row, however long the run is.

Epochs have mostly the same keys, so each key is kept once and a row holds its number.
"""

from array import array
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from harness.ledger import AMOUNTS, Amounts, Key
from harness.results.schema import KEY, LEDGER, RUN_TABLES
from harness.results.table_schema import INTEGER

KINDS: dict[str, type[int] | type[float]] = {
    column.name: int if column.dtype == INTEGER else float
    for column in RUN_TABLES[LEDGER.name].columns
    if column.name in AMOUNTS
}
"""The types of the amounts of a row."""
CODES = {int: "q", float: "d"}
"""The type codes of arrays: 64 bits for each value."""


def key_to_row(key: Key) -> dict[str, Any]:
    """Return the columns of the ledger that hold a key."""
    return {
        "layer": key.layer,
        "direction": key.direction.value,
        "phase": key.phase.value,
        "op": key.op.value,
        "axis": key.axis or "",
        "peer": key.peer,
        "tensor": key.tensor.value if key.tensor else "",
    }


KEY_COLUMNS = [name for name, _ in KEY]


def _empty_columns() -> "dict[str, array[Any]]":
    names = {"epoch": int, "key": int, **KINDS}
    return {name: array(CODES[kind]) for name, kind in names.items()}


@dataclass
class LedgerRows:
    """A list of rows that grows by whole epochs."""

    keys: dict[Key, int] = field(default_factory=dict)
    """The number of every key."""
    columns: "dict[str, array[Any]]" = field(default_factory=_empty_columns)

    def __len__(self) -> int:
        return len(self.columns["epoch"])

    def add_epoch(self, number: int, entries: Mapping[Key, Amounts]) -> None:
        """Add the entries of an epoch, one row each."""
        self.columns["epoch"].extend([number] * len(entries))
        self.columns["key"].extend(self._get_key_number(key) for key in entries)
        for name, kind in KINDS.items():
            self.columns[name].extend(kind(getattr(amounts, name)) for amounts in entries.values())

    def extend(self, more: "LedgerRows") -> None:
        """Add the rows of another list."""
        numbers = [self._get_key_number(key) for key in more.keys]
        for name, values in more.columns.items():
            self.columns[name].extend([numbers[key] for key in values] if name == "key" else values)

    def __getitem__(self, rows: slice) -> "LedgerRows":
        """Return a copy of some rows, with their keys only."""
        return self._with_columns({name: values[rows] for name, values in self.columns.items()})

    def select_epochs(self, epochs: Set[int]) -> "LedgerRows":
        """Return the rows of these epochs."""
        kept = np.isin(self.column("epoch"), sorted(epochs))
        columns = {}
        for name, values in self.columns.items():
            columns[name] = array(values.typecode, self.column(name)[kept].tobytes())
        return self._with_columns(columns)

    def _get_key_number(self, key: Key) -> int:
        return self.keys.setdefault(key, len(self.keys))

    def _with_columns(self, columns: "dict[str, array[Any]]") -> "LedgerRows":
        """Return rows with these columns, and number their keys anew."""
        keys, rows = list(self.keys), LedgerRows(columns=columns)
        columns["key"] = array(CODES[int], [rows._get_key_number(keys[number]) for number in columns["key"]])
        return rows

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Return the values of a column, which are not copied. No row can be added while the array is in use."""
        values = self.columns[name]
        return np.frombuffer(values, values.typecode) if values else np.empty(0, values.typecode)

    # A pickle holds only plain values and the enums of the ledger, so reading it needs no other class.

    def __getstate__(self) -> tuple[list[tuple[Any, ...]], dict[str, bytes]]:
        return [tuple(key) for key in self.keys], {name: v.tobytes() for name, v in self.columns.items()}

    def __setstate__(self, state: tuple[list[tuple[Any, ...]], dict[str, bytes]]) -> None:
        keys, data = state
        self.keys = {Key(*parts): number for number, parts in enumerate(keys)}
        self.columns = _empty_columns()
        for name, values in self.columns.items():
            values.frombytes(data.pop(name))


def ledger_columns(ranks: Mapping[int, LedgerRows]) -> dict[str, Any]:
    """Return the columns of the table `ledger` of a run, given the rows of each rank."""
    lists = list(ranks.values()) or [LedgerRows()]
    keys = [key_to_row(key) for rows in lists for key in rows.keys]
    starts = accumulate((len(rows.keys) for rows in lists[:-1]), initial=0)
    chosen = np.concatenate([rows.column("key") + start for rows, start in zip(lists, starts, strict=True)])
    return {
        "epoch": np.concatenate([rows.column("epoch") for rows in lists]),
        "rank_id": np.repeat(np.array([*ranks], np.int64), [len(rows) for rows in ranks.values()]),
        **{name: np.array([key[name] for key in keys], object).take(chosen) for name in KEY_COLUMNS},
        **{name: np.concatenate([rows.column(name) for rows in lists]) for name in KINDS},
    }
