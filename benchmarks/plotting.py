"""What the figures of benchmarks share: facets of tidy frames, and the tables of recorded pages.

A figure is a tidy frame, a mark of `harness.report.figures.marks`, and a title that says what the frame shows.
Benchmarks without figures run without matplotlib.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.recorded_tables import read_tables
from harness.report.figures.axis_scales import Scale
from harness.report.figures.drawing import style_context
from harness.report.figures.figure_layout import compose_figure
from harness.report.figures.marks import Bars, Facet
from harness.report.figures.palette import COLOURS, CurveLook, Fill, look_of, numbered_look
from harness.report.figures.panels import Panel

RESULTS = Path(__file__).parent / "results"


def make_facets(
    frame: pd.DataFrame,
    by: str = "",
    source: str = "measured",
    looks: Mapping[str, CurveLook] | None = None,
    highlights: Sequence[str] = (),
) -> list[Facet]:
    """Return a facet for each value of the column `by`, or one of the whole frame. They share their axes.

    The frame has a column `curve`, whose looks are numbered, or those of the strategies if it has a column `strategy`.
    Missing columns that marks read are filled.
    """
    columns: dict[str, Any] = {"strategy": "", "source": source, "status": "ok", "note": "", "ranks": 1}
    frame = frame.assign(**{name: value for name, value in columns.items() if name not in frame})
    curves = frame.drop_duplicates("curve")
    looks = looks or {
        str(curve): look_of(strategy) if strategy else numbered_look(number)
        for number, (curve, strategy) in enumerate(zip(curves.curve, curves.strategy, strict=True))
    }
    shared = Panel("", "", frame)
    parts = frame.groupby(by, sort=False) if by else [("", frame)]
    return [Facet(str(title), part, shared, highlights, looks) for title, part in parts]


def show_intervals(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the frame with three rows for each value: the ends `low` and `high` of its interval, and itself.

    `Lines` draws the median of rows with the same x as a line, and their range as a band.
    """
    ends = [frame.assign(**{column: frame[end]}) for end in ("low", "high")]
    return pd.concat([frame, *ends], ignore_index=True)


@style_context()
def stack_bars(labels: Sequence[str], parts: Mapping[str, Sequence[float]], x: Scale, title: str) -> Figure:
    """Draw a bar for each label, from the top down, with its parts end to end and its length as a note."""
    frame = pd.DataFrame({"label": labels, **parts})
    frame["note"] = frame[list(parts)].sum(axis=1).map(x.format_value)
    frame = frame.melt(["label", "note"], var_name="part", value_name=x.column)
    fills = {name: Fill(colour, "") for name, colour in zip(parts, COLOURS, strict=False)}
    return compose_figure(make_facets(frame.assign(curve=frame.label)), Bars(x, fills), title=title)


def read_recorded(page: str, command: str) -> list[pd.DataFrame]:
    """Return the tables that a command printed on a page of benchmarks/results, with numbers where all are."""
    tables = read_tables(RESULTS / f"{page}.md")
    printed = [
        each for each in tables if each.above.splitlines()[:1] == [f"    python -m benchmarks {command}"]
    ]
    return [pd.DataFrame(each.cells, columns=each.header).apply(_parse_numbers) for each in printed]


def _parse_numbers(column: "pd.Series[Any]") -> "pd.Series[Any]":
    try:
        return pd.to_numeric(column.str.replace(",", ""))
    except ValueError:
        return column


def join_names(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
