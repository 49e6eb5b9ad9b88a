"""Figures from tables: strong scaling, breakdowns, costs; one file for each kind, in one style. No figure measures."""

from harness.figures.drawing import draw_all as draw_all
