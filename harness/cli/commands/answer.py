"""Answers: what a verb returns. The command line prints an answer; Python has its fields, a data frame and HTML."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.formatting import Unit
from harness.cli.commands.output import (
    EVERYTHING,
    MOST_ROWS,
    Block,
    Command,
    FactList,
    Headline,
    Raw,
    Table,
    TableColumn,
    View,
    to_html,
)

if TYPE_CHECKING:
    import pandas as pd

LAID_OUT = (Headline, FactList, Command, Table, Raw)
UNITS: Mapping[str, tuple[Unit, str]] = {
    "bytes": ("B", "size"),
    "seconds": ("s", "time"),
    "share": ("%", "share"),
}
"""The unit of a number by the end of its name, and the title of a name that has nothing else."""
SENTENCE = 40
"""The length from which a text with spaces may continue on the next line of a narrow terminal."""


class Answer:
    """The base of all answers: a frozen dataclass, whose fields are what the verb found.

    Fields that are blocks of a layout, such as a headline or commands, are printed as they are. All others are data:
    names with values, and sequences of rows, which are tuples with names or dataclasses. The text, the JSON data and
    the data frame follow from the fields, except `request`. A subclass replaces what it wants to be different.
    """

    @property
    def exit_code(self) -> int:
        """1 if the work ran and did not succeed."""
        return 0

    def to_document(self) -> Any:
        """Return the answer as JSON data; None if nothing is to be printed."""
        return {
            name: to_plain(value)
            for name, value in vars(self).items()
            if name != "request" and not _is_laid_out(value)
        }

    def lay_out(self, view: View) -> Iterator[Block]:
        """Yield the blocks that are printed, in the order of the fields. Names that the headline has are left out."""
        facts = list[tuple[str, str]]()
        said = next((value.text for value in vars(self).values() if isinstance(value, Headline)), "")
        for name, value in vars(self).items():
            is_said = isinstance(value, str | Path) and str(value) in said
            if blocks := list(_lay_out_value(value, view)):
                yield FactList(facts)
                facts = []
                yield from blocks
            elif not (name == "request" or is_said or value in (None, (), [])):
                facts.append((name.replace("_", " "), str(value)))
        yield FactList(facts)

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows of the first table as a pandas data frame."""
        import pandas as pd

        tables = (block for block in self.lay_out(EVERYTHING) if isinstance(block, Table))
        table = next(tables, Table([], []))
        return pd.DataFrame(list(table.rows))

    def __str__(self) -> str:
        from harness.cli.commands.rendering import render_text

        return render_text(self.lay_out(View()))

    def _repr_html_(self) -> str:
        return to_html(self.lay_out(View()))


def _lay_out_value(value: Any, view: View) -> Iterator[Block]:
    """Yield the blocks of a field; none if its value is a fact."""
    if isinstance(value, LAID_OUT):
        yield value
    elif isinstance(value, Answer):
        yield from value.lay_out(view)
    elif _is_laid_out(value):
        yield from value
    elif _is_rows(value):
        yield tabulate(value)


def to_plain(value: Any) -> Any:
    """Return a value as JSON data: rows and other dataclasses by their names, paths as texts."""
    if isinstance(value, Answer):
        return value.to_document()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: to_plain(each) for name, each in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return list(map(to_plain, value))
    return str(value) if isinstance(value, Path) else value


def tabulate(rows: Sequence[Any]) -> Table:
    """Return the table of rows. Titles and units follow from the names: `epoch_seconds` is `epoch`, a time."""
    plain = list(map(to_plain, rows))
    return Table(
        [_make_column(name, [row[name] for row in plain]) for name in plain[0]], plain, "", MOST_ROWS
    )


def _make_column(name: str, values: Sequence[Any]) -> TableColumn:
    stem, _, end = name.rpartition("_")
    if end in UNITS:
        unit, alone = UNITS[end]
        return TableColumn(name, stem.replace("_", " ") or alone, unit)
    known = [value for value in values if value is not None]
    title = name.replace("_", " ")
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return TableColumn(name, title, "whole" if all(isinstance(each, int) for each in known) else "number")
    return TableColumn(
        name, title, may_wrap=any(" " in str(each) and len(str(each)) > SENTENCE for each in known)
    )


def _is_laid_out(value: Any) -> bool:
    """Return whether a value is a block of a layout, or a sequence with one, in which texts are paragraphs."""
    return isinstance(value, LAID_OUT) or (
        isinstance(value, list | tuple) and any(isinstance(each, LAID_OUT) for each in value)
    )


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(is_dataclass(each) or hasattr(each, "_fields") for each in value)
    )
