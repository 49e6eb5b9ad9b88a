"""Bars: a row for each curve, sorted by length, stacked of parts in one order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from harness.report.figures.axis_scales import Scale
from harness.report.figures.marks.facet import Facet
from harness.report.figures.marks.printed import describe_in_rows, draw_in_rows, list_values
from harness.report.figures.marks.rows import (
    Rows,
    arrange_rows,
    describe_notes,
    describe_ticks,
    draw_rows,
    draw_ticks,
    encode_rows,
)
from harness.report.figures.palette import PAPER, Fill

TOTAL = "total"
"""The column with the length of a whole bar."""
HEIGHT = 0.125
"""The height of a bar in inches."""


@dataclass(frozen=True)
class Bars:
    """A bar for each value of the column `label`, in the order of the frame. The column `part` names its parts.

    The column `note` is at its end.
    """

    x: Scale
    fills: Mapping[str, Fill]
    """The fill of each part, in stacking order."""
    reference: Scale | None = None
    """What a tick in each row shows, such as the ideal time. Its column may be absent."""
    letters: int = 24
    """The most letters of a line of a label."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the rows in inches."""
        rows = self._arrange(facet)
        return rows.width, rows.height

    def _arrange(self, facet: Facet) -> Rows:
        return arrange_rows(facet.frame, self.letters)

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw the bars from top to bottom."""
        frame, rows = facet.frame, self._arrange(facet)
        places = [*rows.places.values()]
        parts = frame.pivot_table(self.x.column, "label", "part", "sum", sort=False)
        parts = parts.reindex(index=list(rows.places), columns=list(self.fills)).fillna(0.0)
        ends = parts.cumsum(axis="columns")
        for number, (part, fill) in enumerate(self.fills.items()):
            if parts[part].any():
                axes.barh(
                    places,
                    parts[part],
                    HEIGHT,
                    ends[part] - parts[part],
                    color=fill.colour,
                    hatch=fill.hatch,
                    edgecolor=PAPER,
                    linewidth=0.3,
                    zorder=1 + 0.01 * number,  # the order of the legend
                    label=part,
                )
        whole = axes.barh(places, ends.iloc[:, -1], color="none")
        axes.bar_label(whole, rows.notes, padding=3, fontsize=7)
        if self.reference and self.reference.column in frame:
            draw_ticks(axes, frame, rows, self.reference)
        draw_in_rows(axes, facet, rows.places, TOTAL)
        draw_rows(axes, rows, notes=False)
        values = [0.0, *ends.iloc[:, -1], *list_values(facet, TOTAL)]
        self.x.set_ticks(axes.xaxis, values)
        axes.set(xlim=(0, 1.02 * float(max(values)) or 1.0), ylabel="")

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return Vega-Lite layers: stacked bars, their notes and ticks."""
        x, y = self.x.encode(stack="zero"), encode_rows(facet.frame)
        x["scale"] = {"type": "linear", "zero": True}
        found = [part for part in self.fills if (facet.frame.part == part).any()]
        number = f"indexof({found}, datum.part)"
        legend = {"orient": "top", "symbolType": "square"}
        colours = {"domain": found, "range": [self.fills[part].colour for part in found]}
        layers: list[dict[str, Any]] = [
            {
                "transform": [{"calculate": number, "as": "order"}],
                "mark": {"type": "bar"},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {
                        "field": "part",
                        "type": "nominal",
                        "title": None,
                        "scale": colours,
                        "legend": legend,
                    },
                    "order": {"field": "order", "type": "quantitative"},
                },
            },
            describe_notes(facet.frame),
        ]
        if self.reference:
            layers += describe_ticks(facet.frame, self.x.encode(field=self.reference.column), size=14)
        layers += describe_in_rows(facet, self.x.encode(field=TOTAL), y)
        return {"layer": layers}
