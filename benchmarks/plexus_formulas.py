"""Plexus' own model of its products with A, equation 4.4 of its paper, for the benchmarks that are compared with it.

The equation has two readings. The paper weights the shape of each layer by the flops of that layer; the authors' code,
which made the figures, weights the shape by the flops of all layers. Both divide the flops by the number of ranks,
which the printed equation omits. The coefficients are in the machine cards.
"""

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import NamedTuple

from harness.ledger import AxisName
from harness.strategy import Strategy
from harness.strategy.parallel.roles import Roles, get_roles
from harness.strategy.parallel.rotating_layout import FIRST


class Terms(NamedTuple):
    """The factors of the three coefficients."""

    flops: float
    forward: float
    backward: float


class Coefficients(NamedTuple):
    """The coefficients of equation 4.4, in milliseconds."""

    flops: float
    forward: float
    backward: float
    intercept: float = 0.0


def predict_milliseconds(terms: Terms, coefficients: Coefficients) -> float:
    """Return the milliseconds that an epoch's products with A take by equation 4.4, which is linear in its terms."""
    return coefficients.intercept + sum(
        term * each for term, each in zip(terms, coefficients[:3], strict=True)
    )


def terms_in_code(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, nonzeros: int, widths: Sequence[int]
) -> Terms:
    """Return the terms of equation 4.4 as in the authors' code.

    `widths` are the numbers of features and of hidden units, without the classes.
    """
    layers = list(_shape_penalties(grid, first, vertices, widths))
    ranks = prod(grid.values())
    cost = sqrt(sum(nonzeros * d for d in widths) / ranks)
    return Terms(
        cost,
        cost * sum(forward for forward, _ in layers),
        cost * sum(backward for _, backward in layers),
    )


def terms_in_paper(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, nonzeros: int, widths: Sequence[int]
) -> Terms:
    """Return the terms of equation 4.4 as printed, summed over the layers."""
    costs = [sqrt(nonzeros * d / prod(grid.values())) for d in widths]
    layers = list(_shape_penalties(grid, first, vertices, widths))
    return Terms(
        sum(costs),
        sum(cost * forward for cost, (forward, _) in zip(costs, layers, strict=True)),
        sum(cost * backward for cost, (_, backward) in zip(costs, layers, strict=True)),
    )


def _shape_penalties(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, widths: Sequence[int]
) -> list[tuple[float, float]]:
    """Return each layer's penalties for tall, narrow factors, forward and backward."""
    penalties = []
    for layer, d in enumerate(widths):
        R, S, T = (grid[axis] for axis in get_roles(layer, first))
        penalties.append((vertices / S * T / d, vertices / R * T / d))
    return penalties


def terms_of_strategy(strategy: Strategy) -> Terms:
    """Return the terms of a Plexus strategy, as in the authors' code."""
    facts, widths = strategy.facts, [f_in for f_in, _ in strategy.shapes]
    return terms_in_code(strategy.grid, FIRST, facts.vertices, facts.nonzeros, widths)
