"""Figures from tables: strong scaling, breakdowns, costs; one file a kind, in one look. Nothing here measures."""

from harness.figures.drawing import draw_all as draw_all
