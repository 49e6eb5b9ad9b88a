"""Rows of a figure: a label on the left, dots or bars, and a note on the right."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from harness.report.figures.axis_scales import Scale
from harness.report.figures.palette import INK, PAPER
from harness.report.figures.wrapping import LETTER, LINE, longest_line, wrap_text

GAP = 0.045
"""Inches between rows."""
DATA_WIDTH = 1.3
"""The least width of what is between labels and notes, in inches."""
NOTE_LETTERS = 26


class Rows(NamedTuple):
    """The rows of a frame, one for each value of its column `label`, in the order of the frame."""

    labels: list[str]
    notes: list[str]
    places: dict[str, float]
    """The place of the middle of each row in inches from the top, by the value of `label`."""
    height: float

    @property
    def width(self) -> float:
        """The least width of the rows, with labels and notes, in inches."""
        return LETTER * (longest_line(self.labels) + longest_line(self.notes) + 2) + DATA_WIDTH


def arrange_rows(frame: pd.DataFrame, letters: int) -> Rows:
    """Place the rows of a frame. Labels are wrapped to lines of `letters`, and rows are as high as their text."""
    first = frame.drop_duplicates("label")
    labels = [wrap_text(label, letters) for label in first.label]
    notes = [wrap_text(note, NOTE_LETTERS) for note in first.note]
    places, height = {}, GAP
    for label, *texts in zip(first.label, labels, notes, strict=True):
        size = LINE * (1 + max(text.count("\n") for text in texts)) + GAP
        places[label] = height + size / 2
        height += size
    return Rows(labels, notes, places, height + GAP)


def draw_rows(axes: Axes, rows: Rows, *, notes: bool = True) -> None:
    """Label the rows of an axis from top to bottom, with the notes on the right."""
    axes.set_yticks(list(rows.places.values()), rows.labels)
    axes.set_ylim(rows.height, 0)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    for place, note in zip(rows.places.values(), rows.notes, strict=True):
        if notes and note:
            axes.annotate(
                note,
                (1, place),
                (4, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )


def draw_ticks(axes: Axes, frame: pd.DataFrame, rows: Rows, scale: Scale) -> None:
    """Draw a tick in each row that has a value in a column, and one entry of the legend."""
    ticks = frame.dropna(subset=[scale.column]).drop_duplicates("label")
    if len(ticks):
        places = (ticks[scale.column].tolist(), ticks.label.map(rows.places).tolist())
        look: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 10}
        axes.plot(*places, color=PAPER, markeredgewidth=2.6, zorder=3, **look)
        axes.plot(*places, color=INK, markeredgewidth=1.2, zorder=3.1, label=scale.label, **look)


def encode_rows(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the Vega-Lite encoding of rows in the order of the frame."""
    return {"field": "label", "type": "nominal", "sort": frame.label.unique().tolist(), "title": None}


def describe_notes(frame: pd.DataFrame) -> dict[str, Any]:
    """Return a Vega-Lite layer with the notes on the right of the chart."""
    fields = ["label", "curve", "strategy", "source", "note"]
    return {
        "transform": [{"aggregate": [{"op": "count", "as": "launches"}], "groupby": fields}],
        "mark": {"type": "text", "align": "left", "dx": 5, "color": "currentColor", "clip": False},
        "encoding": {
            "x": {"value": "width"},
            "y": encode_rows(frame),
            "text": {"field": "note", "type": "nominal"},
        },
    }


def describe_ticks(frame: pd.DataFrame, x: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Return a Vega-Lite layer with a tick in each row that has a value in the column of `x`; none if no row has."""
    if not frame.get(x["field"], pd.Series()).notna().any():
        return []
    tick = {"type": "tick", "thickness": 2, "size": size, "color": INK}
    return [{"mark": tick, "encoding": {"x": x, "y": encode_rows(frame)}}]


def widen_scale(scale: Scale, values: Sequence[float]) -> Scale:
    """Return the scale, logarithmic if the values differ by more than a factor of 20."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    return scale._replace(log=scale.log or (low > 0 and high > 20 * low))
