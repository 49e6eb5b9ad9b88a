"""Renders layouts as text with rich: in the width and the colours of a terminal, or as wide as needed without one."""

import textwrap
from collections.abc import Iterator
from io import StringIO
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from harness.base.untrusted import escape_control, escape_line
from harness.cli.commands.output import (
    Block,
    Command,
    FactList,
    Headline,
    Raw,
    Table,
    TableColumn,
    View,
    is_empty,
)

DEFAULT_VIEW = View()
UNBOUNDED = 10_000
"""The width of tables and commands that are not printed on a terminal."""
PARAGRAPH = 100
"""The maximum width of a paragraph."""
GAP, LEAST_WRAPPED = 2, 24
"""The width between two columns, and the least width of a column that may wrap."""


def make_console(stream: IO[str]) -> Console:
    """Return a console that has colours and a limited width only on a terminal."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def render(blocks: Iterator[Block], view: View, console: Console) -> None:
    """Print the blocks of a layout. An empty line separates parts: paragraphs, tables, and lists of facts."""
    previous: Block | None = None
    for block in blocks:
        if is_empty(block):
            continue
        if previous is not None and not _belong_together(previous, block):
            console.print()
        _render_block(block, view, console)
        previous = block


def render_text(blocks: Iterator[Block], view: View = DEFAULT_VIEW, width: int | None = None) -> str:
    """Return the blocks of a layout as text without colours, in a given width or as wide as needed."""
    stream = StringIO()
    console = Console(file=stream, highlight=False, markup=False, emoji=False, width=width or UNBOUNDED)
    render(blocks, view, console)
    return stream.getvalue().rstrip("\n")


def _belong_together(first: Block, second: Block) -> bool:
    """Return whether two blocks have no empty line between them."""
    return isinstance(first, Command) and isinstance(second, Command)


def _render_block(block: Block, view: View, console: Console) -> None:
    match block:
        case Table():
            _render_table(block, view, console)
        case FactList():
            _render_facts(block, console)
        case Headline():
            console.print(Text(_fill(block.text, console), style="bold"), soft_wrap=True)
        case Command():
            # A terminal breaks a long line where it ends, and joins it again when it is copied.
            console.print(Text(f"  {escape_control(block.text)}", style="cyan"), soft_wrap=True)
        case Raw():
            console.print(Text(escape_control(block.text)), soft_wrap=True)
        case str():
            console.print(Text(_fill(block, console)), soft_wrap=True)


def _fill(text: str, console: Console) -> str:
    """Return a paragraph for a console: in lines that fit a terminal, or in one line for a pipe.

    Lines are not broken between a number and its percent sign, or within a word.
    """
    if console.width == UNBOUNDED:
        return escape_line(text)
    kept, width = escape_line(text).replace(" %", "\0%"), min(console.width, PARAGRAPH)
    return textwrap.fill(kept, width, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def _render_facts(facts: FactList, console: Console) -> None:
    if facts.title:
        console.print(Text(escape_line(facts.title), style="bold"))
    grid = RichTable.grid(padding=(0, GAP, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.pairs:
        grid.add_row(Text(escape_line(name)), Text(escape_line(value)))
    _print_lines(Padding(grid, (0, 0, 0, GAP)) if facts.title else grid, console)


def _render_table(table: Table, view: View, console: Console) -> None:
    most = len(table.rows) if view.all or table.most_rows is None else table.most_rows
    cells = {column: texts[:most] for column, texts in table.format_columns().items()}
    dropped = _drop_columns(cells, console.width)
    rich = RichTable(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for column in cells:
        rich.add_column(
            Text(column.title),
            justify="right" if column.unit else "left",
            overflow="fold",
            no_wrap=not column.may_wrap,
        )
    for row in zip(*cells.values(), strict=True):
        rich.add_row(*map(Text, row))
    if table.title:
        console.print(Text(escape_line(table.title), style="bold"))
    _print_lines(rich, console)
    if dropped:
        note = f"(a wider terminal also shows: {', '.join(dropped)})"
        console.print(Text(note, style="dim"), soft_wrap=True)
    if (left := len(table.rows) - most) > 0:
        console.print(Text(f"... {left} more (--all)", style="dim"))


def _drop_columns(cells: dict[TableColumn, list[str]], width: int) -> list[str]:
    """Remove columns that may be dropped, the last first, until the others fit. Return their titles."""
    dropped = list[str]()
    for column in [column for column in reversed(cells) if column.may_drop]:
        if sum(map(_measure_column, cells.items())) <= width:
            break
        del cells[column]
        dropped.insert(0, column.title)
    return dropped


def _measure_column(item: tuple[TableColumn, list[str]]) -> int:
    """Return the least width of a column with the gap after it."""
    column, texts = item
    width = max(map(cell_len, [column.title, *texts]))
    return GAP + (min(width, LEAST_WRAPPED) if column.may_wrap else width)


def _print_lines(renderable: object, console: Console) -> None:
    """Print a table without the white space that fills its lines."""
    if console.is_terminal:
        console.print(renderable)
        return
    lines = console.render_lines(renderable, pad=False)  # type: ignore[arg-type]
    for line in lines:
        console.file.write("".join(segment.text for segment in line).rstrip() + "\n")
