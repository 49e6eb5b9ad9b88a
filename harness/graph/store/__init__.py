"""Datasets by name: a store of blocks on disk, or a small graph in memory."""
