"""The three roles of the axes of a 3D grid in a layer, and the share of each rank (Plexus, section 3).

R splits the rows of A and of the output, S the columns of A and the rows of the input, and T the columns of the input.
The roles rotate from layer to layer, so that the output of a layer has the layout of the next layer's input; with L
layers, a rank needs min(3, L) blocks of A. This module is pure arithmetic.

Legend: N vertices over R, K vertices over S, F features in over T, H features out over S.
"""

from collections.abc import Mapping
from typing import NamedTuple

from harness.base.ranges import slice_range, split_evenly, split_part
from harness.ledger.vocabulary import AxisName


class Roles(NamedTuple):
    """The axis that plays each role."""

    R: AxisName
    S: AxisName
    T: AxisName

    def rotate(self) -> "Roles":
        """Return the roles in the next layer, whose input has the layout of this layer's output."""
        return Roles(self.T, self.R, self.S)


def get_roles(layer: int, first: Roles) -> Roles:
    """Return the roles in a layer, given the roles in layer 0."""
    roles = first
    for _ in range(layer % 3):
        roles = roles.rotate()
    return roles


class LayerShare(NamedTuple):
    """One rank's share of a layer: A is N x K, the input K x F, W is F x H, the output N x H."""

    roles: Roles
    N: range
    K: range
    F: range
    H: range


def get_layer_share(
    roles: Roles,
    grid: Mapping[AxisName, int],
    at: Mapping[AxisName, int],
    vertices: int,
    shape: tuple[int, int],
) -> LayerShare:
    """Return the share of the rank at `at` in a layer with weights of this shape."""
    R, S, T = roles
    return LayerShare(
        roles,
        N=split_part(vertices, grid[R], at[R]),
        K=split_part(vertices, grid[S], at[S]),
        F=split_evenly(shape[0], grid[T])[at[T]],
        H=split_evenly(shape[1], grid[S])[at[S]],
    )


def split_piece(whole: range, parts: int, i: int) -> range:
    """Return the i-th of `parts` pieces of a range, whose lengths differ by at most one."""
    return slice_range(whole, split_evenly(len(whole), parts)[i])
