"""Draws figures from tables: strong scaling, breakdowns, costs. Each kind is one module; all have the same style."""

from harness.report.figures.drawing import draw_all as draw_all
from harness.report.figures.framed_tables import FramedTables as FramedTables
