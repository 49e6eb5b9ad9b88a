"""Plexus' model of its products with A (section 4.1): what a grid costs beyond its flops, which are the same on all.

Equation 4.4 has two spellings. The paper weighs the shape of each layer by the flops of that layer; the authors' code,
which made their figures, by those of all layers. Both divide the flops by the ranks, which the printed equation leaves
out. Coefficients stand in the cards of machines.
"""

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import NamedTuple

from harness.ledger import AxisName
from harness.parallel.roles import Roles, roles_of


class Terms(NamedTuple):
    """What the three coefficients are multiplied by."""

    flops: float
    forward: float
    backward: float


def terms_of_the_code(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, nonzeros: int, widths: Sequence[int]
) -> Terms:
    """`widths` are those of the dense factors: the features, then the hidden layers, without the classes."""
    layers = list(_layers(grid, first, vertices, widths))
    ranks = _ranks(grid)
    cost = sqrt(sum(nonzeros * d for d in widths) / ranks)
    return Terms(
        cost,
        cost * sum(forward for forward, _ in layers),
        cost * sum(backward for _, backward in layers),
    )


def terms_of_the_paper(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, nonzeros: int, widths: Sequence[int]
) -> Terms:
    """Equation 4.4, summed over layers."""
    costs = [sqrt(nonzeros * d / _ranks(grid)) for d in widths]
    layers = list(_layers(grid, first, vertices, widths))
    return Terms(
        sum(costs),
        sum(cost * forward for cost, (forward, _) in zip(costs, layers, strict=True)),
        sum(cost * backward for cost, (_, backward) in zip(costs, layers, strict=True)),
    )


def _layers(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, widths: Sequence[int]
) -> list[tuple[float, float]]:
    """The penalties of tall and narrow factors, forward and backward."""
    found = []
    for layer, d in enumerate(widths):
        R, S, T = (grid[axis] for axis in roles_of(layer, first))
        found.append((vertices / S * T / d, vertices / R * T / d))
    return found


def _ranks(grid: Mapping[AxisName, int]) -> int:
    return prod(grid.values())
