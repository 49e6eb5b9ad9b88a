"""The collected tables of a folder, and the facets that each kind of figure makes of them."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from harness.report.figures.kind import FigureKind, find_kinds, read_tables
from harness.report.figures.marks import Facet
from harness.report.figures.panels import Panel, put_paper_first
from harness.results.parquet import read_claims_table, read_collected
from harness.results.schema import TABLES
from harness.results.statistics import ON_SHARED_CORES

KINDS = find_kinds()
"""All kinds of figures, in the order of the report."""


class FramedTables:
    """The collected tables of a folder, and the facets that each kind of figure makes of them.

    Figures and the report that are made in one process share them.
    """

    def __init__(self, tables: Path):
        """Read the tables."""
        self.tables = tables
        self.runs = read_collected(tables, "runs")
        self.digest = tables_digest(tables)
        self.claims = read_claims_table(tables)
        self.by_run = read_tables(tables)
        self._facets: dict[tuple[str, ...], list[Facet]] = {}

    @cached_property
    def _panels(self) -> dict[Callable[..., Any], list[Panel]]:
        return make_panels(drop_unused_columns(self.runs), self.claims, self.order_panels)

    @property
    def is_of_paper(self) -> bool:
        """Whether the folder belongs to a figure of a paper: it has a table of claims, which may be empty."""
        return (self.tables / "claims.parquet").is_file()

    def order_panels(self, panels: list[Panel]) -> list[Panel]:
        """Return the panels of runs in their order: in the folder of a paper's figure, the paper's own runs first."""
        return put_paper_first(panels) if self.is_of_paper else panels

    def make_facets(self, kind: FigureKind, chosen: Sequence[str] = ()) -> list[Facet]:
        """Make the facets of a kind, once. `chosen` are strategies that are never grey."""
        key = (kind.name, *chosen)
        if key not in self._facets:
            self._facets[key] = kind.make_facets(self._panels[kind.split_panels], self.by_run, chosen)
        return self._facets[key]

    def complete_note(self, kind: FigureKind, facets: Sequence[Facet], note: str) -> str:
        """Add the graphs that have no facet to the note of a figure, because none of their runs could be predicted."""
        shown = {facet.dataset for facet in facets}
        refused = self.runs[(self.runs.source == "predicted") & (self.runs.status == "refused")]
        names = sorted(set(refused["dataset.name"]) - shown) if kind.table == "runs" else []
        missing = f"no prediction for {', '.join(names)} (see Failures in the report)" if names else ""
        return "; ".join(filter(None, (note, missing)))


def tables_digest(tables: Path) -> str:
    """Return a digest of the contents of the collected tables."""
    digest = hashlib.sha256()
    for name in TABLES:
        digest.update((tables / f"{name}.parquet").read_bytes())
    digest.update(read_claims_table(tables).to_json().encode())
    return digest.hexdigest()[:16]


def drop_unused_columns(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of runs that figures need. Splitting runs into panels and curves copies every column.

    Texts become objects, which pandas keeps in one block and copies at once.
    """
    unused = [name for name in runs if str(name).startswith("provenance.") and name not in ON_SHARED_CORES]
    kept = runs.drop(columns=[*unused, "spec"])
    return pd.DataFrame(kept.astype(dict.fromkeys(kept.select_dtypes("str").columns, object)).copy())


def make_panels(
    runs: pd.DataFrame, claims: pd.DataFrame, order: Callable[[list[Panel]], list[Panel]]
) -> dict[Callable[..., Any], list[Panel]]:
    """Return the panels by the function that splits them. Kinds share panels and curves of the same runs.

    `order` orders panels of runs.
    """
    tables = {"runs": runs, "claims": claims}
    table_of = {kind.split_panels: kind.table for kind in KINDS}
    known: dict[tuple[Any, ...], Panel] = {}

    def share(panel: Panel) -> Panel:
        content = (panel.dataset, panel.setting, str(panel.values), panel.graphs, *panel.runs.index)
        return known.setdefault(content, panel)

    def split_table(split: Callable[..., list[Panel]], table: str) -> list[Panel]:
        panels = split(tables[table])
        return order(panels) if table == "runs" else panels

    return {split: [share(panel) for panel in split_table(split, table)] for split, table in table_of.items()}
