"""What marks draw: one facet, which is a tidy frame whose rows may be compared with each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import pandas as pd
from matplotlib.axes import Axes

from harness.report.figures.palette import CurveLook
from harness.report.figures.panels import Panel

MOST_COLOURED = 8
"""The most curves that have colours on shared axes. All others are grey."""


@dataclass(frozen=True, eq=False)
class Facet:
    """The rows that one pair of axes shows, and the looks of their curves.

    Every frame has the columns `curve` (the label of a curve), `strategy`, `source` and `status`.
    """

    title: str
    frame: pd.DataFrame
    panel: Panel = field(default_factory=lambda: Panel("", "", pd.DataFrame()))
    highlights: Sequence[str] = ()
    """The curves that have colours, if there are too many for all to have one; else empty."""
    given_looks: Mapping[str, CurveLook] = field(default_factory=dict)
    """The looks of curves that do not belong to a panel, by their labels."""
    headline: str = ""
    """What the rows show, in a few words."""
    printed: pd.DataFrame = field(default_factory=pd.DataFrame)
    """What papers print about several runs, placed among the rows. See `harness.report.figures.placed_marks`."""

    @cached_property
    def looks(self) -> dict[str, CurveLook]:
        """The look of each curve, by its label. A curve that joins variants of a strategy looks like the first."""
        looks = dict(self.given_looks) or self.panel.looks
        for curve, strategy in self.frame[["curve", "strategy"]].drop_duplicates().itertuples(index=False):
            if curve not in looks:
                looks[curve] = next(each.look for each in self.panel.curves if each.strategy == strategy)
        return looks

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each curve in a legend: its label, without a source that its line shows already."""
        names, looks = dict[str, str](), dict[str, CurveLook]()
        for curve, source in self.frame[["curve", "source"]].drop_duplicates().itertuples(index=False):
            name = name_without_source(curve, source)
            same = looks.setdefault(name, self.looks[curve]) == self.looks[curve]
            names[curve] = name if same else curve
        return names

    @property
    def dataset(self) -> str:
        """The dataset of its panel."""
        return self.panel.dataset

    def is_grey(self, curve: str) -> bool:
        """Return whether a curve is drawn in grey behind the others."""
        return bool(self.highlights) and curve not in self.highlights


def name_without_source(curve: str, source: str) -> str:
    """Return the label of a curve without its source: plexus for plexus predicted."""
    return curve.removesuffix(f" {source}")


class Mark(Protocol):
    """Draws a facet: on matplotlib's axes for files, and as a Vega-Lite chart for the report."""

    def measure(self, facet: Facet) -> tuple[float, float]:
        """Return the least width and the height of the axes of a facet in inches."""
        ...

    def draw(self, axes: Axes, facet: Facet) -> None:
        """Draw a facet. Artists with a label become entries of the legend."""
        ...

    def describe(self, facet: Facet) -> dict[str, Any]:
        """Return the Vega-Lite layers of a facet as `{"layer": [...]}`.

        Layers without `data` read the rows of `facet.frame`, so the caller sets `data` of the chart. The caller also
        adds the colour and shape of `curve`, the selection and the tooltip to every layer whose encoding does not
        have them. A layer with its own `color`, such as a reference line, is not a curve and stays as it is.
        """
        ...
