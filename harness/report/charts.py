"""The charts of the page: for each kind of figure, a Vega-Lite chart of each facet.

A mark describes the axes and layers of a facet. This module adds what all charts share: the look of each curve, the
strategies that the reader selected, and zoom. The page's script adds the rows and draws the chart.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from harness.report.embedding import TextTable, encode_frame
from harness.report.figures.axis_scales import Scale
from harness.report.figures.framed_tables import KINDS, FramedTables
from harness.report.figures.marks import Facet, Mark, Points
from harness.report.figures.palette import (
    FAINT,
    GRID,
    HOLLOW_SOURCES,
    INK,
    MUTED,
    PAPER,
    CurveLook,
    look_of,
    named_colours,
    outline_marker,
    strategy_sort_key,
)
from harness.report.figures.panels import title_panels
from harness.report.figures.placed_marks import describe_marks
from harness.results.schema import OK

COLUMN_WIDTH = 3.4
"""The inches above which a chart takes the whole width of the page."""
PIXELS_PER_INCH = 120
"""Charts are larger on a screen than in print."""
PIXELS_PER_LETTER = 6
COLOURED = ("line", "area", "point", "circle", "square", "bar", "tick", "rect", "rule", "trail")
"""The marks that have the colour of their curve unless the description gives another."""
VARIABLES = {
    INK: "var(--ink)",
    PAPER: "var(--paper)",
    MUTED: "var(--muted)",
    FAINT: "var(--faint)",
    GRID: "var(--rule)",
    **{colour: f"var(--{name})" for name, colour in named_colours().items()},
}
"""Style variables instead of colours, so that charts follow a light or dark page."""


class ChartPlace(NamedTuple):
    """The place of a chart on the page: the number of its data, its title and headline, and its size."""

    number: int
    title: str
    headline: str
    wide: bool
    height: int


class ChartSection(NamedTuple):
    """The charts of one kind of figure, with their caption and what all facets share."""

    name: str
    title: str
    question: str
    caption: str
    note: str
    charts: list[ChartPlace]


class StrategyButton(NamedTuple):
    """The button of a strategy: its colour and the outline of its marker."""

    name: str
    colour: str
    outline: str


def make_charts(framed: FramedTables, texts: TextTable) -> tuple[list[ChartSection], list[dict[str, Any]]]:
    """Return a section for each kind of figure that has data, and the data of all charts."""
    sections: list[ChartSection] = []
    documents: list[dict[str, Any]] = []
    for kind in KINDS:
        facets = framed.make_facets(kind)
        if not facets:
            continue
        titles, note = title_panels([facet.panel for facet in facets])
        places = []
        for facet, title in zip(facets, titles, strict=True):
            width, height = kind.mark.measure(facet)
            place = ChartPlace(
                len(documents),
                title or facet.dataset or kind.title,
                facet.headline,
                width > COLUMN_WIDTH and not isinstance(kind.mark, Points),  # whose labels are in files only
                round(PIXELS_PER_INCH * height),
            )
            places.append(place)
            documents.append(
                {
                    "spec": make_spec(kind.mark, facet),
                    "columns": encode_frame(facet.frame, texts),
                    "rows": len(facet.frame),
                    "scales": label_columns(kind.mark),
                }
            )
        caption = select_sentences(kind.caption, [facet.frame for facet in facets])
        caption = " ".join(filter(None, (caption, describe_marks([facet.printed for facet in facets]))))
        note = framed.complete_note(kind, facets, note)
        sections.append(ChartSection(kind.name, kind.title, kind.question, caption, note, places))
    return sections, documents


def list_strategy_buttons(names: Sequence[str]) -> list[StrategyButton]:
    """Return the buttons of strategies, in the order of the palette."""
    looks = {name: look_of(name, names) for name in sorted(set(names), key=strategy_sort_key)}
    return [
        StrategyButton(name, name_colour(look.colour), outline_marker(look.marker))
        for name, look in looks.items()
    ]


def name_colour(colour: str) -> str:
    """Return the style variable of a colour. Colours without one are returned unchanged."""
    return VARIABLES.get(colour, colour)


AGGREGATES = {"middle": "median", "median": "median", "low": "from", "high": "to"}
"""The columns that charts compute of the values of a row or a line, and what a tooltip calls them."""


def label_columns(mark: Mark) -> Mapping[str, tuple[str, str]]:
    """Return the label and the unit of each column with a scale, and of what charts compute of the measured one."""
    scales = [value for value in vars(mark).values() if isinstance(value, Scale)]
    measured = vars(mark).get("y") or vars(mark).get("x")
    unit = measured.unit if isinstance(measured, Scale) else "number"
    return {name: (label, unit) for name, label in AGGREGATES.items()} | {
        scale.column: (scale.label, scale.unit) for scale in scales
    }


def _has_any(column: str, values: Sequence[Any] = (True,)) -> Callable[[pd.DataFrame], bool]:
    """Return a function that says whether a frame has one of the values in a column."""
    return lambda frame: bool(frame.get(column, pd.Series()).isin(list(values)).any())


SENTENCES: dict[str, Callable[[pd.DataFrame], bool]] = {
    "Crossed-out markers": lambda frame: bool((frame.status != OK).any()),
    "Dotted background": _has_any("shared_cores"),
    "Dotted: ideal scaling": lambda frame: not frame.groupby("curve").shared_cores.any().all(),
    "Hollow markers": _has_any("source", HOLLOW_SOURCES),
    "Horizontal line: the target": lambda frame: bool(frame.get("target", pd.Series()).notna().any()),
    "Markers that would coincide": lambda _: False,
}
"""Sentences of captions, by their first words, about marks that charts have only if a frame fulfils a condition."""


def select_sentences(caption: str, frames: Sequence[pd.DataFrame]) -> str:
    """Return the sentences of a caption that speak of marks that a chart has."""
    sentences = re.split(r"(?<=\.)\s+", " ".join(caption.split()))
    conditions = [
        next((test for words, test in SENTENCES.items() if sentence.startswith(words)), None)
        for sentence in sentences
    ]
    return " ".join(
        sentence
        for sentence, test in zip(sentences, conditions, strict=True)
        if test is None or any(map(test, frames))
    )


# Vega-Lite specifications.

SELECTED = "!length(selected) || !isValid(datum.strategy) || indexof(selected, datum.strategy) >= 0"
"""Whether a mark belongs to a selected strategy, or nothing is selected."""


def make_spec(mark: Mark, facet: Facet) -> dict[str, Any]:
    """Return the Vega-Lite specification of a facet without its rows."""
    spec = mark.describe(facet)
    units = list(_walk_units(spec))
    for unit in units:
        _add_looks(unit, facet, getattr(mark, "verdicts", None))
    zoomed = max(units, key=lambda unit: len(_continuous_channels(unit)))
    for name in ("x", "y"):  # room for markers at the ends of axes that do not begin with bars at zero
        axes = [unit["encoding"][name] for unit in units if name in _continuous_channels(unit)]
        begins_at_zero = any(axis.get("scale", {}).get("zero") for axis in axes)
        for axis in axes:
            axis["scale"] = axis.get("scale", {}) | ({"zero": True} if begins_at_zero else {"padding": 8})
    if channels := _continuous_channels(zoomed):
        zoomed["params"] = [
            {
                "name": "zoom",
                "select": {
                    "type": "interval",
                    "encodings": channels,
                    "zoom": "wheel![event.ctrlKey || event.metaKey]",
                },
                "bind": "scales",
            }
        ]
    notes: list[str] = [str(note) for note in facet.frame.get("note", pd.Series()).dropna()]
    margin = round(PIXELS_PER_LETTER * max(map(len, notes), default=0))
    return spec | {
        "params": [*spec.get("params", []), {"name": "selected", "value": []}],
        "padding": {"left": 5, "top": 5, "bottom": 5, "right": margin + 5},
    }


def _walk_units(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every layer that has a mark."""
    for layer in spec.get("layer", []):
        yield from _walk_units(layer)
    if "mark" in spec:
        if isinstance(spec["mark"], str):
            spec["mark"] = {"type": spec["mark"]}
        yield spec


def _continuous_channels(unit: dict[str, Any]) -> list[str]:
    """Return the channels of a layer whose axes can be zoomed. An axis from top to bottom has rows."""
    encoding = {name: unit.get("encoding", {}).get(name, {}) for name in ("x", "y")}
    return [
        name
        for name, channel in encoding.items()
        if channel.get("type") == "quantitative" and not channel.get("scale", {}).get("reverse")
    ]


def _add_looks(unit: dict[str, Any], facet: Facet, verdicts: Mapping[str, CurveLook] | None) -> None:
    """Give the marks of a layer the look of their curve or verdict, and fade strategies that are not selected."""
    kind, encoding = unit["mark"]["type"], unit.setdefault("encoding", {})
    field = "curve" if verdicts is None else "verdict"
    known = facet.looks if verdicts is None else verdicts
    looks = {value: known[value] for value in facet.frame[field].unique() if value in known}
    colours = ["var(--rule)" if facet.is_grey(name) else name_colour(looks[name].colour) for name in looks]
    if "color" in unit["mark"]:
        unit["mark"]["color"] = name_colour(unit["mark"]["color"])
    if "value" in encoding.get("color", {}):
        encoding["color"] = {"value": name_colour(encoding["color"]["value"])}
    if "range" in (scale := encoding.get("color", {}).get("scale", {})):
        present = set(facet.frame[encoding["color"]["field"]][facet.frame[encoding["x"]["field"]] > 0])
        pairs = [pair for pair in zip(scale["domain"], scale["range"], strict=True) if pair[0] in present]
        scale |= {"domain": [value for value, _ in pairs], "range": [name_colour(each) for _, each in pairs]}
    if kind in COLOURED and looks and not {"color", "fill", "stroke"} & {*encoding, *unit["mark"]}:
        colour = _encode_looks(field, list(looks), colours)
        if kind == "point":
            paper = {"test": f"indexof({HOLLOW_SOURCES}, datum.source) >= 0", "value": "var(--paper)"}
            encoding |= {"stroke": colour, "fill": {"condition": paper, **colour}}
        else:
            encoding["color"] = colour
    if kind == "point" and looks and "shape" not in encoding:
        shapes = [outline_marker(look.marker) for look in looks.values()]
        encoding["shape"] = _encode_looks(field, list(looks), shapes)
    visible = unit["mark"].pop("opacity", 1)
    encoding.setdefault(
        "opacity", {"condition": {"test": SELECTED, "value": visible}, "value": 0.1 * visible}
    )
    unit["mark"].setdefault("tooltip", {"content": "data"})


def _encode_looks(field: str, values: list[str], looks: list[Any]) -> dict[str, Any]:
    """Return the encoding of a look by a column. The bar of strategies is the legend of curves."""
    encoding = {"field": field, "type": "nominal", "scale": {"domain": values, "range": looks}}
    return encoding | ({"legend": None} if field == "curve" else {"title": None})
