"""Definitions shared by all CAGNET schemes: axes, the rows that a collective moves, and a refusal."""

from typing import NamedTuple

from harness.ledger import AxisName, Direction, Op

ROW, COL, FIBRE = AxisName.ROW, AxisName.COL, AxisName.FIBRE
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class MovedRows(NamedTuple):
    """The rows that a collective moves in one product with A. Its words are `rows` times the width of a row."""

    op: Op
    axis: AxisName
    rows: int
    sums: bool = False
    """True for rows of the product, which are summed; False for rows of the right factor."""


def is_narrower_combined(f_in: int, f_out: int, weight_gradient: str) -> bool:
    """Return whether the products with A of a layer have fewer columns if H W comes first.

    The backward pass multiplies G, of f_out columns, in both orders. T cannot be kept if H W comes first.
    """
    return f_out < f_in and weight_gradient != "T"


def refuse_kept_T(weight_gradient: str, order: str) -> str | None:
    """Return why Y = T^T G is impossible in this order of products, or None."""
    if weight_gradient == "T" and order == "combine_first":
        return (
            "there is no T = A H to keep when H W comes first: use weight_gradient S or order aggregate_first"
        )
    return None
