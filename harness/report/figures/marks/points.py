"""Points: one value over another, with the front of the best, or with the line where both are equal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.report.figures.axis_scales import Scale
from harness.report.figures.marks.facet import MOST_COLOURED, Facet
from harness.report.figures.palette import DOTTED, GRID, INK, MUTED, SOURCE_LINES, style_marker
from harness.report.figures.wrapping import LETTER, LINE, elide_word

FACTOR = 2.0
"""The factor of the dotted lines next to the line of equality."""
PLOT_WIDTH, PLOT_HEIGHT = 2.1, 1.9
LABEL_LETTERS = 40


@dataclass(frozen=True)
class Points:
    """A point for each row of the frame.

    With a `front`, points of a curve are launches, and curves in colour are labelled on the right. Otherwise they are
    different configurations, and a legend names the curves.
    """

    x: Scale
    y: Scale
    front: str = ""
    """A column that is true for curves to which no other one is superior in x and y. A line joins them in steps."""
    equality: bool = False
    """Whether x and y are the same quantity. Lines then show where they are equal, and a factor of two."""
    assess: Callable[[pd.DataFrame], str] | None = None
    """Returns a text about the whole frame."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the axes, with the labels on the right, in inches."""
        labels = self._labels(facet)
        letters = max(map(len, labels.values()), default=0)
        return PLOT_WIDTH + LETTER * letters, max(PLOT_HEIGHT, LINE * (len(labels) + 1))

    def _labels(self, facet: Facet) -> dict[str, str]:
        """Return the labels on the right of the plot, by curve: all curves, or those of the front if they are many."""
        if not self.front:
            return {}
        curves = facet.frame.drop_duplicates("curve")
        wanted = curves
        if len(curves) > MOST_COLOURED:
            front = curves.curve[curves[self.front]]
            wanted = curves[curves.curve.isin([*dict.fromkeys([*front, *facet.highlights])][:MOST_COLOURED])]
        return {
            curve: elide_word(label, LABEL_LETTERS)
            for curve, label in zip(wanted.curve, wanted.label, strict=True)
        }

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw the grey points first, then the lines and the others."""
        import seaborn as sns  # takes a second, and the report does not draw

        frame, x, y = facet.frame, self.x.column, self.y.column
        self._set_axes(axes, frame)
        axes.grid()
        labels = self._labels(facet)
        grey = ~frame.curve.isin(list(labels)) if self.front else frame.curve.map(facet.is_grey)
        if grey.any():
            sns.scatterplot(
                frame[grey],
                x=x,
                y=y,
                color=GRID,
                s=10,
                edgecolor=MUTED,
                linewidth=0.3,
                label="all others",
                ax=axes,
                legend=False,
                zorder=1.6,
            )
        if self.front:
            steps = self._front_of(frame)
            axes.step(steps[x], steps[y], where="post", color=INK, linewidth=1.0, label="front", zorder=1.7)
        if self.equality:
            self._draw_equality(axes)
        for curve, rows in frame[~grey].groupby("curve", sort=False):
            self._draw_curve(axes, str(curve), rows, facet)
        if labels:
            self._draw_labels(axes, facet, labels)
        if self.assess:
            axes.text(0.97, 0.04, self.assess(frame), transform=axes.transAxes, ha="right", va="bottom")

    def _front_of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the medians of the curves on the front, in the order of x."""
        points = frame[frame[self.front]]
        return points.groupby("curve")[[self.x.column, self.y.column]].median().sort_values(self.x.column)

    def _set_axes(self, axes: Axes, frame: pd.DataFrame) -> None:
        """Leave room around the points. Both axes are the same if x and y are the same quantity."""
        limits = [(frame[scale.column].min(), frame[scale.column].max()) for scale in (self.x, self.y)]
        if self.equality:
            limits = [(min(low for low, _ in limits), max(high for _, high in limits))] * 2
        for (low, high), scale, axis in zip(limits, (self.x, self.y), (axes.xaxis, axes.yaxis), strict=True):
            room = max(high / low, 2.0) ** 0.08 * max(1.0, 2 * low / high) ** 0.5
            scale.set_ticks(axis, [low / room, high * room])
            (axes.set_xlim if axis is axes.xaxis else axes.set_ylim)(low / room, high * room)

    def _draw_equality(self, axes: Axes) -> None:
        ends = axes.get_xlim()
        axes.plot(ends, ends, color=MUTED, linewidth=0.8, label="equal", zorder=1.4)
        for factor in (FACTOR, 1 / FACTOR):
            axes.plot(
                ends, [factor * end for end in ends], label=f"a factor of {FACTOR:g}", color=MUTED, **DOTTED
            )

    def _draw_curve(self, axes: Axes, curve: str, rows: pd.DataFrame, facet: Facet) -> None:
        """Draw the points of a curve; with a front, their median, and small dots for launches."""
        look, source = facet.looks[curve], rows.source.iloc[0]
        hollow = SOURCE_LINES[source].hollow or (self.equality and source != "measured")
        shown = rows[[self.x.column, self.y.column]]
        if self.front:
            if len(shown) > 1:
                x, y = (shown[scale.column] for scale in (self.x, self.y))
                axes.scatter(x, y, s=3, color=look.colour, linewidth=0, zorder=2.2)
            shown = shown.median().to_frame().T
        axes.plot(
            *shown.to_numpy(dtype=float).T,
            label=None if self.front else curve,
            zorder=2.5,
            **style_marker(look, hollow=hollow),
        )

    def _draw_labels(self, axes: Axes, facet: Facet, labels: dict[str, str]) -> None:
        """Write the labels on the right, in the order of y, each with a thin line to its point."""
        medians = facet.frame.groupby("curve")[[self.x.column, self.y.column]].median().loc[list(labels)]
        to_axes = axes.transData + axes.transAxes.inverted()
        medians["height"] = to_axes.transform(medians.to_numpy())[:, 1]
        medians = medians.sort_values("height")
        heights = spread_apart(medians["height"].tolist(), LINE / self.measure(facet)[1])
        for (curve, point), height in zip(medians.iterrows(), heights, strict=True):
            axes.annotate(
                labels[str(curve)],
                (point[self.x.column], point[self.y.column]),
                (1.05, height),
                textcoords="axes fraction",
                va="center",
                color=INK,
                arrowprops={
                    "arrowstyle": "-",
                    "color": MUTED,
                    "linewidth": 0.4,
                    "shrinkA": 1,
                    "shrinkB": 3,
                },
            )

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return Vega-Lite layers: the front or the line of equality, and a point for each row."""
        frame, x, y = facet.frame, self.x.encode(), self.y.encode()
        layers: list[dict[str, Any]] = []
        if self.front:
            medians = [{"op": "median", "field": name, "as": name} for name in (self.x.column, self.y.column)]
            layers.append(
                {
                    "transform": [
                        {"filter": f"datum.{self.front}"},
                        {"aggregate": medians, "groupby": ["curve"]},
                    ],
                    "mark": {"type": "line", "interpolate": "step-after", "color": MUTED, "strokeWidth": 1},
                    "encoding": {"x": x, "y": y, "order": {"field": self.x.column}},
                }
            )
        if self.equality:
            values = frame[[self.x.column, self.y.column]]
            ends = [float(values.to_numpy().min()), float(values.to_numpy().max())]
            for factor, dash in ((1.0, [1, 0]), (FACTOR, [2, 3]), (1 / FACTOR, [2, 3])):
                points = [{self.x.column: end, self.y.column: factor * end} for end in ends]
                layers.append(
                    {
                        "data": {"values": points},
                        "mark": {"type": "line", "color": MUTED, "strokeWidth": 1, "strokeDash": dash},
                        "encoding": {"x": x, "y": y},
                    }
                )
        point = {"mark": {"type": "point", "filled": True, "size": 50}, "encoding": {"x": x, "y": y}}
        return {"layer": [*layers, point]}


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move sorted heights between 0 and 1 until they are `gap` apart, and half of it from both ends."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap if placed else gap / 2))
    for number in reversed(range(len(placed))):
        placed[number] = min(placed[number], 1 - gap * (len(placed) - number - 0.5))
    return placed
