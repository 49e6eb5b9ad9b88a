"""A drawn figure as part of a page: its own names, the page's ink and paper, nothing that links elsewhere."""

import re
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from harness.errors import UserError
from harness.figures.drawing import EMPTY
from harness.figures.layout import three_digits
from harness.figures.palette import BLUE, FAINT, GRID, INK, MUTED, NAVY, PAPER
from harness.report.table import Heading, Results

THEME = {
    INK: "var(--ink)",
    PAPER: "var(--paper)",
    MUTED: "var(--muted)",
    FAINT: "var(--faint)",
    GRID: "var(--rule)",
    BLUE: "var(--blue)",
    NAVY: "var(--navy)",
}
"""Neutral colours of a figure follow the page, light or dark. Those that mean something stay, but for two blues that
would sink into a dark page and are lighter there."""


class Picture(NamedTuple):
    """An inline figure and what it is of."""

    dataset: str
    svg: Markup


def inlined(path: Path, dataset: str, digest: str) -> Picture | None:
    """The SVG of a file, refused if it was drawn from other tables than those with this digest; None if it is empty."""
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(
            f"The figure {path} cannot be read: {error.strerror}. `harness figures` draws it."
        ) from None
    if f"tables {digest}" not in text:
        raise UserError(f"{path} was drawn from other tables than these. `harness figures` draws it anew.")
    if f"{EMPTY}: tables" in text:
        return None
    text = re.sub(r"^.*?(?=<svg\b)|<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = _own_names(text, path.stem)
    for colour, variable in THEME.items():
        text = text.replace(colour, variable)
    return Picture(dataset, Markup(text.strip()))


def _own_names(text: str, name: str) -> str:
    """Prefixes every id and every mention of one: two figures on a page may use the same."""
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)


# The table of the graphs: their sizes, as they were trained on.

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
