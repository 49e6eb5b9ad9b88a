"""A kind of figure: what it shows of each panel, and how panels are put on a page.

A new kind is a file of this folder with a `Kind`, its place in `harness.figures.drawing.KINDS`, and the file
captions/NAME.rst, by which the report and the workflow know of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import Panel, panels
from harness.results.composition import Frames
from harness.results.parquet import read_collected

CAPTIONS = Path(__file__).parent / "captions"


class Tables(NamedTuple):
    """What was collected, but for the runs themselves."""

    epochs: Frames
    ledgers: Frames
    memory: Frames
    accuracy: Frames
    utilisation: Frames


def read_tables(folder: Path) -> Tables:
    """Those in a folder."""
    names = ("epochs", "ledger", "memory", "accuracy", "utilisation")
    frames = (
        {str(run_id): rows for run_id, rows in read_collected(folder, name).groupby("run_id")}
        for name in names
    )
    return Tables(*frames)


Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Kind(Generic[Shown]):
    """One kind of figure."""

    name: str
    """Of its files."""
    title: str
    shown: Callable[[Panel, Tables], Shown]
    """What is drawn of a panel; what is empty is left out."""
    page: Callable[[Sequence[Panel], Sequence[Shown]], Figure]
    """All panels of a figure."""
    panels: Callable[[pd.DataFrame], list[Panel]] = panels
    """What is compared with what."""

    @property
    def caption(self) -> str:
        """How it is read."""
        return (CAPTIONS / f"{self.name}.rst").read_text()
