"""The layout and the stages of a product of matrices on a grid of rows, columns and fibres (SUMMA, Split-3D).

The vertices are cut into blocks by rows, each of these into one part a fibre layer. A layer k contracts over its own
vertices V_k, the k-th part of every block, in stages: in each, one grid column has the columns of A, and one grid row
has the rows of H. Cuts of the two that do not meet, on a grid that is not square, make more stages. With one fibre this
is SUMMA on two dimensions. It is arithmetic alone: no tensors, no ranks.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Call, Pending
from harness.ledger import Op, TensorName
from harness.ranges import balanced, common, part, within


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


# From H, cut by vertices over grid rows and by features over grid columns, to the layout of its transpose.
#
# Afterwards grid row a has its share of the features, of the vertices at which its grid column has columns
# of A: what a product H^T S by SUMMA starts from. On a square grid every rank trades with the one across
# the diagonal; on others with all whose pieces meet. Verifier (tests/parallel/test_transposition.py): the
# pieces of a whole matrix.


def transposed_layout(H_NF: Tensor, features: int, layout: Split3D, k: int, plane: Axis) -> Tensor:
    """The rows of H at `layout.columns_of(j, k)`, one after the other, of the features of grid row i."""
    i, j = divmod(plane.index, layout.cols)
    down, across = balanced(features, layout.rows), balanced(features, layout.cols)
    meetings = layout.meetings(k)
    sends, receives = {}, {}
    here, left = layout.rows_of(i, k).start, across[j].start
    for peer, (a, c) in enumerate(product(range(layout.rows), range(layout.cols))):
        rows, cols = meetings.get((i, c), range(0)), common(down[a], across[j])
        if rows and cols:
            sends[peer] = H_NF[rows.start - here : rows.stop - here, cols.start - left : cols.stop - left]
        rows, cols = meetings.get((a, j), range(0)), common(down[i], across[c])
        if rows and cols:
            receives[peer] = rows, cols
    shapes = {peer: (len(rows), len(cols)) for peer, (rows, cols) in receives.items()}
    arrived = plane.exchange(sends, shapes, dtype=H_NF.dtype, tensor=TensorName.H)
    heights = [len(meetings.get((a, j), ())) for a in range(layout.rows)]
    with plane.ledger.op(Op.COPY, tensor=TensorName.H):
        H_KF, tops = H_NF.new_empty((sum(heights), len(down[i]))), [0, *accumulate(heights)]
        for peer, (rows, cols) in receives.items():
            top, left = tops[peer // layout.cols], cols.start - down[i].start
            H_KF[top : top + len(rows), left : left + len(cols)] = arrived[peer]
    return H_KF


# What arrives stage by stage, in turn or with the next stage already under way.


def arrivals(stages: Iterable[Sequence[Call[Tensor]]], *, overlap: bool) -> Iterator[list[Tensor]]:
    """What the calls of each stage bring. With `overlap` the next stage leaves before one is handed out."""
    if not overlap:
        for calls in stages:
            yield [call.now() for call in calls]
        return
    under_way: list[list[Pending[Tensor]]] = []
    for calls in stages:
        under_way.append([call.later() for call in calls])
        if len(under_way) > 1:
            yield [pending.wait() for pending in under_way.pop(0)]
    for last in under_way:
        yield [pending.wait() for pending in last]
