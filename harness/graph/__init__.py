"""Graphs in memory: normalisation, orders, rectangles, generators and recipes. No files, no processes."""
