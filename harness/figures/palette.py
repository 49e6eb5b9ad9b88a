"""The looks of strategies and of groups of phases, in every figure.

A built-in strategy has a colour and a marker that no other strategy has together. A family of strategies shares a hue;
its members differ in lightness, so that they stay apart in grey. Two strategies with one marker have colours that stay
apart for colour-blind readers too (tests/figures/test_palette.py computes the distances). Any other strategy has a look
from a pool of its own, chosen by a hash of its name.
"""

import hashlib
from collections.abc import Iterable
from colorsys import hls_to_rgb, rgb_to_hls
from typing import Any, Literal, NamedTuple

INK, PAPER, MUTED, FAINT, GRID = "#1f2328", "#ffffff", "#6e7781", "#f3f4f6", "#d8dee4"
NAVY = "#16407a"

BLUE, ORANGE, RED, MAGENTA = "#1845fb", "#ff5e02", "#c91f16", "#c849a9"
KHAKI, SKY, AZURE, GREY = "#adad7d", "#86c8dd", "#578dff", "#656364"
COLOURS = (BLUE, ORANGE, RED, MAGENTA, KHAKI, SKY, AZURE, GREY)
"""Petroff's eight colours, for what is no strategy: verdicts, dimensions, layouts."""

Dash = tuple[float, tuple[float, ...]]
Marker = Any  # a name or a tuple; matplotlib types it as a closed list of literals


Fillstyle = Literal["full", "left", "bottom", "right", "top"]
FILLS: tuple[Fillstyle, ...] = ("full", "left", "bottom", "right", "top")
"""The filled side of markers, for one variant of a strategy after the other."""


class StrategyLook(NamedTuple):
    """The look of a strategy; the dash of a line tells its source."""

    colour: str
    marker: Marker
    fill: Fillstyle = "full"


DASHED: Dash = (0, (3.5, 1.5))
DOT_DASH: Dash = (0, (5, 1.2, 1, 1.2))

FAMILIES: dict[str, dict[str, StrategyLook]] = {
    "grey": {
        "serial": StrategyLook("#45474a", "o"),
    },
    # blue: the schemes of CAGNET, and the 1D one with skipped broadcasts
    "blue": {
        "cagnet-1d": StrategyLook("#004998", "s"),
        "cagnet-1.5d": StrategyLook("#047dc0", "D"),
        "cagnet-2d": StrategyLook("#3e59bf", "<"),
        "cagnet-3d": StrategyLook("#4795e0", "X"),
        "cagnet-sa-1d": StrategyLook("#68b3e6", "*"),
        "cagnet-sa-1.5d": StrategyLook("#93cbeb", "h"),
        "sancus": StrategyLook("#092d71", "p"),
    },
    # orange and red: layouts that rotate over three or four axes, or change between rows and columns
    "orange": {
        "plexus": StrategyLook("#f66015", "o"),
        "scalegnn": StrategyLook("#ce251a", "X"),
        "rdm": StrategyLook("#ffb067", "D"),
        "compose": StrategyLook("#8c2f0a", "P"),
    },
    # green: partitions with halos or copies
    "green": {
        "bns-gcn": StrategyLook("#47a868", "*"),
        "pipegcn": StrategyLook("#126736", "p"),
        "neutronstar": StrategyLook("#8ac975", "^"),
        "g3": StrategyLook("#008951", "<"),
        "adaqp": StrategyLook("#0d4a20", "v"),
        "distgnn": StrategyLook("#abe198", ">"),
    },
    # violet: samplers with the whole graph on every rank
    "violet": {
        "graphsage": StrategyLook("#9450b1", "*"),
        "graphsaint-node": StrategyLook("#b782cc", ">"),
        "pyg": StrategyLook("#d2b0de", "P"),
        "cluster-gcn": StrategyLook("#673389", "h"),
    },
    # brown and yellow: samplers with the graph or the features in parts
    "brown": {
        "distdgl": StrategyLook("#966617", "^"),
        "salient": StrategyLook("#bd8e22", "v"),
        "massivegnn": StrategyLook("#774b15", "*"),
        "quiver": StrategyLook("#e1b72c", "<"),
    },
    # pink: sampling in bulk
    "pink": {
        "bulk-sage": StrategyLook("#eb3e86", ">"),
        "bulk-ladies": StrategyLook("#fc8fb2", "o"),
    },
}
"""The looks of all built-in strategies, by family."""

KNOWN = {name: look for family in FAMILIES.values() for name, look in family.items()}

GRAPH_MARKERS: tuple[Marker, ...] = ("o", "s", "D", "^", "v", "<", ">", "h", "p")
"""The markers of graphs, one more than there are colours: the same pair returns after 72 graphs."""
FREE_COLOURS = ("#00585e", "#008c92", "#53b9bd", "#98236b", "#5f7a00")
"""Teal, purple and olive: no built-in strategy has them."""
FREE_MARKERS: tuple[Marker, ...] = ("d", "8", "H", (4, 1, 0), (3, 1, 0))  # the last two are stars


def place_of(strategy: str) -> tuple[int, str]:
    """The place of a strategy among others: known strategies in the order above, then all others by name."""
    return (list(KNOWN).index(strategy) if strategy in KNOWN else len(KNOWN)), strategy


def look_of(strategy: str, others: Iterable[str] = ()) -> StrategyLook:
    """The look of a strategy: the same in every figure, on every machine.

    `others` are strategies of the same tables. If the hash of a name gives a strategy that is not built in the look of
    another such strategy, the later one by name has the next free look.
    """
    if strategy in KNOWN:
        return KNOWN[strategy]
    foreign = sorted({name for name in (*others, strategy) if name not in KNOWN})
    pool = len(FREE_COLOURS) * len(FREE_MARKERS)
    taken: dict[str, int] = {}
    for name in foreign:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % pool
        if len(taken) < pool:
            number = next(n % pool for n in range(number, number + pool) if n % pool not in taken.values())
        taken[name] = number
    colour, marker = taken[strategy] % len(FREE_COLOURS), taken[strategy] // len(FREE_COLOURS)
    return StrategyLook(FREE_COLOURS[colour], FREE_MARKERS[marker])


SIGNS: dict[str, Any] = {"oom": "x", "timeout": "+", "diverged": (3, 2, 0), "refused": "_"}
"""The sign over the marker of a run that did not finish; any other status has a star of five lines."""


def sign_of(status: str) -> Any:
    """The sign of a status in figures."""
    return SIGNS.get(status, (5, 2, 0))


def look_of_number(number: int) -> StrategyLook:
    """The look of what is no strategy, by its number: a graph, or the dimensions of a grid. Neighbours stay apart."""
    return StrategyLook(COLOURS[number % len(COLOURS)], GRAPH_MARKERS[number % len(GRAPH_MARKERS)])


class Fill(NamedTuple):
    """The look of a group of phases. Local work is blue, sampling green, communication of warm hues, the rest grey."""

    colour: str
    hatch: str


GROUPS = {
    "SpMM": Fill(NAVY, ""),
    "GEMM": Fill("#4f8fd6", "////"),
    "elementwise": Fill("#b9d6f2", ""),
    "sampling": Fill("#2f7d4f", ""),
    "fetching": Fill("#93cf9c", "||||"),
    "broadcast, gather": Fill("#e8710a", ""),
    "reduce": Fill("#a01c2c", "\\\\\\\\"),
    "broadcast of A": Fill("#7d4aa5", "////"),
    "exchange": Fill("#f4c430", ""),
    "glue, other": Fill("#8b939d", ""),
}
"""The groups of a breakdown, in the order of stacking."""

STEPS = {
    "distributions": Fill(NAVY, ""),
    "sampling": Fill("#4f8fd6", "////"),
    "extraction": Fill("#b9d6f2", ""),
    "distributions, sent": Fill("#a01c2c", "\\\\\\\\"),
    "sampling, sent": Fill("#e8710a", ""),
    "extraction, sent": Fill("#f4c430", ""),
}
"""The steps of sampling, in the order of stacking."""


def on_dark(colour: str) -> str:
    """The colour of the same hue for a dark page: dark colours are lifted, light ones are kept."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, light, saturation = rgb_to_hls(red, green, blue)
    raised = hls_to_rgb(hue, max(light, 0.42 + 0.35 * light), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in raised)


def coloured() -> dict[str, str]:
    """Every colour of a strategy or of a group, with its name for a style sheet."""
    looks = {f"strategy-{name.replace('.', '-')}": look.colour for name, look in KNOWN.items()}
    free = {f"free-{number}": colour for number, colour in enumerate(FREE_COLOURS)}
    fills = {fill.colour for fill in (*GROUPS.values(), *STEPS.values())}
    groups = {f"group-{number}": colour for number, colour in enumerate(sorted(fills))}
    return looks | free | groups
