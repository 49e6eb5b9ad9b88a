"""Partitions of the vertices: computed, drawn or read from a file, and which rank owns which part."""
