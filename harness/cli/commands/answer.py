"""Answers: what a verb returns. The command line prints an answer; Python has its fields, a data frame and HTML."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.cli.commands.output import EVERYTHING, Block, Table, View, to_html

if TYPE_CHECKING:
    import pandas as pd


class Answer:
    """The base of all answers. A subclass is a frozen dataclass with `to_document` and `lay_out`."""

    @property
    def exit_code(self) -> int:
        """1 if the work ran and did not succeed."""
        return 0

    def to_document(self) -> Any:
        """Return the answer as JSON data; None if nothing is to be printed."""
        raise NotImplementedError

    def lay_out(self, view: View) -> Iterator[Block]:
        """Yield the blocks that are printed, the answer first."""
        raise NotImplementedError

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
