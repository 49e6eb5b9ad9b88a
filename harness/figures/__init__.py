"""Draws figures from tables: strong scaling, breakdowns, costs. Each kind is one module; all have the same style."""

from harness.figures.drawing import draw_all as draw_all
from harness.figures.framed_tables import FramedTables as FramedTables
