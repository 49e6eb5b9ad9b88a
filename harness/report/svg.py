"""A drawn figure as part of a page: its own names, the page's ink and paper, nothing that links elsewhere."""

import re
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from harness.errors import UserError
from harness.figures.palette import BLUE, FAINT, GRID, INK, MUTED, NAVY, PAPER
from harness.figures.save import EMPTY

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
