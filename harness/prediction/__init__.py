"""Predictions: the time of an epoch on any machine, advice on strategies and grids, and calibrated machine cards."""
