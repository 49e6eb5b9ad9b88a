"""Plexus' model of its products with A (section 4.1), and the words that the authors' code sends.

Equation 4.4 has two spellings. The paper weighs the shape of each layer by the flops of that layer; the authors' code,
which made the figures, weighs the shape by the flops of all layers. Both divide the flops by the number of ranks, which
the printed equation leaves out. Machine cards have the coefficients.
"""

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import NamedTuple

from harness.ledger import AxisName, Direction, Op, TensorName
from harness.parallel.roles import Roles, get_roles
from harness.strategy import Words


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


def product_milliseconds(terms: Terms, coefficients: Coefficients) -> float:
    """The milliseconds of an epoch's products with A by equation 4.4, which is linear in its terms."""
    return coefficients.intercept + sum(
        term * each for term, each in zip(terms, coefficients[:3], strict=True)
    )


def terms_of_the_code(
    grid: Mapping[AxisName, int], first: Roles, vertices: int, nonzeros: int, widths: Sequence[int]
) -> Terms:
    """Equation 4.4 as in the code; `widths` are the features and the hidden layers, without the classes."""
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
    """Equation 4.4 as printed, summed over layers."""
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
    penalties = []
    for layer, d in enumerate(widths):
        R, S, T = (grid[axis] for axis in get_roles(layer, first))
        penalties.append((vertices / S * T / d, vertices / R * T / d))
    return penalties


def _ranks(grid: Mapping[AxisName, int]) -> int:
    return prod(grid.values())


# The words that the authors' code sends, padding included. On three grids they equal the words counted in that code.
# The legend is that of `plexus`.


def words_of_the_authors(
    grid: dict[AxisName, int], first: Roles, vertices: int, shapes: Sequence[tuple[int, int]]
) -> Words:
    """Payload words of an epoch, the same on all ranks, as all blocks are padded to the largest block."""
    words = Words(grid)
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    for layer, (d, e) in enumerate(shapes):
        R, S, T = get_roles(layer, first)
        r, s, t = grid[R], grid[S], grid[T]
        N, K = -(-vertices // r), -(-vertices // s)
        sharded = layer == 0 or -(-d // t) % r == 0  # else W is whole along R and its gradient is summed
        F = -(-d // (t * r)) * r if sharded else -(-d // t)
        H = -(-e // s)
        if layer == 0:
            words.put(forward, layer, Op.ALL_GATHER, R, TensorName.X, K * F)
        words.put(forward, layer, Op.ALL_REDUCE, S, TensorName.T, N * F)
        words.put(forward, layer, Op.ALL_REDUCE, T, TensorName.Z, N * H)
        if sharded:
            words.put(forward, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
            words.put(backward, layer, Op.ALL_GATHER, R, TensorName.W, F * H)
        gradient = Op.REDUCE_SCATTER if sharded else Op.ALL_REDUCE
        words.put(backward, layer, gradient, R, TensorName.DW, F * H)
        words.put(backward, layer, Op.ALL_REDUCE, S, TensorName.DT, N * F)
        if layer == 0:
            words.put(backward, layer, Op.REDUCE_SCATTER, R, TensorName.DX, K * F)
        else:
            words.put(backward, layer, Op.ALL_REDUCE, R, TensorName.DH, K * F)
    words.put(forward, -1, Op.ALL_REDUCE, S, TensorName.LOSS, 3 * N)
    words.put(forward, -1, Op.ALL_REDUCE, R, TensorName.LOSS, 1)
    return words
