"""Answers as text: aligned numbers, the width of a terminal, no colours in a pipe, nothing from a file unescaped."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from harness.cli.commands.answer import Answer
from harness.cli.commands.output import Block, Command, FactList, Headline, Raw, Table, TableColumn, View
from harness.cli.commands.rendering import make_console, render, render_text

COLUMNS = (
    TableColumn("name", "strategy"),
    TableColumn("grid", "--grid"),
    TableColumn("epoch", "epoch", "s"),
    TableColumn("received", "received", "count", may_drop=True),
    TableColumn("why", "limited by", may_drop=True),
)
ROWS: list[dict[str, Any]] = [
    {"name": "rdm", "grid": "row=64,col=1", "epoch": 0.00504, "received": 22e6, "why": "SpMM"},
    {"name": "pipegcn", "grid": "p=64", "epoch": 1.2, "received": 13500, "why": "latency in a node"},
]


def test_numbers_are_aligned_to_the_right_with_their_units() -> None:
    assert render_text(iter([Table(COLUMNS, ROWS)])).splitlines() == [
        "strategy  --grid          epoch  received  limited by",
        "rdm       row=64,col=1  5.04 ms    22.0 M  SpMM",
        "pipegcn   p=64           1.20 s    13.5 k  latency in a node",
    ]


def test_narrow_terminal_leaves_columns_out_and_says_so() -> None:
    text = render_text(iter([Table(COLUMNS, ROWS)]), width=40)
    assert max(map(len, text.splitlines()[:-1])) <= 40
    assert "row=64,col=1" in text
    assert text.splitlines()[-1] == "(a wider terminal also shows: received, limited by)"


def test_long_tables_are_cut_unless_all_rows_are_wanted() -> None:
    table = Table(COLUMNS, ROWS * 10, most_rows=3)
    assert render_text(iter([table])).splitlines()[-1] == "... 17 more (--all)"
    assert len(render_text(iter([table]), View(all=True)).splitlines()) == 21


def test_columns_without_values_are_left_out() -> None:
    rows = [{"name": "rdm", "epoch": 1.0, "received": None}]
    assert render_text(iter([Table(COLUMNS, rows)])) == "strategy   epoch\nrdm       1.00 s"


def test_commands_and_raw_text_stay_on_one_line_in_a_narrow_terminal() -> None:
    command = "harness run --strategy rdm --dataset reddit --ranks 64 --grid row=64,col=1"
    stream = StringIO()
    render(iter([Command(command), Raw("x" * 100)]), View(), Console(file=stream, width=30))
    assert command in stream.getvalue() and "x" * 100 in stream.getvalue()


def test_output_in_a_pipe_has_no_colours_and_no_trailing_spaces() -> None:
    stream = StringIO()
    blocks: list[Block] = [Headline("Answer"), FactList([("a", "1")], "Title"), Table(COLUMNS, ROWS), "text"]
    render(iter(blocks), View(), make_console(stream))
    assert "\x1b" not in stream.getvalue()
    assert all(line == line.rstrip() for line in stream.getvalue().splitlines())


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "a\nb", "[bold]x[/bold]", "<script>alert(1)</script>"])
def test_untrusted_text_cannot_change_the_output(hostile: str) -> None:
    blocks: list[Block] = [
        Headline(hostile),
        FactList([(hostile, hostile)]),
        Table([TableColumn("name", "name")], [{"name": hostile}]),
    ]
    text = render_text(iter(blocks))
    assert "\x1b" not in text
    if hostile.startswith("["):
        assert text.count(hostile) == 4
    assert "<script>" not in Shown(blocks)._repr_html_()


class Shown(Answer):
    """An answer of given blocks."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks

    def lay_out(self, view: View) -> Iterator[Block]:
        return iter(self.blocks)


def test_answers_are_frames_and_html_in_a_notebook() -> None:
    answer = Shown([Headline("Two strategies"), Table(COLUMNS, ROWS)])
    assert answer.to_frame()["epoch"].tolist() == [0.00504, 1.2]
    assert "<td>5.04 ms</td>" in answer._repr_html_()
    assert str(answer).startswith("Two strategies\n\nstrategy")
