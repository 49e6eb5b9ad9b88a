"""Who looks like what, in every figure: strategies and groups of phases.

A strategy has a colour, a marker and a dash; none of them alone tells two apart in print, for every eye, so they go
together. Colours are petroff8, chosen for colour-blind readers. Strategies from elsewhere get theirs by a hash of the
name, with markers that no built-in one has.
"""

import hashlib
from typing import Any, Literal, NamedTuple

INK, PAPER, MUTED, FAINT, GRID = "#1f2328", "#ffffff", "#8c959f", "#f3f4f6", "#d8dee4"
NAVY = "#16407a"

BLUE, ORANGE, RED, MAGENTA = "#1845fb", "#ff5e02", "#c91f16", "#c849a9"
KHAKI, SKY, AZURE, GREY = "#adad7d", "#86c8dd", "#578dff", "#656364"
COLOURS = (BLUE, ORANGE, RED, MAGENTA, KHAKI, SKY, AZURE, GREY)

Dash = tuple[float, tuple[float, ...]]
Marker = Any  # a name or a tuple of matplotlib's, which has a closed list of literals for it


Fillstyle = Literal["full", "left", "bottom", "right", "top"]
FILLS: tuple[Fillstyle, ...] = ("full", "left", "bottom", "right", "top")
"""What of its markers is filled, for one variant of a strategy after the other."""


class Look(NamedTuple):
    """How a strategy is drawn. Its measured lines are solid; the dash is that of its predicted ones."""

    colour: str
    marker: Marker
    dash: Dash
    fill: Fillstyle = "full"


SHORT: Dash = (0, (2.5, 1.2))
LONG: Dash = (0, (6, 1.5))
DOTS: Dash = (0, (1, 1.2))
DOT_DASH: Dash = (0, (5, 1.2, 1, 1.2))
TWO_DOTS: Dash = (0, (5, 1.2, 1, 1.2, 1, 1.2))
PAIRS: Dash = (0, (2.5, 1, 2.5, 3))

KNOWN = {
    "serial": Look(GREY, "o", LONG),
    "cagnet-1d": Look(BLUE, "s", SHORT),
    "cagnet-1.5d": Look(SKY, "D", DOT_DASH),
    "cagnet-2d": Look(AZURE, "^", LONG),
    "cagnet-3d": Look(KHAKI, "v", TWO_DOTS),
    "cagnet-sa-1d": Look(MAGENTA, "H", SHORT),
    "cagnet-sa-1.5d": Look(ORANGE, "8", DOT_DASH),
    "plexus": Look(ORANGE, "P", SHORT),
    "scalegnn": Look(RED, "h", DOT_DASH),
    "graphsage": Look(BLUE, (7, 1, 0), DOTS),
    "graphsaint-node": Look(KHAKI, (7, 0, 0), TWO_DOTS),
    "g3": Look(MAGENTA, "*", PAIRS),
    "bns-gcn": Look(KHAKI, "p", DOTS),
    "pipegcn": Look(BLUE, (6, 1, 0), LONG),
    "cluster-gcn": Look(GREY, (5, 1, 0), SHORT),
    "neutronstar": Look(RED, (8, 1, 0), LONG),
    "bulk-sage": Look(SKY, "<", PAIRS),
    "bulk-ladies": Look(AZURE, ">", SHORT),
}
FOREIGN_MARKERS: tuple[Marker, ...] = ("X", "d", (4, 1, 0), (3, 1, 0))  # the last two are stars
DASHES = (SHORT, LONG, DOTS, DOT_DASH, TWO_DOTS, PAIRS)


def place_of(strategy: str) -> tuple[int, str]:
    """Where a strategy stands among others: the known ones as above, then the rest by name."""
    return (list(KNOWN).index(strategy) if strategy in KNOWN else len(KNOWN)), strategy


def look_of(strategy: str) -> Look:
    """The look of a strategy: the same in every figure, on every machine."""
    if strategy in KNOWN:
        return KNOWN[strategy]
    number = int.from_bytes(hashlib.sha256(strategy.encode()).digest()[:8])
    number, colour = divmod(number, len(COLOURS))
    number, marker = divmod(number, len(FOREIGN_MARKERS))
    return Look(COLOURS[colour], FOREIGN_MARKERS[marker], DASHES[number % len(DASHES)])


class Fill(NamedTuple):
    """How a group of phases is drawn. Local work is blue, communication orange, what lies between is grey."""

    colour: str
    hatch: str


GROUPS = {
    "SpMM": Fill(NAVY, ""),
    "GEMM": Fill("#5b8fd0", "////"),
    "elementwise": Fill("#c3d9f0", ""),
    "sampling": Fill("#5f9e6e", "||||"),
    "fetching": Fill("#5f9e6e", "oo"),
    "broadcast, gather": Fill("#d9480f", "\\\\\\\\"),
    "reduce": Fill("#f79a4f", ""),
    "broadcast of A": Fill("#d9480f", "...."),
    "exchange": Fill("#fdd5a8", "xxxx"),
    "glue, other": Fill("#b4bac2", ""),
}
"""In the order in which they are stacked."""

STEPS = {
    "distributions": Fill(NAVY, ""),
    "sampling": Fill("#5b8fd0", "////"),
    "extraction": Fill("#c3d9f0", ""),
    "distributions, sent": Fill("#d9480f", "\\\\\\\\"),
    "sampling, sent": Fill("#f79a4f", ""),
    "extraction, sent": Fill("#fdd5a8", "xxxx"),
}
"""The same of sampling."""
