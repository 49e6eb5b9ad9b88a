"""A kind of figure: the content of each panel, and how panels are put on a page.

A new kind is a file of this folder with a `FigureKind`, a name in `harness.figures.drawing.KINDS`, and a caption
captions/NAME.rst, which the report and the workflow read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import Panel, panels
from harness.results.epoch_parts import Frames
from harness.results.parquet import group_by_run, read_collected

CAPTIONS = Path(__file__).parent / "captions"


class Tables(NamedTuple):
    """The collected tables except `runs`, each by run."""

    epochs: Frames
    ledgers: Frames
    memory: Frames
    accuracy: Frames
    utilisation: Frames


def read_tables(folder: Path) -> Tables:
    """The tables of a folder."""
    names = ("epochs", "ledger", "memory", "accuracy", "utilisation")
    return Tables(*(group_by_run(read_collected(folder, name)) for name in names))


Shown = TypeVar("Shown")


@dataclass(frozen=True)
class FigureKind(Generic[Shown]):
    """One kind of figure."""

    name: str
    """The name of its files."""
    title: str
    shown: Callable[[Panel, Tables], Shown | None]
    """The content of a panel; a panel with empty content or None is left out."""
    page: Callable[[Sequence[Panel], Sequence[Shown]], Figure]
    """Draws all panels of a figure."""
    data: Callable[[Shown], Iterable[Mapping[str, Any]]]
    """The rows of numbers that the content of a panel draws."""
    panels: Callable[[pd.DataFrame], list[Panel]] = panels
    """Divides the rows of a table into panels: the runs of one panel are compared."""
    of: Literal["runs", "claims"] = "runs"
    """The table."""

    @property
    def caption(self) -> str:
        """The text below the figure, for the reader."""
        return (CAPTIONS / f"{self.name}.rst").read_text(encoding="utf-8")
