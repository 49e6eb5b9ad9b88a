"""Graphs in memory: normalisation, orders, partitions; recipes for features, labels, splits. No files, no processes."""
