"""Marks: how the rows of a tidy frame are drawn. A kind of figure is a frame and one of these."""

from harness.report.figures.marks.bars import Bars as Bars
from harness.report.figures.marks.dots import Dots as Dots
from harness.report.figures.marks.facet import Facet as Facet
from harness.report.figures.marks.facet import Mark as Mark
from harness.report.figures.marks.lines import Lines as Lines
from harness.report.figures.marks.points import Points as Points
from harness.report.figures.marks.strips import Strips as Strips
