"""SUMMA and Split-3D: the layout and the stages of a product on a grid of rows, columns and fibres, and its broadcasts.

The vertices are cut into blocks by rows, and each block into one part a fibre layer. A layer k contracts over its own
vertices V_k, the k-th part of every block, in stages: in each stage one grid column has the columns of A, and one grid
row has the rows of H. On a grid that is not square, cuts by rows and by columns that do not meet make more stages. With
one fibre this is SUMMA on two dimensions.

Legend: N the vertices of this grid row, K the vertices of a stage, F this rank's share of the features.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Call, Pending
from harness.kernels.csr import PackedFormat
from harness.ledger import Op, TensorName
from harness.ranges import intersect, split_evenly, split_part, subrange
from harness.strategies.cagnet.terms import COL, ROW
from harness.strategy import Context


class Stage(NamedTuple):
    """The vertices over which one stage contracts, and their owners."""

    vertices: range
    row: int
    """The grid row that has the rows of H at these vertices."""
    col: int
    """The grid column that has the columns of A at these vertices."""


class Split3D(NamedTuple):
    """The layout of vertices on rows x cols x fibres. It is arithmetic alone, without tensors and ranks."""

    vertices: int
    rows: int
    cols: int
    fibres: int = 1
    width: int | None = None
    """The most vertices that a stage contracts over (the blocking parameter b)."""

    def block(self, i: int) -> range:
        """The vertices of grid row i."""
        return split_part(self.vertices, self.rows, i)

    def rows_of(self, i: int, k: int) -> range:
        """The rows of H that grid row i has in layer k."""
        block = self.block(i)
        return subrange(block, split_part(len(block), self.fibres, k))

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
        """The vertices at which a grid row has the rows of H and a grid column the columns of A, by row and column."""
        met: dict[tuple[int, int], range] = {}
        for vertices, row, col in self.stages(k):
            before = met.get((row, col), vertices)
            met[row, col] = range(before.start, vertices.stop)
        return met


# From H, cut by vertices over grid rows and by features over grid columns, to the layout of its transpose.
#
# Afterwards grid row a has its share of the features, at the vertices at which its grid column has columns
# of A: the layout from which SUMMA multiplies H^T S. On a square grid every rank trades with the rank across
# the diagonal; on other grids with all ranks that share a piece. Verifier
# (tests/parallel/test_transposition.py): the pieces of a whole matrix.


def transposed_layout(H_NF: Tensor, features: int, layout: Split3D, k: int, plane: Axis) -> Tensor:
    """The rows of H at `layout.columns_of(j, k)`, in order, with the features of grid row i."""
    i, j = divmod(plane.index, layout.cols)
    down, across = split_evenly(features, layout.rows), split_evenly(features, layout.cols)
    meetings = layout.meetings(k)
    sends, receives = {}, {}
    top, left = layout.rows_of(i, k).start, across[j].start
    for peer, (a, c) in enumerate(product(range(layout.rows), range(layout.cols))):
        rows, cols = meetings.get((i, c), range(0)), intersect(down[a], across[j])
        if rows and cols:
            sends[peer] = H_NF[rows.start - top : rows.stop - top, cols.start - left : cols.stop - left]
        rows, cols = meetings.get((a, j), range(0)), intersect(down[i], across[c])
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


# The calls of stages, in turn or with the next stage under way.


def arrivals(stages: Iterable[Sequence[Call[Tensor]]], *, overlap: bool) -> Iterator[list[Tensor]]:
    """The results of the calls of each stage. With `overlap` the next stage is issued before a stage is yielded."""
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


# The blocks of one rank, and their broadcasts.


class Travelling(NamedTuple):
    """The block of A or of A^T in one stage of a product."""

    stage: Stage
    form: PackedFormat
    bytes: Tensor | None
    """The packed block, on the rank that holds it."""


class SummaBlocks:
    """One rank's blocks of A and of A^T, packed to travel, and how the blocks of a product arrive.

    They arrive by a broadcast for each stage, or by one all-gather, whose result is in the order of the stages.
    """

    def __init__(self, ctx: Context, layout: Split3D, layer: int, *, overlap: bool, at_once: bool) -> None:
        self.layout, self.layer, self.overlap, self.at_once = layout, layer, overlap, at_once
        self.row, self.col = ctx.at[ROW], ctx.at[COL]
        self.row_group, self.col_group = ctx.grid[COL], ctx.grid[ROW]
        self.plane, self.ledger = ctx.grid.axis((ROW, COL)), ctx.ledger
        self.stages = layout.stages(layer)
        self.heights = [len(stage.vertices) for stage in self.stages]
        own = [stage for stage in self.stages if stage.col == self.col]
        starts = accumulate((len(stage.vertices) for stage in own), initial=0)
        self.starts = dict(zip(own, starts, strict=False))
        self.no_bytes = torch.empty(0, dtype=torch.uint8, device=ctx.device)
        self.A_NK = self.A_T_NK = [self._block(ctx, stage, transposed=False) for stage in self.stages]
        if ctx.facts.directed:
            self.A_T_NK = [self._block(ctx, stage, transposed=True) for stage in self.stages]

    def _block(self, ctx: Context, stage: Stage, *, transposed: bool) -> Travelling:
        rows, cols = self.layout.block(self.row), stage.vertices
        if stage.col == self.col:
            buffer, form = ctx.blocks.packed(rows, cols, transposed=transposed)
            return Travelling(stage, form, buffer)
        return Travelling(stage, ctx.blocks.form(rows, cols, transposed=transposed), None)

    def of_product(
        self, A_NK: Sequence[Travelling], X_NF: Tensor, name: TensorName
    ) -> Iterator[Sequence[Tensor]]:
        """The packed block of A and the rows of X of each stage of A X."""
        if self.at_once:
            return zip(self._all_of_A(A_NK), self._all_rows(X_NF, name), strict=True)
        stages = ((self._block_of_A(A), self._block_of_rows(X_NF, A.stage, name)) for A in A_NK)
        return arrivals(stages, overlap=self.overlap)

    def of_transposed_product(self, H_KF: Tensor, S_NH: Tensor) -> Iterator[Sequence[Tensor]]:
        """The rows of H, which has the layout of its transpose, and those of S, of each stage of H^T S."""
        if self.at_once:
            sizes = self._by_column(self.heights)
            H_VF = self.row_group.all_gather(H_KF, sizes=sizes, tensor=TensorName.H)
            return zip(H_VF.split(self.heights), self._all_rows(S_NH, TensorName.S), strict=True)
        stages = (
            (self._block_of_transposed(H_KF, stage), self._block_of_rows(S_NH, stage, TensorName.S))
            for stage in self.stages
        )
        return arrivals(stages, overlap=self.overlap)

    def whole_rows(self, X_NF: Tensor, width: int, name: TensorName) -> Iterator[Tensor]:
        """The blocks of this grid row in turn: together they are whole rows of X, of this width."""
        rows = len(self.layout.rows_of(self.row, self.layer))
        shapes = [(rows, len(part)) for part in split_evenly(width, self.layout.cols)]
        if self.at_once:
            sizes = [rows * columns for _, columns in shapes]
            blocks = self.row_group.all_gather(X_NF.flatten(), sizes=sizes, tensor=name).split(sizes)
            return (block.view(shape) for block, shape in zip(blocks, shapes, strict=True))
        broadcast = self.row_group.broadcast.call
        stages = ([broadcast(X_NF, root=c, shape=shape, tensor=name)] for c, shape in enumerate(shapes))
        return (X for (X,) in arrivals(stages, overlap=self.overlap))

    # Broadcasts, one for each stage.

    def _block_of_A(self, A: Travelling) -> Call[Tensor]:
        """Broadcasts the packed block of A of a stage along this grid row."""
        own = self.no_bytes if A.bytes is None else A.bytes
        shape, words = (A.form.nbytes,), A.form.words
        return self.row_group.broadcast.call(
            own, root=A.stage.col, shape=shape, words=words, tensor=TensorName.A
        )

    def _block_of_rows(self, X_NF: Tensor, stage: Stage, name: TensorName) -> Call[Tensor]:
        """Broadcasts the rows of X at the vertices of a stage along this grid column."""
        shape = len(stage.vertices), X_NF.shape[1]
        if stage.row == self.row:
            first = self.layout.rows_of(self.row, self.layer).start
            X_NF = X_NF[stage.vertices.start - first : stage.vertices.stop - first]
        return self.col_group.broadcast.call(X_NF, root=stage.row, shape=shape, tensor=name)

    def _block_of_transposed(self, H_KF: Tensor, stage: Stage) -> Call[Tensor]:
        """Broadcasts the rows of H, in the layout of its transpose, at the vertices of a stage along this grid row."""
        shape = len(stage.vertices), H_KF.shape[1]
        if stage in self.starts:
            H_KF = H_KF[self.starts[stage] : self.starts[stage] + len(stage.vertices)]
        return self.row_group.broadcast.call(H_KF, root=stage.col, shape=shape, tensor=TensorName.H)

    # All-gathers, whose results are cut by stages.

    def _all_of_A(self, A_NK: Sequence[Travelling]) -> Iterator[Tensor]:
        own = [A.bytes for A in A_NK if A.bytes is not None]
        sizes, words = [A.form.nbytes for A in A_NK], [A.form.words for A in A_NK]
        with self.ledger.op(Op.COPY, tensor=TensorName.A):
            mine = own[0] if len(own) == 1 else torch.cat([self.no_bytes, *own])
        everything = self.row_group.all_gather(
            mine, sizes=self._by_column(sizes), words=self._by_column(words), tensor=TensorName.A
        )
        for A, packed in zip(A_NK, everything.split(sizes), strict=True):
            with self.ledger.op(Op.COPY, tensor=TensorName.A):
                yield packed if packed.storage_offset() % A.form.dtype.itemsize == 0 else packed.clone()

    def _all_rows(self, X_NF: Tensor, name: TensorName) -> Sequence[Tensor]:
        sizes = [len(rows) for rows in self.layout.layer(self.layer)]
        X_VF = self.col_group.all_gather(X_NF, sizes=sizes, tensor=name)
        return list(X_VF.split(self.heights))

    def _by_column(self, sizes: Sequence[int]) -> list[int]:
        """The sums over the stages of each grid column."""
        sums = [0] * self.layout.cols
        for stage, size in zip(self.stages, sizes, strict=True):
            sums[stage.col] += size
        return sums

    def gathered(self, Y: Tensor, down: Sequence[range], across: Sequence[range]) -> Tensor:
        """Gathers a matrix from the blocks of all ranks of this fibre layer."""
        sizes = [len(a) * len(c) for a in down for c in across]
        flat = self.plane.all_gather(Y.flatten(), sizes=sizes, tensor=TensorName.DW)
        blocks = iter(flat.split(sizes))
        return torch.cat(
            [torch.cat([next(blocks).view(len(a), len(c)) for c in across], dim=1) for a in down]
        )
