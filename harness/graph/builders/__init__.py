"""Builds the store of a graph out of core, by one job or by several together."""
