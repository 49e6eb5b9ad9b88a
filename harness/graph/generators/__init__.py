"""Generated graphs: each edge is a function of the seed and its number, at any size."""
