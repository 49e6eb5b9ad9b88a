"""Terms that all of CAGNET's schemes share: the axes of their grids, rows that a collective moves, a refusal."""

from typing import NamedTuple

from harness.ledger import AxisName, Direction, Op

ROW, COL, FIBRE = AxisName.ROW, AxisName.COL, AxisName.FIBRE
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class Moved(NamedTuple):
    """The rows that a collective moves in one product with A; times their width, its words."""

    op: Op
    axis: AxisName
    rows: int
    sums: bool = False
    """True for rows of the product, which are summed; False for rows of the factor."""


def nothing_to_keep(weight_gradient: str, order: str) -> str | None:
    """The reason why Y = T^T G is impossible in this order, or None."""
    if weight_gradient == "T" and order == "combine_first":
        return (
            "there is no T = A H to keep when H W comes first: use weight_gradient S or order aggregate_first"
        )
    return None
