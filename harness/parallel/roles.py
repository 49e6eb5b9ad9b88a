"""The three roles that the axes of a 3D grid play in a layer, and who holds what by them (Plexus, section 3).

R splits rows of A and of the output, S columns of A and so rows of the input, T the columns of the input. From layer to
layer the roles rotate: what one layer leaves is laid out as the next one eats it, and with L layers a rank
needs min(3, L) blocks of A. It is arithmetic alone: no tensors, no ranks.

Legend: N vertices over R, K vertices over S, F features in over T, H features out over S.
"""

from collections.abc import Mapping
from typing import NamedTuple

from harness.ledger.vocabulary import AxisName
from harness.ranges import balanced, part, within


class Roles(NamedTuple):
    """Which axis plays which role."""

    R: AxisName
    S: AxisName
    T: AxisName

    def rotated(self) -> "Roles":
        """Those of the next layer, whose input rows stand where this one's output rows do."""
        return Roles(self.T, self.R, self.S)


def roles_of(layer: int, first: Roles) -> Roles:
    """The roles in a layer, from those in layer 0."""
    roles = first
    for _ in range(layer % 3):
        roles = roles.rotated()
    return roles


class Share(NamedTuple):
    """What one rank has of a layer: A is N x K, the input K x F, W is F x H, the output N x H."""

    roles: Roles
    N: range
    K: range
    F: range
    H: range


def share_of(
    roles: Roles,
    grid: Mapping[AxisName, int],
    at: Mapping[AxisName, int],
    vertices: int,
    shape: tuple[int, int],
) -> Share:
    """The share of the rank at `at` of a layer whose weights have this shape."""
    R, S, T = roles
    return Share(
        roles,
        N=part(vertices, grid[R], at[R]),
        K=part(vertices, grid[S], at[S]),
        F=balanced(shape[0], grid[T])[at[T]],
        H=balanced(shape[1], grid[S])[at[S]],
    )


def piece_of(whole: range, parts: int, i: int) -> range:
    """The i-th of so many pieces of a range, as even as can be."""
    return within(whole, balanced(len(whole), parts)[i])
