"""The looks of strategies and of groups of phases, in every figure.

A strategy has a colour, a marker and a dash together, because none of the three alone separates all strategies in print
and for every eye. Colours are petroff8, chosen for colour-blind readers. A hash of the name decides the look of any
other strategy, with markers that no built-in strategy has.
"""

import hashlib
from typing import Any, Literal, NamedTuple

INK, PAPER, MUTED, FAINT, GRID = "#1f2328", "#ffffff", "#8c959f", "#f3f4f6", "#d8dee4"
NAVY = "#16407a"

BLUE, ORANGE, RED, MAGENTA = "#1845fb", "#ff5e02", "#c91f16", "#c849a9"
KHAKI, SKY, AZURE, GREY = "#adad7d", "#86c8dd", "#578dff", "#656364"
COLOURS = (BLUE, ORANGE, RED, MAGENTA, KHAKI, SKY, AZURE, GREY)

Dash = tuple[float, tuple[float, ...]]
Marker = Any  # a name or a tuple; matplotlib types it as a closed list of literals


Fillstyle = Literal["full", "left", "bottom", "right", "top"]
FILLS: tuple[Fillstyle, ...] = ("full", "left", "bottom", "right", "top")
"""The filled side of markers, for one variant of a strategy after the other."""


class StrategyLook(NamedTuple):
    """The look of a strategy. Measured lines are solid; the dash is for predicted lines."""

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
    "serial": StrategyLook(GREY, "o", LONG),
    "cagnet-1d": StrategyLook(BLUE, "s", SHORT),
    "cagnet-1.5d": StrategyLook(SKY, "D", DOT_DASH),
    "cagnet-2d": StrategyLook(AZURE, "^", LONG),
    "cagnet-3d": StrategyLook(KHAKI, "v", TWO_DOTS),
    "cagnet-sa-1d": StrategyLook(MAGENTA, "H", SHORT),
    "cagnet-sa-1.5d": StrategyLook(ORANGE, "8", DOT_DASH),
    "plexus": StrategyLook(ORANGE, "P", SHORT),
    "scalegnn": StrategyLook(RED, "h", DOT_DASH),
    "graphsage": StrategyLook(BLUE, (7, 1, 0), DOTS),
    "graphsaint-node": StrategyLook(KHAKI, (7, 0, 0), TWO_DOTS),
    "g3": StrategyLook(MAGENTA, "*", PAIRS),
    "bns-gcn": StrategyLook(KHAKI, "p", DOTS),
    "pipegcn": StrategyLook(BLUE, (6, 1, 0), LONG),
    "cluster-gcn": StrategyLook(GREY, (5, 1, 0), SHORT),
    "neutronstar": StrategyLook(RED, (8, 1, 0), LONG),
    "bulk-sage": StrategyLook(SKY, "<", PAIRS),
    "bulk-ladies": StrategyLook(AZURE, ">", SHORT),
}
FOREIGN_MARKERS: tuple[Marker, ...] = ("X", "d", (4, 1, 0), (3, 1, 0))  # the last two are stars
DASHES = (SHORT, LONG, DOTS, DOT_DASH, TWO_DOTS, PAIRS)


def place_of(strategy: str) -> tuple[int, str]:
    """The place of a strategy among others: known strategies in the order above, then all others by name."""
    return (list(KNOWN).index(strategy) if strategy in KNOWN else len(KNOWN)), strategy


def look_of(strategy: str) -> StrategyLook:
    """The look of a strategy: the same in every figure, on every machine."""
    if strategy in KNOWN:
        return KNOWN[strategy]
    number = int.from_bytes(hashlib.sha256(strategy.encode()).digest()[:8])
    number, colour = divmod(number, len(COLOURS))
    number, marker = divmod(number, len(FOREIGN_MARKERS))
    return StrategyLook(COLOURS[colour], FOREIGN_MARKERS[marker], DASHES[number % len(DASHES)])


class Fill(NamedTuple):
    """The look of a group of phases. Local work is blue, communication orange, time between the two grey."""

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
"""The groups of a breakdown, in the order of stacking."""

STEPS = {
    "distributions": Fill(NAVY, ""),
    "sampling": Fill("#5b8fd0", "////"),
    "extraction": Fill("#c3d9f0", ""),
    "distributions, sent": Fill("#d9480f", "\\\\\\\\"),
    "sampling, sent": Fill("#f79a4f", ""),
    "extraction, sent": Fill("#fdd5a8", "xxxx"),
}
"""The steps of sampling, in the order of stacking."""
