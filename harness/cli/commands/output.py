"""The layout of an answer: headings, paragraphs, facts, commands and tables, for a terminal or a notebook."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from harness.base.formatting import FORMATS, Unit
from harness.base.untrusted import escape_line


class TableColumn(NamedTuple):
    """A column of a table: the key of its values, its title, and the unit of its numbers."""

    key: str
    title: str
    unit: Unit | None = None
    """None for text. Numbers are aligned to the right. Values that are texts are printed as they are."""
    format: Callable[[Any], str] | None = None
    """How a value is printed, if its unit does not say it."""
    may_wrap: bool = False
    """Whether long values continue on the next line in a narrow terminal. Other values are never cut."""
    may_drop: bool = False
    """Whether a narrow terminal leaves the column out."""

    def format_cell(self, value: Any) -> str:
        """Return the text of a value; empty for None."""
        if value is None:
            return ""
        chosen = self.format or (FORMATS[self.unit] if self.unit and not isinstance(value, str) else str)
        return escape_line(chosen(value))


MOST_ROWS = 20
"""The number of rows of a long table that are printed unless all are requested."""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns. A value that is missing or None is an empty cell."""

    columns: Sequence[TableColumn]
    rows: Sequence[Mapping[str, Any]]
    title: str = ""
    most_rows: int | None = None
    """The number of rows that are printed unless all are requested."""

    def list_shown_columns(self) -> list[TableColumn]:
        """Return the columns that have a value in some row."""
        return [
            column for column in self.columns if any(row.get(column.key) is not None for row in self.rows)
        ]

    def format_columns(self) -> dict[TableColumn, list[str]]:
        """Return the cells of each column as text."""
        return {
            column: [column.format_cell(row.get(column.key)) for row in self.rows]
            for column in self.list_shown_columns()
        }


@dataclass(frozen=True)
class FactList:
    """Names and values, one to a line."""

    pairs: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True)
class Command:
    """A command that can be pasted into a shell. It is never broken into lines."""

    text: str


@dataclass(frozen=True)
class Headline:
    """The line that answers the question, or that begins a part."""

    text: str


@dataclass(frozen=True)
class Raw:
    """Text that is printed as it is, such as a script or lines of a log."""

    text: str


Block = str | Headline | FactList | Command | Table | Raw
"""A string is a paragraph."""


class View(NamedTuple):
    """How much of an answer is shown."""

    all: bool = False
    """All rows of long tables."""
    verbose: bool = False
    """Details."""
    why: bool = False
    """Reasons, as for what is missing."""


EVERYTHING = View(True, True, True)


def is_empty(block: Block) -> bool:
    """Return whether there is nothing to show: no row, no fact, or no text of a paragraph."""
    match block:
        case Table():
            return not block.rows
        case FactList():
            return not block.pairs
        case str():
            return not block
    return False


def to_html(blocks: Iterator[Block]) -> str:
    """Return an answer as HTML for a notebook."""
    return "\n".join(_block_to_html(block) for block in blocks if not is_empty(block))


def _block_to_html(block: Block) -> str:
    match block:
        case Table():
            columns = block.format_columns()
            heads = "".join(f"<th>{escape(column.title)}</th>" for column in columns)
            rows = "".join(
                f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
                for cells in zip(*columns.values(), strict=True)
            )
            title = f"<caption>{escape(block.title)}</caption>" if block.title else ""
            return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        case FactList():
            rows = "".join(
                f"<tr><th>{escape(escape_line(name))}</th><td>{escape(escape_line(value))}</td></tr>"
                for name, value in block.pairs
            )
            title = f"<caption>{escape(block.title)}</caption>" if block.title else ""
            return f"<table>{title}<tbody>{rows}</tbody></table>"
        case Headline():
            return f"<p><b>{escape(block.text)}</b></p>"
        case Command() | Raw():
            return f"<pre>{escape(block.text)}</pre>"
        case str():
            return f"<p>{escape(block)}</p>"
