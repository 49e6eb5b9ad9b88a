"""Lines over numbers of ranks, epochs or seconds: the median of launches, their range as a band, and each launch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from harness.report.figures.axis_scales import Scale, limit_tried, set_tried_ticks
from harness.report.figures.marks.facet import Facet
from harness.report.figures.marks.printed import (
    describe_behind_lines,
    describe_over_ranks,
    draw_over_ranks,
    list_values,
)
from harness.report.figures.palette import (
    DOTTED,
    FAINT,
    GRID,
    HOLLOW_SOURCES,
    INK,
    MUTED,
    PAPER,
    SOURCE_LINES,
    describe_dashes,
    failure_marker,
)

WIDTH, HEIGHT = 2.6, 1.9  # inches of axes
FAILURE_HEIGHT = 0.13  # inches of a row of failures
MARKER_GAP = 0.07  # inches between markers that would coincide
SMALL_MARKERS = ("*", "<", ">", "^", "v", "d", (4, 1, 0), (3, 1, 0))
"""Markers that look smaller than others of the same size."""
MAX_MARKERS = 7  # on a line with many points
MAX_IDEAL = 3  # curves with an ideal line of their own
IDEAL_RANGE = 2  # ideal lines may extend the axis by this factor
SHARED_CORES: dict[str, Any] = {"facecolor": FAINT, "hatch": "....", "edgecolor": GRID, "linewidth": 0}


class IdealLine(NamedTuple):
    """Ideal scaling from the first measured point of a curve."""

    curve: str
    """The label of the curve; empty if one line is drawn for all curves."""
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Lines:
    """A line for each curve. Rows with the same x are launches of one configuration.

    A logarithmic x axis has its ticks at the values that occur, which are numbers of ranks or sizes.
    """

    x: Scale
    y: Scale
    ideal: int = 0
    """The exponent of x in ideal scaling, which dotted lines show; 0 for none."""
    reference: str = ""
    """A column whose values are drawn as horizontal lines, such as the target accuracy."""
    each_run: bool = False
    """Whether every run is a line, because runs have no x in common."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the axes in inches."""
        return WIDTH, HEIGHT + FAILURE_HEIGHT * len(list(self._group_failures(facet)))

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw the grey curves first, then the others, then references and failures."""
        done = self._select_done(facet)
        ideal = self.find_ideal_lines(facet) if self.ideal else []
        limits = self._set_axes(axes, facet, done, ideal)
        names, shifts = facet.names, self._find_shifts(facet, done, limits)
        curves = [(str(curve), rows) for curve, rows in done.groupby("curve", sort=False)]
        for place, (curve, rows) in enumerate(sorted(curves, key=lambda pair: not facet.is_grey(pair[0]))):
            moved = rows.assign(**{self.x.column: rows[self.x.column] * shifts.get(curve, 1.0)})
            self._draw_curve(axes, curve, moved, facet, names[curve], place)
        _add_signs_of_sources(axes, done.source.unique().tolist())
        for value in self._find_references(facet):
            axes.axhline(value, color=MUTED, linewidth=0.8, zorder=1.3, label=self.reference)
        for line in ideal:
            colour = facet.looks[line.curve].colour if line.curve else MUTED
            axes.plot([x * shifts.get(line.curve, 1.0) for x in line.x], line.y, color=colour, **DOTTED)
        if ideal:
            axes.plot([], [], color=MUTED, label="ideal", **DOTTED)
        if begin := self._find_shared_cores(facet):
            axes.axvspan(begin, axes.get_xlim()[1], label="ranks shared cores", zorder=0.3, **SHARED_CORES)
        draw_over_ranks(axes, facet, self.x.column, self.y.column, shifts)
        self._draw_failures(axes, facet)

    def _select_done(self, facet: Facet) -> pd.DataFrame:
        frame = facet.frame
        return frame[frame.status == "ok"].dropna(subset=[self.y.column])

    def _find_references(self, facet: Facet) -> list[float]:
        return sorted(facet.frame[self.reference].dropna().unique()) if self.reference else []

    def find_limits(self, facet: Facet) -> tuple[float, float]:
        """Return the limits of the y axis, without the rows of failures and ideal lines."""
        shown = self._select_done(facet)
        values = shown[self.y.column].dropna().astype(float).tolist()
        return self.y.find_limits(
            [*values, *list_values(facet, self.y.column), *self._find_references(facet)]
        )

    def _set_axes(
        self, axes: Axes, facet: Facet, done: pd.DataFrame, ideal: list[IdealLine]
    ) -> tuple[float, float]:
        """Set the limits and ticks of both axes. Return the limits of y, without the rows of failures."""
        limits = self.find_limits(facet)
        ends = [y for line in ideal for y in line.y]
        low, high = limits = min(limits[0], *ends, math.inf), max(limits[1], *ends, -math.inf)
        self.y.set_ticks(axes.yaxis, limits)
        _, height = self.measure(facet)
        free = HEIGHT / height
        top = low * (high / low) ** (1 / free) if self.y.log else low + (high - low) / free
        axes.set_ylim(low, top)
        axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
        x = facet.frame[self.x.column]
        if self.x.log:
            set_tried_ticks(axes.xaxis, sorted(map(int, x.unique())))
            axes.set_xlabel(self.x.label)
        else:
            self.x.set_ticks(axes.xaxis, done[self.x.column].tolist())
        axes.grid(axis="y")
        return limits

    def _find_shared_cores(self, facet: Facet) -> float:
        """Return an x halfway between the fewest ranks that shared cores and the next smaller number; 0 for none."""
        frame = facet.frame
        if "shared_cores" not in frame or not frame.shared_cores.any():
            return 0.0
        x = frame[self.x.column]
        fewest = float(x[frame.shared_cores].min())
        return math.sqrt(fewest * max(x[x < fewest], default=fewest / 2))

    def _find_shifts(self, facet: Facet, done: pd.DataFrame, limits: tuple[float, float]) -> dict[str, float]:
        """Return a factor of x for each curve whose markers would hide those of another curve."""
        if not self.x.log or self.each_run:
            return {}
        shown = done[~done.curve.map(facet.is_grey)]
        medians = shown.groupby([self.x.column, "curve"], sort=False)[self.y.column].median()
        scaled = medians.map(math.log) if self.y.log else medians
        span = math.log(limits[1] / limits[0]) if self.y.log else limits[1] - limits[0]
        inches = (scaled / span * HEIGHT).rename("inches").reset_index().sort_values("inches")
        near = {
            curve
            for _, group in inches.groupby(self.x.column)
            for (lower, y), (upper, z) in pairwise(zip(group.curve, group.inches, strict=True))
            for curve in (lower, upper)
            if z - y < MARKER_GAP
        }
        moved = [curve for curve in shown.curve.unique() if curve in near]
        tried = sorted(map(float, facet.frame[self.x.column].unique()))
        octaves = math.log2(tried[-1] / tried[0]) + 0.8
        pitch = min((math.log2(b / a) for a, b in pairwise(tried)), default=octaves)
        step = min(MARKER_GAP * octaves / WIDTH, pitch / 3 / max(len(moved), 1))
        return {str(curve): 2 ** (step * (place - (len(moved) - 1) / 2)) for place, curve in enumerate(moved)}

    def _draw_curve(
        self, axes: Axes, curve: str, rows: pd.DataFrame, facet: Facet, name: str, place: int
    ) -> None:
        import seaborn as sns  # takes a second, and the report does not draw

        look, grey = facet.looks[curve], facet.is_grey(curve)
        line = SOURCE_LINES[str(rows.source.iloc[0])]
        launches = rows.groupby(self.x.column, as_index=False)[self.y.column]
        # seaborn would take medians and ranges of logarithms on logarithmic axes.
        shown = rows if self.each_run else launches.median()
        every = max(1, rows[self.x.column].nunique() // MAX_MARKERS)
        sns.lineplot(
            shown,
            x=self.x.column,
            y=self.y.column,
            estimator=None,
            units="run_id" if self.each_run else None,
            color=GRID if grey else look.colour,
            linestyle=line.linestyle,
            linewidth=0.8 if grey else 1.2,
            marker=None if grey and line.dashes is not None else look.marker,
            markevery=(place % every, every),
            fillstyle=look.fill,
            markerfacecolor=PAPER if line.hollow else GRID if grey else look.colour,
            markerfacecoloralt=PAPER,
            markeredgecolor=PAPER
            if look.fill == "full" and not line.hollow
            else GRID
            if grey
            else look.colour,
            markersize=5.5 if look.marker in SMALL_MARKERS else 4.5,
            markeredgewidth=0.9 if line.hollow else 0.5,
            label="all others" if grey else name,
            zorder=1.2 if grey else 2.5,
            legend=False,
            ax=axes,
        )
        several = rows[rows.duplicated(self.x.column, keep=False)]
        if grey or self.each_run or several.empty:
            return
        band = shown[self.x.column], launches.min()[self.y.column], launches.max()[self.y.column]
        axes.fill_between(*band, color=look.colour, alpha=0.18, linewidth=0, zorder=1.5)
        if every <= 2:
            dots = several[self.x.column], several[self.y.column]
            axes.scatter(*dots, s=2, color=look.colour, linewidth=0, zorder=3)

    def find_ideal_lines(self, facet: Facet) -> list[IdealLine]:
        """Return ideal scaling from the first point of measured curves, as far as it lies near the values.

        If there are too many curves, the fastest at the smallest x has the only line.
        """
        done = self._select_done(facet)
        low, high = done[self.y.column].min() / IDEAL_RANGE, done[self.y.column].max() * IDEAL_RANGE
        lines = []
        for curve, rows in done[done.source == "measured"].groupby("curve", sort=False):
            x = rows[self.x.column]
            if facet.is_grey(str(curve)) or x.nunique() < 2 or rows.get("shared_cores", pd.Series()).any():
                continue
            start, first = float(x.min()), float(rows[self.y.column][x == x.min()].median())
            reach = ((low if self.ideal < 0 else high) / first) ** (1 / self.ideal)
            end = min(float(x.max()), start * reach)
            lines.append(IdealLine(str(curve), [start, end], [first, first * (end / start) ** self.ideal]))
        if len({line.curve for line in lines}) > MAX_IDEAL:
            return [min(lines, key=lambda line: (line.x[0], line.y[0] * -self.ideal))._replace(curve="")]
        return lines

    def _group_failures(self, facet: Facet) -> Iterator[pd.DataFrame]:
        """Yield the failures of each row above the lines: of each coloured curve, or of a status of grey curves."""
        failed = facet.frame[facet.frame.status != "ok"]
        owner = failed.curve.where(~failed.curve.map(facet.is_grey).astype(bool), failed.status)
        for _, rows in failed.groupby(owner, sort=False):
            yield rows.drop_duplicates([self.x.column, "status"])

    def _draw_failures(self, axes: Axes, facet: Facet) -> None:
        """Draw each failure in a strip above the lines, at its x: the marker of its curve, crossed out."""
        groups = list(self._group_failures(facet))
        row = FAILURE_HEIGHT / self.measure(facet)[1]
        if groups:
            strip = row * len(groups)
            axes.add_patch(
                Rectangle((0, 1 - strip), 1, strip, transform=axes.transAxes, facecolor=FAINT, zorder=0.6)
            )
        for place, group in enumerate(groups):
            where: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "linestyle": "none"}
            for curve, x, status in group[["curve", self.x.column, "status"]].itertuples(index=False):
                look = facet.looks[curve]
                at = [x], [1 - row * (place + 0.5)]
                colour = GRID if facet.is_grey(curve) else look.colour
                axes.plot(*at, marker=look.marker, markerfacecolor=PAPER, color=colour, **where, zorder=2)
                label = "refused" if status == "refused" else f"did not finish: {status}"
                axes.plot(*at, marker=failure_marker(status), color=INK, label=label, **where, zorder=2.1)

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return Vega-Lite layers: references, the line of medians with its range, and a point for each launch."""
        x, y = self.x.encode(title=self.x.label), self.y.encode()
        done = self._select_done(facet)
        if self.x.log:
            tried = sorted(map(int, facet.frame[self.x.column].unique()))
            x["scale"] = {"type": "log", "base": 2, "domain": [*limit_tried(tried)], "nice": False}
            x["axis"] = {"values": tried, "labelExpr": "format(datum.value, ',')"}
        y["scale"] |= {"domain": [*self.find_limits(facet)]}
        layers = [*self._describe_background(facet, x, y)]
        one_line = {"curve", "strategy", "source", *(["run_id"] if self.each_run else [])}
        middle = {"aggregate": [{"op": "median", "field": self.y.column, "as": "median"}]}
        range_of = [{"op": op, "field": self.y.column, "as": op} for op in ("min", "max")]
        group = {"groupby": [*sorted(one_line), self.x.column]}
        ok = {"filter": f"datum.status === 'ok' && isValid(datum.{self.y.column})"}
        sources = [source for source in SOURCE_LINES if source in set(done.source)]
        lined = [source for source in sources if SOURCE_LINES[source].dashes is not None]
        dashes = {"domain": lined, "range": [describe_dashes(SOURCE_LINES[each].dashes) for each in lined]}
        if not self.each_run:
            layers.append(
                {
                    "transform": [ok, {"aggregate": range_of, **group}],
                    "mark": {"type": "area", "opacity": 0.18},
                    "encoding": {"x": x, "y": y | {"field": "min"}, "y2": {"field": "max"}},
                }
            )
        line = {
            "transform": [ok, {"filter": "datum.source !== 'published'"}, {**middle, **group}],
            "mark": {"type": "line", "strokeWidth": 1.6, "clip": True},
            "encoding": {
                "x": x,
                "y": y | {"field": "median"},
                "strokeDash": {
                    "field": "source",
                    "scale": dashes,
                    "legend": {"title": None} if len(lined) > 1 else None,
                },
                "detail": [{"field": name} for name in sorted(one_line)],
            },
        }
        hollow = f"indexof({HOLLOW_SOURCES}, datum.source) >= 0"
        points = [
            {
                "transform": [ok, {"filter": test}],
                "mark": {"type": "point", "filled": filled, "size": 40, "clip": True},
                "encoding": {"x": x, "y": y},
            }
            for test, filled in ((f"!({hollow})", True), (hollow, False))
            if filled or set(HOLLOW_SOURCES) & set(sources)
        ]
        failures = {
            "transform": [{"filter": "datum.status !== 'ok'"}],
            "mark": {"type": "text", "text": "×", "fontSize": 15, "y": 6},
            "encoding": {"x": x},
        }
        behind, over = describe_behind_lines(facet, x, y), describe_over_ranks(facet, x, y)
        failed = [failures] if self._has_failures(facet) else []
        return {"layer": [*layers, *behind, line, *points, *over, *failed]}

    def _has_failures(self, facet: Facet) -> bool:
        return bool((facet.frame.status != "ok").any())

    def _describe_background(
        self, facet: Facet, x: dict[str, Any], y: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yield the layers behind the curves, which have their own data and colours."""
        if begin := self._find_shared_cores(facet):
            yield {
                "data": {"values": [{"begin": begin, "text": "ranks shared cores"}]},
                "mark": {"type": "rect", "opacity": 0.6, "clip": True},
                "encoding": {
                    "x": x | {"field": "begin"},
                    "x2": {"datum": x["scale"]["domain"][1]},
                    "color": {"value": GRID},
                    "tooltip": {"field": "text"},
                },
            }
        if references := self._find_references(facet):
            yield {
                "data": {"values": [{"value": value, "text": self.reference} for value in references]},
                "mark": {"type": "rule"},
                "encoding": {
                    "y": y | {"field": "value"},
                    "color": {"value": MUTED},
                    "tooltip": {"field": "text"},
                },
            }
        for line in self.find_ideal_lines(facet) if self.ideal else ():
            yield {
                "data": {
                    "values": [
                        {"x": a, "y": b, "curve": line.curve} for a, b in zip(line.x, line.y, strict=True)
                    ]
                },
                "mark": {"type": "line", "strokeDash": [1, 3], "strokeWidth": 1, "clip": True},
                "encoding": {
                    "x": x | {"field": "x"},
                    "y": y | {"field": "y"},
                    "color": {"value": MUTED},
                    "tooltip": {"value": "ideal scaling"},
                },
            }


def _add_signs_of_sources(axes: Axes, sources: list[str]) -> None:
    """Add a grey line for each source to the legend, unless everything was measured."""
    for source, line in SOURCE_LINES.items():
        if source in sources and sources != ["measured"]:
            axes.plot(
                [],
                [],
                color=MUTED,
                linestyle=line.linestyle,
                marker="o",
                markersize=3.5,
                markerfacecolor=PAPER if line.hollow else MUTED,
                label=line.name,
                zorder=1.5,
            )
