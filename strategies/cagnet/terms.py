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


def explain_kept_T(weight_gradient: str) -> str | None:
    """Return why H W cannot come first with this weight gradient, or None if it can."""
    return "there is no T = A H to keep when H W comes first" if weight_gradient == "T" else None


def refuse_kept_T(weight_gradient: str, order: str) -> str | None:
    """Return why Y = T^T G is impossible in this order of products, or None."""
    reason = explain_kept_T(weight_gradient)
    if reason and order == "combine_first":
        return f"{reason}: use weight_gradient S or order aggregate_first"
    return None
