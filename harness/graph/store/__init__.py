"""Datasets: the cards that describe graphs, and the stores that hold graphs in blocks."""
