"""Bytes of what a rank holds all the time, for formulas of memory."""

WORD = {"float32": 4, "float64": 8}
"""Of a number, by the precision of the run."""

INDEX, LONG = 4, 8
"""Of a column of a sparse matrix; of a row pointer, a position or a label."""


def csr_bytes(rows: int, nonzeros: int, precision: str) -> int:
    """Of a sparse matrix: row pointers, columns and values."""
    return LONG * (rows + 1) + (INDEX + WORD[precision]) * nonzeros
