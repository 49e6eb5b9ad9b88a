"""The layout and the stages of a product of matrices on a grid of rows, columns and fibres (SUMMA, Split-3D).

The vertices are cut into blocks by rows, each of these into one part a fibre layer. A layer k contracts over its own
vertices V_k, the k-th part of every block, in stages: in each, one grid column has the columns of A, and one grid row
has the rows of H. Cuts of the two that do not meet, on a grid that is not square, make more stages. With one fibre this
is SUMMA on two dimensions. It is arithmetic alone: no tensors, no ranks.
"""

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import NamedTuple

from harness.ranges import part, within


class Stage(NamedTuple):
    """Vertices over which one stage contracts, and who has them."""

    vertices: range
    row: int
    """The grid row that has these rows of H."""
    col: int
    """The grid column that has these columns of A."""


class Split3D(NamedTuple):
    """How vertices are laid out on rows x cols x fibres."""

    vertices: int
    rows: int
    cols: int
    fibres: int = 1
    width: int | None = None
    """The most vertices that a stage contracts over (the blocking parameter b)."""

    def block(self, i: int) -> range:
        """The vertices of grid row i."""
        return part(self.vertices, self.rows, i)

    def rows_of(self, i: int, k: int) -> range:
        """The rows of H that grid row i has in layer k."""
        block = self.block(i)
        return within(block, part(len(block), self.fibres, k))

    def layer(self, k: int) -> list[range]:
        """V_k: the vertices of a layer, one range a grid row."""
        return [self.rows_of(i, k) for i in range(self.rows)]

    def columns_of(self, j: int, k: int) -> list[range]:
        """The columns of A that grid column j has in layer k, stage by stage."""
        return [stage.vertices for stage in self.stages(k) if stage.col == j]

    def stages(self, k: int) -> list[Stage]:
        """The stages of a layer, in order."""
        layer = self.layer(k)
        starts = [0, *accumulate(map(len, layer))]
        share = max(1, -(-starts[-1] // self.cols))
        cuts = sorted({*starts, *range(0, starts[-1], share)})
        if self.width:
            cuts = [cut for low, high in pairwise(cuts) for cut in range(low, high, self.width)] + cuts[-1:]
        stages = []
        for low, high in pairwise(cuts):
            row = bisect_right(starts, low) - 1
            vertices = layer[row][low - starts[row] : high - starts[row]]
            stages.append(Stage(vertices, row, low // share))
        return stages

    def meetings(self, k: int) -> dict[tuple[int, int], range]:
        """By grid row and grid column: the vertices whose rows of H the one has and whose columns of A the other."""
        found: dict[tuple[int, int], range] = {}
        for vertices, row, col in self.stages(k):
            before = found.get((row, col), vertices)
            found[row, col] = range(before.start, vertices.stop)
        return found
