"""A kind of figure: the content of each panel, and how panels are put on a page.

A new kind is a `FigureKind` in a file of this folder. `find_kinds` finds it there, and so do the report and the
workflow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.panels import Panel, panels
from harness.results.epoch_parts import Frames
from harness.results.parquet import group_by_run, read_collected


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
    _: KW_ONLY
    caption: str
    """The text below the figure, for the reader: plain sentences in reStructuredText."""
    place: int = 1000
    """The place of the figure in the report: figures with smaller numbers stand before it."""


def find_kinds() -> tuple[FigureKind[Any], ...]:
    """Return the kinds of figures that the modules of this package define, in the order of the report."""
    package = __name__.rpartition(".")[0]
    modules = [
        import_module(f"{package}.{module.name}") for module in iter_modules([str(Path(__file__).parent)])
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, FigureKind)]
    kinds = {kind.name: kind for kind in found}  # a module may import the kind of another
    return tuple(sorted(kinds.values(), key=lambda kind: (kind.place, kind.name)))
