"""Parallel GNN Harness: runs, proves and prices parallel GNN training strategies."""

__version__ = "0.1.0"
