"""The colours, markers and fills of all figures.

Each built-in strategy has a unique pair of colour and marker. The strategies of a family share a hue and differ in
lightness, so that they can be distinguished in grey. Strategies with the same marker have colours that colour-blind
readers can distinguish too (tests/figures/test_palette.py computes the distances). No marker is a cross, which would
read as a failure. Plugins take looks from a separate pool, chosen by a hash of the name.
"""

import hashlib
from collections.abc import Iterable, Sequence
from colorsys import hls_to_rgb, rgb_to_hls
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.markers import MarkerStyle
from numpy.typing import NDArray

INK, PAPER, MUTED, FAINT, GRID = "#1f2328", "#ffffff", "#6e7781", "#f3f4f6", "#d8dee4"
NAVY = "#16407a"

BLUE, ORANGE, RED, MAGENTA = "#1845fb", "#ff5e02", "#c91f16", "#c849a9"
KHAKI, SKY, AZURE, GREY = "#adad7d", "#86c8dd", "#578dff", "#656364"
COLOURS = (BLUE, ORANGE, RED, MAGENTA, KHAKI, SKY, AZURE, GREY)
"""Petroff's eight colours, for everything that is not a strategy: verdicts, dimensions, layouts."""

Marker = Any  # a name or a tuple; matplotlib types it as a closed list of literals


Fillstyle = Literal["full", "left", "bottom", "right", "top"]
FILLS: tuple[Fillstyle, ...] = ("full", "left", "bottom", "right", "top")
"""The filled side of the marker, for successive variants of a strategy."""


class CurveLook(NamedTuple):
    """The colour and marker of a curve, and which side of the marker is filled. Dashes show the source of a curve."""

    colour: str
    marker: Marker
    fill: Fillstyle = "full"


def draw_dashes(dashes: Sequence[float]) -> Any:
    """Return dashes as the line style of matplotlib."""
    return (0, tuple(dashes)) if dashes else "-"


def describe_dashes(dashes: Sequence[float] | None) -> list[float]:
    """Return dashes as Vega-Lite takes them, in pixels."""
    return [1.5 * length for length in dashes] if dashes else [1, 0]


class SourceLine(NamedTuple):
    """How the line of a source of values looks: its dashes, and whether its markers are hollow."""

    name: str
    """The words of the legend."""
    dashes: tuple[float, ...] | None = ()
    """The lengths of dashes and gaps in turn; empty for a whole line, None for points without a line."""
    hollow: bool = False

    @property
    def linestyle(self) -> Any:
        """The style of the line in matplotlib."""
        return "none" if self.dashes is None else draw_dashes(self.dashes)


SOURCE_LINES = {
    "measured": SourceLine("measured"),
    "external": SourceLine("another program", hollow=True),
    "emulated": SourceLine("emulated", (5, 1.2, 1, 1.2)),
    "predicted": SourceLine("predicted", (3.5, 1.5)),
    "published": SourceLine("printed in a paper", None, hollow=True),
}
"""The lines of all sources. Printed values are points without a line."""
HOLLOW_SOURCES = [name for name, line in SOURCE_LINES.items() if line.hollow]
"""The sources whose markers are hollow."""

FAMILIES: dict[str, dict[str, CurveLook]] = {
    "grey": {
        "serial": CurveLook("#45474a", "o"),
    },
    # blue: CAGNET's schemes, and the 1D scheme with skipped broadcasts
    "blue": {
        "cagnet-1d": CurveLook("#004998", "s"),
        "cagnet-1.5d": CurveLook("#047dc0", "D"),
        "cagnet-2d": CurveLook("#3e59bf", "<"),
        "cagnet-3d": CurveLook("#4795e0", "^"),
        "cagnet-sa-1d": CurveLook("#68b3e6", "*"),
        "cagnet-sa-1.5d": CurveLook("#93cbeb", "h"),
        "sancus": CurveLook("#092d71", "p"),
    },
    # orange and red: layouts that rotate over three or four axes, or alternate between rows and columns
    "orange": {
        "plexus": CurveLook("#f66015", "o"),
        "scalegnn": CurveLook("#ce251a", "s"),
        "rdm": CurveLook("#ffb067", "D"),
        "compose": CurveLook("#8c2f0a", ">"),
    },
    # green: partitions with halos or copies
    "green": {
        "bns-gcn": CurveLook("#47a868", "*"),
        "pipegcn": CurveLook("#126736", "p"),
        "neutronstar": CurveLook("#8ac975", "^"),
        "g3": CurveLook("#008951", "<"),
        "adaqp": CurveLook("#0d4a20", "v"),
        "distgnn": CurveLook("#abe198", ">"),
    },
    # violet: samplers with the whole graph on every rank
    "violet": {
        "graphsage": CurveLook("#9450b1", "*"),
        "graphsaint-node": CurveLook("#b782cc", ">"),
        "pyg": CurveLook("#d2b0de", "v"),
        "cluster-gcn": CurveLook("#673389", "h"),
    },
    # brown and yellow: samplers with a partitioned graph or partitioned features
    "brown": {
        "distdgl": CurveLook("#966617", "^"),
        "salient": CurveLook("#bd8e22", "v"),
        "massivegnn": CurveLook("#774b15", "*"),
        "quiver": CurveLook("#e1b72c", "<"),
    },
    # pink: sampling in bulk
    "pink": {
        "bulk-sage": CurveLook("#eb3e86", ">"),
        "bulk-ladies": CurveLook("#fc8fb2", "o"),
    },
}
"""The looks of all built-in strategies, by family."""

BUILT_IN = {name: look for family in FAMILIES.values() for name, look in family.items()}

GRAPH_MARKERS: tuple[Marker, ...] = ("o", "s", "D", "^", "v", "<", ">", "h", "p")
"""The markers of graphs: one more than there are colours, so that pairs repeat only after 72 graphs."""
FREE_COLOURS = ("#00585e", "#008c92", "#53b9bd", "#98236b", "#5f7a00")
"""Teal, purple and olive, which no built-in strategy has."""
FREE_MARKERS: tuple[Marker, ...] = ("d", "8", "H", (4, 1, 0), (3, 1, 0))  # the last two are stars


def strategy_sort_key(strategy: str) -> tuple[int, str]:
    """Return a sort key: built-in strategies in the order above, then all others by name."""
    return (list(BUILT_IN).index(strategy) if strategy in BUILT_IN else len(BUILT_IN)), strategy


def look_of(strategy: str, others: Iterable[str] = ()) -> CurveLook:
    """Return the look of a strategy, which is the same in every figure and on every machine.

    `others` are the strategies of the same tables. If the names of two plugins hash to the same look, the later one by
    name takes the next free look.
    """
    if strategy in BUILT_IN:
        return BUILT_IN[strategy]
    plugins = sorted({name for name in (*others, strategy) if name not in BUILT_IN})
    pool = len(FREE_COLOURS) * len(FREE_MARKERS)
    taken: dict[str, int] = {}
    for name in plugins:
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % pool
        if len(taken) < pool:
            number = next(n % pool for n in range(number, number + pool) if n % pool not in taken.values())
        taken[name] = number
    colour, marker = taken[strategy] % len(FREE_COLOURS), taken[strategy] // len(FREE_COLOURS)
    return CurveLook(FREE_COLOURS[colour], FREE_MARKERS[marker])


def outline_marker(marker: Marker) -> str:
    """Return the outline of a marker as an SVG path within a square from -1 to 1, which Vega-Lite takes as a shape."""
    if marker == "o":
        return "M-.8,0A.8,.8 0 1,0 .8,0A.8,.8 0 1,0 -.8,0Z"
    style = MarkerStyle(marker)
    polygons = style.get_path().transformed(style.get_transform()).to_polygons(closed_only=False)
    lines = [np.asarray(polygon, dtype=float) for polygon in polygons]
    largest = max(float(np.abs(line).max()) for line in lines)
    return "".join(_format_outline(line / largest) for line in lines)


def _format_outline(line: NDArray[np.float64]) -> str:
    """Format the points of a line as an SVG path, which is closed if the line is."""
    is_closed = bool((line[0] == line[-1]).all())
    points = ((line[:-1] if is_closed else line) * (1, -1)).round(3) + 0.0  # y points down; there is no -0
    return f"M{'L'.join(f'{x:.3g},{y:.3g}' for x, y in points.tolist())}{'Z' if is_closed else ''}"


DOTTED: dict[str, Any] = {"linestyle": (0, (1, 1.6)), "linewidth": 0.8, "zorder": 1.4}
"""The style of lines that are not data: ideal scaling, and a factor of two."""


def style_marker(look: CurveLook, *, hollow: bool) -> dict[str, Any]:
    """Return the properties of a single marker in matplotlib."""
    return {
        "linestyle": "none",
        "marker": look.marker,
        "fillstyle": look.fill,
        "markersize": 5.5,
        "markeredgewidth": 0.8 if hollow else 0.4,
        "color": look.colour,
        "markerfacecolor": PAPER if hollow else None,
        "markeredgecolor": look.colour if hollow else PAPER,
    }


FAILURE_MARKERS: dict[str, Any] = {"oom": "x", "timeout": "+", "diverged": (3, 2, 0), "refused": "_"}
"""The mark over the marker of a run that did not finish. Statuses without an entry have a star of five lines."""


def failure_marker(status: str) -> Any:
    """Return the mark of a run that ended with this status."""
    return FAILURE_MARKERS.get(status, (5, 2, 0))


def numbered_look(number: int) -> CurveLook:
    """Return the look with this number, for graphs, variants or grid dimensions. Consecutive numbers look different."""
    return CurveLook(COLOURS[number % len(COLOURS)], GRAPH_MARKERS[number % len(GRAPH_MARKERS)])


class Fill(NamedTuple):
    """The colour and hatch of a bar segment. Local work is blue, sampling green, communication warm, the rest grey."""

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
"""The groups of operations in a breakdown, in stacking order."""

STEPS = {
    "distributions": Fill(NAVY, ""),
    "sampling": Fill("#4f8fd6", "////"),
    "extraction": Fill("#b9d6f2", ""),
    "distributions, sent": Fill("#a01c2c", "\\\\\\\\"),
    "sampling, sent": Fill("#e8710a", ""),
    "extraction, sent": Fill("#f4c430", ""),
}
"""The steps of sampling, in stacking order."""


def lighten_for_dark(colour: str) -> str:
    """Return a colour of the same hue for a dark page: dark colours become lighter, light ones stay."""
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, light, saturation = rgb_to_hls(red, green, blue)
    raised = hls_to_rgb(hue, max(light, 0.42 + 0.35 * light), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in raised)


def named_colours() -> dict[str, str]:
    """Return the colours of all strategies and groups by their names in the style sheet."""
    looks = {f"strategy-{name.replace('.', '-')}": look.colour for name, look in BUILT_IN.items()}
    free = {f"free-{number}": colour for number, colour in enumerate(FREE_COLOURS)}
    fills = {fill.colour for fill in (*GROUPS.values(), *STEPS.values())}
    groups = {f"group-{number}": colour for number, colour in enumerate(sorted(fills))}
    return looks | free | groups
