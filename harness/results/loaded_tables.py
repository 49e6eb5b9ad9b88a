"""Collected tables as pandas data frames with short column names: what `harness.load()` returns."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pandas as pd

from harness.base.formatting import format_count
from harness.results.parquet import read_collected
from harness.results.schema import TABLES

SUBJECT = ["run_id", "strategy", "dataset", "ranks", "grid", "launch"]
"""The columns of `runs` that are added to every other table."""
HEAD_ROWS, HEAD_COLUMNS = 5, 12
"""The rows and columns of a table that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadedTables:
    """The collected tables of a folder, one data frame each. Column names are short.

    Each row of each table has the strategy, dataset, ranks, grid and launch of its run.
    """

    folder: Path
    """The folder from which the tables were read."""
    runs: pd.DataFrame
    """A row is one run: its settings, status, result and machine."""
    failures: pd.DataFrame
    """A row is one run that is not ok: its status, and the error with the place where it began."""
    epochs: pd.DataFrame
    """A row is one epoch on one rank: its seconds and its loss."""
    ledger: pd.DataFrame
    """A row is the work of one rank under one key in one epoch: seconds, calls, elements, bytes."""
    accuracy: pd.DataFrame
    """A row is one split of the vertices at one evaluation."""
    memory: pd.DataFrame
    """A row is one persistent tensor of one rank, or the peaks of the rank."""
    utilisation: pd.DataFrame
    """A row is one window of an epoch on one rank, in runs with measure.utilisation_ms."""
    tape: pd.DataFrame
    """A row is one event on one rank, in runs with measure.tape."""

    if not TYPE_CHECKING:  # a type checker must still reject names that are not attributes

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that lists the tables. Called for names that are not attributes."""
            message = f"{name!r} is not a table. The tables are {', '.join(TABLES)}."
            raise AttributeError(message, name=name, obj=self)

    def __repr__(self) -> str:
        width = max(map(len, TABLES))
        lines = [f"  {name:<{width}}  {_format_shape(frame)}" for name, frame in self._iterate_tables()]
        return "\n".join([f"tables of {self.folder}", *lines])

    def _repr_html_(self) -> str:
        """Return the tables for a notebook, each with its first rows, which a click shows."""
        parts = [f"<p>tables of <code>{escape(str(self.folder))}</code></p>"]
        for name, frame in self._iterate_tables():
            head = frame.head(HEAD_ROWS).to_html(max_cols=HEAD_COLUMNS, index=False, border=0)
            title = f"<b>{name}</b>: {_format_shape(frame)}. A row is {escape(TABLES[name].row)}."
            parts.append(f"<details><summary>{title}</summary>{head}</details>")
        return "\n".join(parts)

    def _iterate_tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        return ((name, getattr(self, name)) for name in TABLES)


def _format_shape(frame: pd.DataFrame) -> str:
    rows, columns = frame.shape
    return f"{format_count(rows, 'row')}, {format_count(columns, 'column')}"


def load(tables: str | Path = "results") -> LoadedTables:
    """Load the collected tables of a folder, with short column names."""
    folder = Path(tables)
    collected = {name: read_collected(folder, name) for name in TABLES}
    frames = {
        name: frame.rename(columns=shorten_names([str(name) for name in frame]))
        for name, frame in collected.items()
    }
    runs = frames.pop("runs")
    subject = runs[SUBJECT]
    others: dict[str, Any] = {name: subject.merge(rows, on="run_id") for name, rows in frames.items()}
    return LoadedTables(folder, runs, **others)


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Map column names to short ones: `strategy` for strategy.name, `hidden` for model.hidden.

    Ambiguous names keep all their parts, joined by underscores.
    """
    short = {name: name.removesuffix(".name").rpartition(".")[2] for name in names}
    plain = [name for name in names if "." not in name]
    counts = Counter([*short.values(), *plain])

    def shorten(name: str) -> str:
        return short[name] if name in plain or counts[short[name]] == 1 else name.replace(".", "_")

    return {name: shorten(name) for name in names}
