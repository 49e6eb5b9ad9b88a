"""What the formulas and the refusals of all of CAGNET's schemes are made of."""

from typing import NamedTuple

from harness.ledger import AxisName, Direction, Op

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


class Moved(NamedTuple):
    """Rows that a collective moves in one product with A, to be multiplied by their width."""

    op: Op
    axis: AxisName
    rows: int
    sums: bool = False
    """Rows of the product, where it is summed; else of the factor."""


def nothing_to_keep(weight_gradient: str, order: str) -> str | None:
    """Why Y = T^T G cannot be had in this order, or None."""
    if weight_gradient == "T" and order == "combine_first":
        return (
            "there is no T = A H to keep when H W comes first: use weight_gradient S or order aggregate_first"
        )
    return None
