"""Figures from tables: strong scaling and breakdowns, in one look. Nothing here measures."""

from harness.figures.drawing import draw_all as draw_all
