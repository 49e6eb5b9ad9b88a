"""Predictions: the time of an epoch on a machine that need not be at hand, and advice on strategies and grids."""
