"""A kind of figure: which runs its panels show, how the panels are drawn, and which numbers go into its CSV file.

To add a kind, define a `FigureKind` in a module of this folder. `find_kinds` finds it there, and so do the report and
the workflow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from harness.figures.page_layout import Section, compose_figure
from harness.figures.panels import Panel, split_panels, title_panels
from harness.results.epoch_parts import Frames
from harness.results.parquet import group_by_run, read_collected


class Tables(NamedTuple):
    """The collected tables except `runs`, each split by run."""

    epochs: Frames
    ledgers: Frames
    memory: Frames
    accuracy: Frames
    utilisation: Frames


def read_tables(folder: Path) -> Tables:
    """Read the collected tables of a folder."""
    names = ("epochs", "ledger", "memory", "accuracy", "utilisation")
    return Tables(*(group_by_run(read_collected(folder, name)) for name in names))


Content = TypeVar("Content")


@dataclass(frozen=True)
class FigureKind(Generic[Content]):
    """One kind of figure."""

    name: str
    """The stem of its files."""
    title: str
    select_content: Callable[[Panel, Tables], Content | None]
    """Selects what a panel shows. Panels whose content is empty or None are skipped."""
    draw_figure: Callable[[Sequence[Panel], Sequence[Content]], Figure]
    """Draws all panels of a figure."""
    tabulate: Callable[[Content], Iterable[Mapping[str, Any]]]
    """Lists the numbers that a panel shows, as rows for the CSV file next to the figure."""
    split_panels: Callable[[pd.DataFrame], list[Panel]] = split_panels
    """Splits the rows of the table into panels. The runs of one panel are compared with each other."""
    table: Literal["runs", "claims"] = "runs"
    """The table that the figure shows."""

    _: KW_ONLY
    caption: str
    """The text below the figure: plain sentences in reStructuredText."""
    place: int = 1000
    """The place of the figure in the report. Figures with smaller numbers come first."""


def find_kinds() -> tuple[FigureKind[Any], ...]:
    """Return the kinds of figures that the modules of this package define, in the order of the report."""
    package = __name__.rpartition(".")[0]
    modules = [
        import_module(f"{package}.{module.name}") for module in iter_modules([str(Path(__file__).parent)])
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, FigureKind)]
    kinds = {kind.name: kind for kind in found}  # a module may import the kind of another
    return tuple(sorted(kinds.values(), key=lambda kind: (kind.place, kind.name)))


def compose_panels(
    panels: Sequence[Panel],
    contents: Sequence[Content],
    make_section: Callable[[str, Content], Section],
    handles: Sequence[Artist] = (),
) -> Figure:
    """Compose a figure with one section for each panel under its title, a legend, and a note on the settings."""
    titles, note = title_panels(panels)
    sections = [make_section(title, content) for title, content in zip(titles, contents, strict=True)]
    return compose_figure(sections, handles, note)
