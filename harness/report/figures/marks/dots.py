"""Dots: a row for each curve, sorted by value, with its launches, their median, and their range or interval."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
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
    widen_scale,
)
from harness.report.figures.palette import MUTED, SOURCE_LINES, CurveLook, draw_dashes, style_marker


@dataclass(frozen=True)
class Dots:
    """A row for each value of the column `label`, in the order of the frame. The column `note` is on its right.

    Rows of the frame with the same label are launches. The columns `low` and `high`, if the frame has them, are the
    ends of an interval of one value; otherwise a line joins the lowest and the highest launch.
    """

    x: Scale
    reference: Scale | None = None
    """What a tick in each row shows, such as a lower bound. It has the unit of x."""
    line: float | None = None
    """The value of a vertical line: 1 if x is a ratio."""
    verdicts: Mapping[str, CurveLook] | None = None
    """The look of each value of the column `verdict`, for rows that are not curves. They have entries in a legend."""
    letters: int = 30
    """The most letters of a line of a label."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the rows in inches."""
        rows = self._arrange(facet)
        return rows.width, rows.height

    def _arrange(self, facet: Facet) -> Rows:
        return arrange_rows(facet.frame, self.letters)

    def _values(self, frame: pd.DataFrame) -> list[float]:
        """Return all values on the x axis: of rows, intervals and ticks."""
        named = (self.x.column, self.reference.column if self.reference else "", "low", "high")
        return [float(value) for name in named if name in frame for value in frame[name].dropna()]

    def _all_values(self, facet: Facet) -> list[float]:
        return [*self._values(facet.frame), *list_values(facet, self.x.column)]

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw the rows from top to bottom."""
        import seaborn as sns  # takes a second, and the report does not draw

        frame, rows = facet.frame, self._arrange(facet)
        draw_rows(axes, rows)
        known = [name for name in (self.x.column, "high") if name in frame]
        done = frame.dropna(subset=known, how="all")  # a range has an interval, and no value
        values = [*self._all_values(facet), *([] if self.line is None else [self.line])]
        scale = widen_scale(self.x, values)
        scale.set_ticks(axes.xaxis, values)
        places = done.label.map(rows.places)
        launches = done[done.duplicated("label", keep=False)]
        if len(launches):
            sns.scatterplot(
                x=launches[scale.column],
                y=places[launches.index],
                color=MUTED,
                s=5,
                linewidth=0,
                alpha=0.8,
                zorder=2.2,
                ax=axes,
            )
        for row in self._summarize_rows(done).itertuples():
            self._draw_row(axes, row, rows.places[str(row.label)], facet)
        if self.reference:
            draw_ticks(axes, frame, rows, self.reference)
        draw_in_rows(axes, facet, rows.places, scale.column)
        if self.line is not None:
            axes.axvline(self.line, color=MUTED, linewidth=0.8, zorder=1)
        _set_limits(axes, scale, values)
        axes.set(xlabel=scale.label, ylabel="")

    def _summarize_rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return one row for each label: the median of its launches, and the ends of its interval or of its range.

        A single launch without an interval has no ends.
        """
        values = frame[self.x.column].astype(float).groupby(frame.label, sort=False)
        several = values.min() < values.max()
        ends = {"low": values.min().where(several), "high": values.max().where(several)}
        if "low" in frame:
            given = frame.groupby("label", sort=False)[["low", "high"]].first().astype(float)
            ends = {end: given[end].fillna(most) for end, most in ends.items()}
        kept = ["label", "curve", "strategy", "source", *(["verdict"] if self.verdicts else [])]
        summary = frame[kept].drop_duplicates("label").set_index("label")
        return summary.assign(middle=values.median(), **ends).reset_index()

    def _draw_row(self, axes: Axes, row: Any, place: float, facet: Facet) -> None:
        look = self.verdicts[row.verdict] if self.verdicts else facet.looks[row.curve]
        source = SOURCE_LINES[row.source]
        if row.low < row.high:
            style = draw_dashes(source.dashes or ())
            axes.plot([row.low, row.high], [place, place], color=look.colour, linestyle=style, zorder=2)
        axes.plot(
            [row.middle],
            [place],
            label=row.verdict if self.verdicts else None,
            zorder=2.5,
            **style_marker(look, hollow=source.hollow),
        )

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return Vega-Lite layers: the range, the launches, the median, the reference and the note of each row."""
        frame, y = facet.frame, encode_rows(facet.frame)
        x = widen_scale(self.x, self._all_values(facet)).encode()
        summary = self._summarize_rows(frame).replace({float("nan"): None})
        rows = {"values": summary.to_dict("records")}
        ranges: dict[str, Any] = {
            "data": rows,
            "mark": {"type": "rule"},
            "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y},
        }
        layers: list[dict[str, Any]] = [
            *([ranges] if summary.low.notna().any() else []),
            {"mark": {"type": "point", "filled": True, "size": 10}, "encoding": {"x": x, "y": y}},
            {
                "data": rows,
                "mark": {"type": "point", "filled": True, "size": 60},
                "encoding": {"x": x | {"field": "middle"}, "y": y},
            },
            describe_notes(facet.frame),
        ]
        if self.reference:
            layers += describe_ticks(frame, x | {"field": self.reference.column}, size=12)
        layers += describe_in_rows(facet, x, y)
        if self.line is not None:
            rule = {"type": "rule", "color": MUTED}
            layers.insert(0, {"mark": rule, "encoding": {"x": {"datum": self.line}}})
        return {"layer": layers}


def _set_limits(axes: Axes, scale: Scale, values: list[float]) -> None:
    """Leave room for markers at both ends. Linear axes of times and counts begin at 0."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if scale.log:
        room = (high / low) ** 0.06 if high > low else 1.5
        axes.set_xlim(low / room, high * room)
    elif scale.unit == "%":
        room = (high - low) * 0.08 or 0.05
        axes.set_xlim(low - room, high + room)
    else:
        axes.set_xlim(0, 1.06 * high or 1.0)
