"""The table of the graphs: their sizes, as they were trained on."""

import pandas as pd

from harness.figures.units import three_digits
from harness.report.table import Heading, Results

SIZES = {
    "graph.vertices": "vertices",
    "graph.nonzeros": "nonzeros",
    "degree": "nonzeros a vertex",
    "graph.features": "features",
    "graph.classes": "classes",
    "graph.trained": "vertices trained on",
}


def graphs(runs: pd.DataFrame) -> Results | None:
    """A row each of those that a run has counted; None where none has."""
    counted = runs.dropna(subset=["graph.vertices"])
    counted = counted.assign(degree=counted["graph.nonzeros"] / counted["graph.vertices"])
    rows = [
        [str(name), *(_told(sizes[column]) for column in SIZES)]
        for name, group in counted.groupby("dataset.name")
        for _, sizes in group.drop_duplicates([*SIZES]).iterrows()
    ]
    headings = [Heading("graph", number=False), *(Heading(text, number=True) for text in SIZES.values())]
    return Results("Graphs", headings, rows) if rows else None


def _told(size: float) -> str:
    return three_digits(size) if size % 1 else f"{size:,.0f}"
