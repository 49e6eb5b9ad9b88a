"""Predictions: the replay of a rank, the time of an epoch on any machine, advice, and calibrated machine cards."""
