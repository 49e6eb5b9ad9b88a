"""Draws what papers print about several runs: in lines over ranks, and in rows along the axis of times or gains."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib import markers
from matplotlib.axes import Axes

from harness.report.figures.marks.facet import Facet
from harness.report.figures.palette import INK, MUTED, PAPER, CurveLook, describe_dashes, draw_dashes

CARETS: Mapping[tuple[str, str], Any] = {
    ("y", "at least"): markers.CARETUPBASE,
    ("y", "at most"): markers.CARETDOWNBASE,
    ("x", "at least"): markers.CARETRIGHTBASE,
    ("x", "at most"): markers.CARETLEFTBASE,
}
"""The markers of bounds: a caret on the bound that points to where the paper's value lies, by axis."""
TRIANGLES = {
    ("y", "at least"): "triangle-up",
    ("y", "at most"): "triangle-down",
    ("x", "at least"): "triangle-right",
    ("x", "at most"): "triangle-left",
}
"""The same markers by their names in Vega-Lite."""
DASHES = {"crossing": (4, 2), "end of axis": (1, 1.6)}
"""The dashes of the lines of two kinds of marks."""
LINES: Mapping[str, dict[str, Any]] = {
    kind: {"linestyle": draw_dashes(DASHES[kind]), "linewidth": width, "color": INK, "zorder": 1.1}
    for kind, width in (("crossing", 0.7), ("end of axis", 1.0))
}
HOLLOW: dict[str, Any] = {"markerfacecolor": PAPER, "markeredgewidth": 0.9, "linestyle": "none"}
RING: dict[str, Any] = {**HOLLOW, "marker": "o", "markersize": 9.0, "markerfacecolor": "none"}
LINE_WIDTH = 0.6
NAMES = {
    "seconds": "printed value",
    "end of scaling": "scales up to here in a paper",
    "crossing": "curves cross here in a paper",
    "end of axis": "end of the paper's axis",
}


def select_marks(facet: Facet, *kinds: str) -> pd.DataFrame:
    """Return the marks of some kinds."""
    return facet.printed[facet.printed.mark.isin(kinds)] if len(facet.printed) else facet.printed


def list_values(facet: Facet, column: str) -> list[float]:
    """Return the values of all marks on an axis."""
    names = [name for name in (column, "from_value") if name in facet.printed]
    return [float(value) for name in names for value in facet.printed[name].dropna()]


def list_lines(facet: Facet, x: str, y: str) -> list[dict[str, Any]]:
    """List the lines from our values to printed ratios, and between the bounds of a curve at another x."""
    lines: list[dict[str, Any]] = []
    ranges: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in select_marks(facet, "ratio").to_dict("records"):
        end = {
            "curve": row["curve"],
            "strategy": row["strategy"],
            "source": row["source"],
            x: row[x],
            y: row[y],
        }
        if row["bound"] and row["from_ranks"] != row[x]:
            ranges.setdefault((row["curve"], row[x]), []).append(end)
        else:
            lines.append(end | {name: row[name] for name in ("from_curve", "from_ranks", "from_value")})
    for (curve, ranks), ends in ranges.items():
        low, *_, high = sorted(ends, key=lambda end: float(end[y])) * 2
        lines.append(high | {"from_curve": curve, "from_ranks": ranks, "from_value": low[y]})
    return lines


def draw_over_ranks(axes: Axes, facet: Facet, x: str, y: str, shifts: Mapping[str, float]) -> None:
    """Draw the marks among lines, which are shifted sideways by a factor of x for each curve."""

    def shift(curve: str, value: Any) -> float:
        return float(value) * shifts.get(curve, 1.0)

    for row in select_marks(facet, "crossing").to_dict("records"):
        axes.axvline(float(row[x]), **LINES["crossing"])
    for row in select_marks(facet, "end of scaling").to_dict("records"):
        colour = _choose_colour(facet, row["curve"])
        axes.plot([shift(row["curve"], row[x])], [row["from_value"]], color=colour, zorder=2.4, **RING)
    for line in list_lines(facet, x, y):
        ends = [shift(line["from_curve"], line["from_ranks"]), shift(line["curve"], line[x])]
        colour = _choose_colour(facet, line["curve"])
        axes.plot(ends, [line["from_value"], line[y]], color=colour, linewidth=LINE_WIDTH, zorder=2.2)
    for row in select_marks(facet, "ratio", "seconds").to_dict("records"):
        look = facet.looks[row["curve"]]
        colour = _choose_colour(facet, row["curve"])
        marker = {**HOLLOW, **_choose_marker(row["bound"], "y", look), "color": colour, "zorder": 2.7}
        axes.plot([shift(row["curve"], row[x])], [float(row[y])], **marker)
    add_legend(axes, facet, "y")


def draw_in_rows(axes: Axes, facet: Facet, places: Mapping[str, float], x: str) -> None:
    """Draw the marks among rows: a hollow marker or a caret in the row that a number describes."""
    for row in select_marks(facet, "end of axis").to_dict("records"):
        axes.axvline(float(row[x]), **LINES["end of axis"])
    for row in select_marks(facet, "ratio", "seconds").to_dict("records"):
        marker = {**HOLLOW, **_choose_marker(row["bound"], "x", CurveLook(INK, "o")), "color": INK}
        axes.plot([row[x]], [places[row["label"]]], zorder=3.2, **marker)
    add_legend(axes, facet, "x")


def _choose_colour(facet: Facet, curve: str) -> str:
    return MUTED if facet.is_grey(curve) else facet.looks[curve].colour


def _choose_marker(bound: str, axis: str, look: CurveLook) -> dict[str, Any]:
    if bound:
        return {"marker": CARETS[axis, bound], "markersize": 5.5}
    return {"marker": look.marker, "markersize": 4.5}


def add_legend(axes: Axes, facet: Facet, axis: str) -> None:
    """Add an entry to the legend for each kind of mark that the facet shows."""
    for row in _list_entries(facet):
        kind, bound = row.mark, row.bound
        if kind in LINES:
            axes.plot([], [], label=name_mark(row), **LINES[kind])
        elif kind == "end of scaling":
            axes.plot([], [], color=MUTED, label=name_mark(row), **RING)
        else:
            line = "-" if axis == "y" and kind == "ratio" else "none"
            marker = _choose_marker(bound, axis, CurveLook(MUTED, "o"))
            look = {**HOLLOW, **marker, "color": MUTED, "linestyle": line, "linewidth": LINE_WIDTH}
            axes.plot([], [], label=name_mark(row), **look)


def _list_entries(facet: Facet) -> list[Any]:
    """List a mark for each entry of a legend."""
    marks = facet.printed
    return list({name_mark(row): row for row in marks.itertuples()}.values()) if len(marks) else []


def name_mark(row: Any) -> str:
    """Return the name of a mark in a legend."""
    if row.bound:
        return "printed bound"
    if row.mark == "ratio":
        return "printed ratio, from our value" if "from_value" in row._fields else "printed ratio"
    return NAMES[row.mark]


def describe_over_ranks(facet: Facet, x: dict[str, Any], y: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield Vega-Lite layers of the marks over lines."""
    if lines := list_lines(facet, x["field"], y["field"]):
        ends = {"x": x, "y": y, "x2": {"field": "from_ranks"}, "y2": {"field": "from_value"}}
        yield {"data": {"values": lines}, "mark": {"type": "rule", "strokeWidth": 0.8}, "encoding": ends}
    yield from _describe_ends(facet, x, y, "y")


def describe_behind_lines(facet: Facet, x: dict[str, Any], y: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield Vega-Lite layers of the marks behind lines: rules, and rings of the page's colour."""
    yield from _describe_rules(facet, "crossing", x)
    if len(rings := select_marks(facet, "end of scaling")):
        at = {"x": x, "y": y | {"field": "from_value"}, "shape": {"value": "circle"}}
        yield _layer(rings, {"type": "point", "size": 220}, at)


def describe_in_rows(facet: Facet, x: dict[str, Any], y: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield Vega-Lite layers of the marks among rows."""
    yield from _describe_rules(facet, "end of axis", x)
    yield from _describe_ends(facet, x, y, "x")


def _describe_rules(facet: Facet, kind: str, x: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a layer of vertical lines."""
    if len(marks := select_marks(facet, kind)):
        yield _layer(
            marks,
            {"type": "rule", "strokeDash": describe_dashes(DASHES[kind])},
            {"x": x, "color": {"value": INK}},
        )


def _describe_ends(facet: Facet, x: dict[str, Any], y: dict[str, Any], axis: str) -> Iterator[dict[str, Any]]:
    """Yield a layer of hollow markers, and one of carets for each kind of bound."""
    marks = select_marks(facet, "ratio", "seconds")
    for bound in sorted(set(marks.bound)) if len(marks) else ():
        shape = {"shape": {"value": TRIANGLES[axis, bound]}} if bound else {}
        hollow = {"type": "point", "filled": False, "size": 40}
        yield _layer(marks[marks.bound == bound], hollow, {"x": x, "y": y, **shape})


def _layer(marks: pd.DataFrame, mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    """Return a layer with the rows of marks as its data, and a text for readers."""
    fields = [channel["field"] for channel in encoding.values() if "field" in channel]
    values = marks.astype(object).where(marks.notna(), None)
    rows = [
        {name: getattr(row, name) for name in ("curve", "strategy", "source", *fields)}
        | {"text": f"{name_mark(row)}: {row.printed} ({row.place}, {row.claim})"}
        for row in values.itertuples()
    ]
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding | {"tooltip": {"field": "text"}}}
