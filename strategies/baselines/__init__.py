"""Baselines that sample neighbours on a partitioned graph, in the manner of known systems."""
