"""Marks: how the rows of a tidy frame are drawn. A kind of figure is a frame and one of these."""

from harness.figures.marks.bars import Bars as Bars
from harness.figures.marks.dots import Dots as Dots
from harness.figures.marks.facet import Facet as Facet
from harness.figures.marks.facet import Mark as Mark
from harness.figures.marks.lines import Lines as Lines
from harness.figures.marks.points import Points as Points
from harness.figures.marks.strips import Strips as Strips
