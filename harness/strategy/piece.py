"""A rectangle of a matrix: the part that one rank holds."""

from typing import NamedTuple


class Piece(NamedTuple):
    """Which rows, and which columns."""

    rows: range
    cols: range
