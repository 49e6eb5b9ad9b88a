"""Strips: a row for each curve, filled up to a share that changes over time."""

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from harness.base.formatting import format_count
from harness.report.figures.axis_scales import Scale
from harness.report.figures.marks.facet import Facet
from harness.report.figures.palette import FAINT, MUTED
from harness.report.figures.wrapping import wrap_text

STRIP_HEIGHT = 0.8  # of the row
ROW_HEIGHT = 0.26  # inches


@dataclass(frozen=True)
class Strips:
    """A strip for each curve, from top to bottom in the order of the frame. A full strip is a share of 100 %."""

    x: Scale
    """The beginning of a window."""
    y: Scale
    """The share of a window."""
    length: str
    """The column with the length of a window, in the unit of x."""
    summary: str
    """The column with the share of the whole curve, which is written on the right."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the axes in inches."""
        return 2.6, ROW_HEIGHT * facet.frame.curve.nunique()

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw the strips with the look of each curve."""
        labels, last = [], float((facet.frame[self.x.column] + facet.frame[self.length]).max())
        frame = facet.frame.sort_values(self.x.column).set_index("curve")
        for row, curve in enumerate(facet.frame.curve.unique()):
            windows, low = frame.loc[[curve]], row + STRIP_HEIGHT / 2
            edges = [*windows[self.x.column], windows[self.x.column].iloc[-1] + windows[self.length].iloc[-1]]
            shares = [*windows[self.y.column], windows[self.y.column].iloc[-1]]
            colour = facet.looks[str(curve)].colour
            axes.fill_between([0, last], low - STRIP_HEIGHT, low, color=FAINT, linewidth=0, zorder=0.5)
            tops = [low - STRIP_HEIGHT * share for share in shares]
            axes.fill_between(edges, low, tops, step="post", color=colour, linewidth=0)
            axes.plot([0, last], [low, low], color=MUTED, linewidth=0.4)
            labels.append(_label_row(curve, windows.ranks.iloc[0]))
            summary = self.y.format_value(float(windows[self.summary].iloc[0]))
            axes.text(
                1.02,
                row,
                summary,
                transform=axes.get_yaxis_transform(),
                va="center",
                ha="left",
                clip_on=False,
            )
        axes.set_yticks(range(len(labels)), [wrap_text(label, 34) for label in labels])
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        self.x.set_ticks(axes.xaxis, [0.0, last])
        axes.set_xlim(0, last)

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return Vega-Lite layers: an area of steps for each curve, and the share of the whole curve on the right."""
        first = facet.frame.drop_duplicates("curve")
        curves, labels = first.curve.tolist(), [*map(_label_row, first.curve, first.ranks)]
        last = float((facet.frame[self.x.column] + facet.frame[self.length]).max())
        y = {
            "type": "quantitative",
            "title": None,
            "scale": {"domain": [-0.6, len(curves) - 0.4], "reverse": True, "nice": False, "zero": False},
            "axis": {"values": [*range(len(curves))], "labelExpr": f"{labels!r}[datum.value]", "grid": False},
        }
        row = {"calculate": f"indexof({curves!r}, datum.curve)", "as": "row"}
        x = self.x.encode(scale={"domain": [0, last], "nice": False})
        strip = {
            "transform": [
                row,
                {"calculate": f"datum.row + {STRIP_HEIGHT / 2}", "as": "low"},
                {"calculate": f"datum.low - {STRIP_HEIGHT} * datum.{self.y.column}", "as": "top"},
            ],
            "mark": {"type": "area", "interpolate": "step-after"},
            "encoding": {
                "x": x,
                "y": y | {"field": "top"},
                "y2": {"field": "low"},
                "detail": {"field": "curve"},
            },
        }
        of_curve = {"aggregate": [{"op": "max", "field": self.summary, "as": "mean"}], "groupby": ["curve"]}
        mean = {
            "transform": [
                of_curve,
                row,
                {"calculate": "format(100 * datum.mean, '.0f') + ' %'", "as": "text"},
            ],
            "mark": {"type": "text", "align": "left", "dx": 4},
            "encoding": {
                "x": {"value": "width"},
                "y": y | {"field": "row"},
                "text": {"field": "text"},
                "color": {"value": MUTED},
            },
        }
        return {"layer": [strip, mean]}


def _label_row(curve: str, ranks: int) -> str:
    return f"{curve}, {format_count(int(ranks), 'rank')}"
