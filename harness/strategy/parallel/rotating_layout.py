"""The layout of a model on axes in three roles: its layers, projection and head (ScaleGNN).

This module is pure arithmetic. Blocks of vertices apply both to the whole graph and to a sample: a sample is ascending,
so a block of vertices is a range of positions in the sample.

Legend: N vertices over R, K vertices over S, F features in over T, H features out over S. The projection has the roles
of layer 0, and the head the roles of layer L, one past the last.
"""

from collections.abc import Mapping, Sequence

from harness.base.ranges import split_evenly, split_range
from harness.ledger import AxisName
from harness.strategy import Coordinates, Facts, Piece
from harness.strategy.models import Part, Weight
from harness.strategy.parallel.reshard import Cuts, MatrixLayout
from harness.strategy.parallel.roles import LayerShare, Roles, get_layer_share, get_roles

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
CUBE = (Z, X, Y)
"""The three axes in rank order: Y varies fastest, within a node, then X (Plexus, section 4.2)."""
FIRST = Roles(R=Z, S=X, T=Y)


class RotatingLayout:
    """The pieces of each rank: its shares of layers, weights, input and output."""

    def __init__(
        self,
        grid: Mapping[AxisName, int],
        facts: Facts,
        shapes: Sequence[tuple[int, int]],
        *,
        projection: bool,
    ) -> None:
        self.grid, self.facts, self.shapes, self.projection = grid, facts, shapes, projection
        self.projection_roles, self.head_roles = FIRST, get_roles(len(shapes), FIRST)
        """The roles of the projection and the head."""

    def roles(self, layer: int) -> Roles:
        """Return the roles in a layer."""
        return get_roles(layer, FIRST)

    def shares(self, at: Coordinates) -> list[LayerShare]:
        """Return the shares of the rank at `at` in every layer."""
        return [
            get_layer_share(self.roles(layer), self.grid, at, self.facts.vertices, shape)
            for layer, shape in enumerate(self.shapes)
        ]

    def row_cuts(self) -> Cuts:
        """Return the blocks of vertices along each axis."""
        return {axis: split_range(self.facts.vertices, self.grid[axis]) for axis in CUBE}

    def column_cuts(self, width: int) -> Cuts:
        """Return the blocks of columns along each axis."""
        return {axis: split_evenly(width, self.grid[axis]) for axis in CUBE}

    def weight(self, weight: Weight, at: Coordinates) -> Piece:
        """Return a rank's piece of a weight: W is split over T and S, head and root over T and R, the projection over R
        and T, scales over S."""
        if weight.part is Part.SCALE:
            return Piece(range(1), self.shares(at)[weight.layer].H)
        if weight.part is Part.CONVOLUTION:
            share = self.shares(at)[weight.layer]
            return Piece(share.F, share.H)
        roles = self.projection_roles if weight.part is Part.PROJECTION else self.head_roles
        if weight.part is Part.ROOT:
            roles = self.roles(weight.layer)
        down, across = (roles.R, roles.T) if weight.part is Part.PROJECTION else (roles.T, roles.R)
        rows, cols = (
            split_evenly(size, self.grid[axis])[at[axis]]
            for size, axis in zip(weight.shape, (down, across), strict=True)
        )
        return Piece(rows, cols)

    def input(self, at: Coordinates) -> Piece:
        """Return a rank's piece of the features: rows over S, columns over R, or over T without a projection."""
        R, S, T = self.projection_roles
        across = R if self.projection else T
        return Piece(
            self.row_cuts()[S][at[S]], split_evenly(self.facts.features, self.grid[across])[at[across]]
        )

    @property
    def output_axes(self) -> tuple[AxisName, AxisName]:
        """The axes that split the rows and the classes of the output."""
        R, S, T = self.head_roles
        return (S, R) if self.projection else (S, T)

    def output(self, at: Coordinates) -> Piece:
        down, across = self.output_axes
        return Piece(
            self.row_cuts()[down][at[down]], split_evenly(self.facts.classes, self.grid[across])[at[across]]
        )

    def residual_layouts(self, layer: int) -> tuple[MatrixLayout, MatrixLayout]:
        """Return the layouts of a layer's input and output."""
        R, S, T = self.roles(layer)
        return MatrixLayout(rows=S, cols=T, copies=R), MatrixLayout(rows=R, cols=S, copies=T)

    def root_layouts(self, layer: int) -> tuple[MatrixLayout, MatrixLayout]:
        """Return the two layouts of a layer's root term: for the product H W, and for the layer's output."""
        R, S, T = self.roles(layer)
        return MatrixLayout(rows=S, cols=R, copies=T), MatrixLayout(rows=R, cols=S, copies=T)
