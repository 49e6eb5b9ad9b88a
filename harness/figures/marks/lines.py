"""Lines over numbers of ranks, epochs or seconds: the median of launches, their range as a band, and each launch."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from harness.figures.marks.facet import Facet
from harness.figures.palette import FAINT, GRID, INK, MUTED, PAPER, SOURCE_LINES, failure_marker
from harness.figures.scales import RANKS, Scale, set_tried_ticks

IDEAL: dict[str, Any] = {"linestyle": (0, (1, 1.6)), "linewidth": 0.8, "zorder": 1.4}
SHARED_CORES: dict[str, Any] = {"facecolor": FAINT, "hatch": "....", "edgecolor": GRID, "linewidth": 0}


@dataclass(frozen=True)
class Lines:
    """A line for each curve. Rows with the same x are launches of one configuration."""

    x: Scale
    y: Scale
    ideal: int = 0
    """The exponent of x in ideal scaling, which dotted lines show; 0 for none."""
    reference: str = ""
    """A column whose values are drawn as horizontal lines, such as the target accuracy."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the axes in inches."""
        return 2.6, 1.9

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw the grey curves first, then the others, then failures and references."""
        done = facet.frame.dropna(subset=[self.y.column])
        self._set_axes(axes, facet.frame, done)
        curves = done.groupby("curve", sort=False)
        for curve, rows in sorted(curves, key=lambda pair: not facet.is_grey(str(pair[0]))):
            self._draw_curve(axes, str(curve), rows, facet)
        self._draw_failures(axes, facet)
        if self.reference:
            for value in facet.frame[self.reference].dropna().unique():
                axes.axhline(value, color=MUTED, label=self.reference.replace("_", " "), **IDEAL)

    def _set_axes(self, axes: Axes, frame: pd.DataFrame, done: pd.DataFrame) -> None:
        self.y.set_ticks(axes.yaxis, done[self.y.column].tolist())
        if self.x.column == RANKS.column:
            set_tried_ticks(axes.xaxis, sorted(map(int, frame[self.x.column].unique())))
            axes.set_xlabel(self.x.label)
        else:
            self.x.set_ticks(axes.xaxis, done[self.x.column].tolist())
        axes.grid(axis="y")
        if "shared_cores" in frame and frame.shared_cores.any():
            fewest = frame[self.x.column][frame.shared_cores].min()
            axes.axvspan(
                fewest / 2**0.3, axes.get_xlim()[1], label="ranks shared cores", zorder=0.3, **SHARED_CORES
            )

    def _draw_curve(self, axes: Axes, curve: str, rows: pd.DataFrame, facet: Facet) -> None:
        look, source = facet.looks[curve], str(rows.source.iloc[0])
        grey = facet.is_grey(curve)
        line = SOURCE_LINES[source]
        sns.lineplot(
            rows,
            x=self.x.column,
            y=self.y.column,
            estimator="median",
            errorbar=None if grey else ("pi", 100),
            err_kws={"linewidth": 0, "alpha": 0.18},
            color=GRID if grey else look.colour,
            linestyle=line.dashes,
            linewidth=0.8 if grey else 1.2,
            marker=None if grey and line.dashes != "none" else look.marker,
            fillstyle=look.fill,
            markerfacecolor=PAPER if line.hollow else None,
            markeredgecolor=look.colour if line.hollow else PAPER,
            label="all others" if grey else curve,
            zorder=1.2 if grey else 2.5,
            legend=False,
            ax=axes,
        )
        several = rows.duplicated(self.x.column, keep=False)
        if not grey and several.any():
            dots = rows[several]
            axes.scatter(
                dots[self.x.column], dots[self.y.column], s=2, color=look.colour, linewidth=0, zorder=3
            )
        if self.ideal and source == "measured" and not grey:
            self._draw_ideal(axes, rows, look.colour)

    def _draw_ideal(self, axes: Axes, rows: pd.DataFrame, colour: str) -> None:
        """Draw ideal scaling from the first point of a curve, as far as it lies within the axes."""
        x = rows[self.x.column]
        if x.nunique() < 2 or ("shared_cores" in rows and rows.shared_cores.any()):
            return
        first = float(rows[self.y.column][x == x.min()].median())
        ends = [float(x.min()), float(x.max())]
        axes.autoscale(enable=False)
        axes.plot(
            ends,
            [first * (end / ends[0]) ** self.ideal for end in ends],
            color=colour,
            label="ideal",
            **IDEAL,
        )

    def _draw_failures(self, axes: Axes, facet: Facet) -> None:
        """Draw each failure above the axes, at its number of ranks."""
        failed = facet.frame[facet.frame.status != "ok"].drop_duplicates(["curve", self.x.column, "status"])
        for place, (curve, rows) in enumerate(failed.groupby("curve", sort=False)):
            for status, at in rows.groupby("status"):
                look = facet.looks[str(curve)]
                places = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none"}
                height = [1.04 + 0.08 * place] * len(at)
                axes.plot(
                    at[self.x.column],
                    height,
                    marker=look.marker,
                    color=look.colour,
                    fillstyle="none",
                    **places,
                )
                axes.plot(
                    at[self.x.column],
                    height,
                    marker=failure_marker(str(status)),
                    color=INK,
                    label=f"did not finish: {status}",
                    **places,
                )

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return Vega-Lite layers: the line of medians, and a point for each launch."""
        x: dict[str, Any] = self.x.encode()
        if self.x.column == RANKS.column:
            tried = sorted(map(int, facet.frame[self.x.column].unique()))
            x |= {"scale": {"type": "log", "base": 2}, "axis": {"values": tried}}
        y = self.y.encode()
        median = [
            {
                "aggregate": [{"op": "median", "field": self.y.column, "as": "middle"}],
                "groupby": ["curve", "strategy", "source", self.x.column],
            }
        ]
        line = {
            "transform": median,
            "mark": {"type": "line", "point": False, "strokeWidth": 1.6},
            "encoding": {
                "x": x,
                "y": y | {"field": "middle"},
                "strokeDash": {"field": "source", "type": "nominal"},
            },
        }
        points = {"mark": {"type": "point", "filled": True, "size": 36}, "encoding": {"x": x, "y": y}}
        return {"layer": [line, points]}
