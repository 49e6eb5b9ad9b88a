"""A kind of figure: a question, a tidy frame of the runs that answer it, and the mark that draws the frame.

To add a kind, define a `FigureKind` in a module of `harness.report.figures.kinds`. `find_kinds` finds it there, and so
do the report and the workflow. The frame is also the CSV file beside the figure and the data of the chart in the
report.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal, NamedTuple

import pandas as pd

from harness.report.figures import kinds
from harness.report.figures.marks.facet import MOST_COLOURED, Facet, Mark, name_without_source
from harness.report.figures.panels import Panel, split_panels
from harness.report.figures.placed_marks import PrintedMark, add_readings, read_marks
from harness.results.epoch_parts import Parts, split_epochs
from harness.results.parquet import RunTable, read_claims_table, read_collected


class Tables(NamedTuple):
    """The collected tables except `runs`."""

    epochs: RunTable
    ledgers: RunTable
    memory: RunTable
    accuracy: RunTable
    utilisation: RunTable
    parts: Mapping[str, Parts]
    """The median epoch of each run by phase, op and tensor. See `epoch_parts.split_epochs`."""
    marks: Sequence[PrintedMark] = ()
    """What papers print about several runs, from the table of claims."""


READ_TABLES = ("epochs", "ledger", "memory", "accuracy", "utilisation")
"""The names of the collected tables that kinds read."""


def read_tables(folder: Path) -> Tables:
    """Read the collected tables of a folder."""
    tables = make_tables({name: read_collected(folder, name) for name in READ_TABLES})
    return tables._replace(marks=read_marks(read_claims_table(folder)))


def make_tables(frames: Mapping[str, pd.DataFrame]) -> Tables:
    """Make the tables that kinds read of the collected tables with the names `READ_TABLES`."""
    parts = split_epochs(frames["epochs"], frames["ledger"])
    epochs, ledgers, memory, accuracy, utilisation = (RunTable(frames[name]) for name in READ_TABLES)
    return Tables(epochs, ledgers, memory, accuracy, utilisation, parts)


@dataclass(frozen=True)
class FigureKind:
    """One kind of figure."""

    name: str
    """The stem of its files."""
    title: str
    question: str
    """The question that the figure answers, which is its heading in the report."""
    make_frame: Callable[[Panel, Tables], pd.DataFrame | None]
    """Makes the tidy frame of a panel. Panels without a frame, or with an empty one, are skipped."""
    mark: Mark
    split_panels: Callable[[pd.DataFrame], list[Panel]] = split_panels
    """Splits the rows of the table into panels. The runs of one panel are compared with each other."""
    table: Literal["runs", "claims"] = "runs"
    """The table that the figure shows."""

    _: KW_ONLY
    headline: Callable[[pd.DataFrame], str] | None = None
    """Says in a few words what a frame shows, below the title of its panel."""
    best: str = ""
    """The column whose smallest values choose the curves that have colours, if there are too many for all of them."""
    caption: str
    """The text below the figure: plain sentences."""
    place_marks: Callable[[Panel, pd.DataFrame, Sequence[PrintedMark]], pd.DataFrame] | None = None
    """Places what papers print about several runs among the rows of a frame; None if the figure shows none."""
    place: int = 1000
    """The place of the figure in the report. Figures with smaller numbers come first."""

    def make_facets(self, panels: Sequence[Panel], tables: Tables, chosen: Sequence[str] = ()) -> list[Facet]:
        """Make a facet of each panel that has a frame. `chosen` are strategies that are never grey."""
        made = [(panel, self.make_frame(panel, tables)) for panel in panels]
        return [
            Facet(
                panel.title,
                add_readings(frame.reset_index(drop=True), panel),
                panel,
                choose_highlights(frame, self.best, chosen) if self.best else (),
                headline=self.headline(frame) if self.headline else "",
                printed=self.place_marks(panel, frame, tables.marks) if self.place_marks else pd.DataFrame(),
            )
            for panel, frame in made
            if frame is not None and len(frame)
        ]


def choose_highlights(frame: pd.DataFrame, best: str, chosen: Sequence[str] = ()) -> list[str]:
    """Choose the curves that have colours: none by name if all can have one, else the front, serial, and `chosen`.

    The front are the curves that are best somewhere along x, which is the number of ranks if the frame has it. Those
    that are best at the largest x fill the rest. Curves that differ only in their source count once.
    """
    known = frame.dropna(subset=[best])
    pairs = known[["curve", "source"]].drop_duplicates().itertuples(index=False)
    names = known.curve.map({curve: name_without_source(curve, source) for curve, source in pairs})
    if names.nunique() <= MOST_COLOURED:
        return []
    x = known["ranks"] if "ranks" in known else pd.Series(0, known.index)
    medians = known.groupby([x.rename("x"), names.rename("name")])[best].median()
    front = medians.groupby("x").idxmin().map(lambda pair: pair[1])
    wanted = names[known.strategy.isin(["serial", *chosen])]
    order = medians.sort_values().reset_index().sort_values("x", ascending=False, kind="stable")["name"]
    best_names = [*dict.fromkeys([*wanted, *front, *order])][: max(MOST_COLOURED, wanted.nunique())]
    return known.curve[names.isin(best_names)].unique().tolist()


def find_kinds() -> tuple[FigureKind, ...]:
    """Return the kinds of figures that the modules of `harness.report.figures.kinds` define, in the order of the
    report."""
    modules = [import_module(f"{kinds.__name__}.{module.name}") for module in iter_modules(kinds.__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, FigureKind)]
    by_name = {kind.name: kind for kind in found}  # a module may import the kind of another
    return tuple(sorted(by_name.values(), key=lambda kind: (kind.place, kind.name)))
