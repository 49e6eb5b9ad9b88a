"""Datasets: the cards that describe them, and the stores that hold them in blocks."""
