"""SUMMA and Split-3D: layout, stages and broadcasts of a product on a grid of rows, columns and fibres.

The vertices are split into one block for each grid row, and each block into one part for each fibre layer. Layer k
contracts over its own vertices V_k, the k-th part of every block, in stages. In each stage one grid column has the
columns of A, and one grid row has the rows of H. On a rectangular grid, the cuts by rows and by columns do not
coincide, so there are more stages. With one fibre layer this is SUMMA in two dimensions.

Legend: N the vertices of this grid row, K the vertices of a stage, F this rank's share of the features.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from harness.base.ranges import intersect_ranges, slice_range, split_evenly, split_part
from harness.comm.axis import Axis
from harness.comm.call import Call, Pending
from harness.kernels.csr import PackedFormat
from harness.ledger import Op, TensorName
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
    """The layout of vertices on a grid of rows x cols x fibres; pure arithmetic, without tensors or ranks."""

    vertices: int
    rows: int
    cols: int
    fibres: int = 1
    width: int | None = None
    """The most vertices that a stage contracts over (the blocking parameter b)."""

    def block(self, i: int) -> range:
        """Return the vertices of grid row i."""
        return split_part(self.vertices, self.rows, i)

    def rows_of(self, i: int, k: int) -> range:
        """Return the rows of H that grid row i has in layer k."""
        block = self.block(i)
        return slice_range(block, split_part(len(block), self.fibres, k))

    def layer(self, k: int) -> list[range]:
        """Return V_k, the vertices of a layer, as one range for each grid row."""
        return [self.rows_of(i, k) for i in range(self.rows)]

    def columns_of(self, j: int, k: int) -> list[range]:
        """Return the columns of A that grid column j has in layer k, stage by stage."""
        return [stage.vertices for stage in self.stages(k) if stage.col == j]

    def stages(self, k: int) -> list[Stage]:
        """Return the stages of a layer, in order."""
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

    def intersections(self, k: int) -> dict[tuple[int, int], range]:
        """Return the vertices for which grid row i has rows of H and grid column j has columns of A, by (i, j)."""
        vertices_at: dict[tuple[int, int], range] = {}
        for vertices, row, col in self.stages(k):
            before = vertices_at.get((row, col), vertices)
            vertices_at[row, col] = range(before.start, vertices.stop)
        return vertices_at


# Redistribution of H, split by vertices over grid rows and by features over grid columns, to the layout of its
# transpose.
#
# Afterwards grid row i has its share of the features, at the vertices for which its grid column has columns of A: the
# layout from which SUMMA multiplies H^T S. On a square grid every rank exchanges with the rank across the diagonal, on
# other grids with all ranks that share a piece. Tested in tests/parallel/test_transposition.py against a full matrix.


def redistribute_transposed(H_NF: Tensor, features: int, layout: Split3D, k: int, plane: Axis) -> Tensor:
    """Return the rows of H at `layout.columns_of(j, k)`, in order, with the features of grid row i."""
    i, j = divmod(plane.index, layout.cols)
    down, across = split_evenly(features, layout.rows), split_evenly(features, layout.cols)
    intersections = layout.intersections(k)
    sends, receives = {}, {}
    top, left = layout.rows_of(i, k).start, across[j].start
    for peer, (a, c) in enumerate(product(range(layout.rows), range(layout.cols))):
        rows, cols = intersections.get((i, c), range(0)), intersect_ranges(down[a], across[j])
        if rows and cols:
            sends[peer] = H_NF[rows.start - top : rows.stop - top, cols.start - left : cols.stop - left]
        rows, cols = intersections.get((a, j), range(0)), intersect_ranges(down[i], across[c])
        if rows and cols:
            receives[peer] = rows, cols
    shapes = {peer: (len(rows), len(cols)) for peer, (rows, cols) in receives.items()}
    arrived = plane.exchange(sends, shapes, dtype=H_NF.dtype, tensor=TensorName.H)
    heights = [len(intersections.get((a, j), ())) for a in range(layout.rows)]
    with plane.ledger.op(Op.COPY, tensor=TensorName.H):
        H_KF, tops = H_NF.new_empty((sum(heights), len(down[i]))), [0, *accumulate(heights)]
        for peer, (rows, cols) in receives.items():
            top, left = tops[peer // layout.cols], cols.start - down[i].start
            H_KF[top : top + len(rows), left : left + len(cols)] = arrived[peer]
    return H_KF


# The calls of stages, one after the other or with the next stage in flight.


def run_stages(stages: Iterable[Sequence[Call[Tensor]]], *, overlap: bool) -> Iterator[list[Tensor]]:
    """Yield the results of the calls of each stage; with `overlap`, after the next stage has been issued."""
    if not overlap:
        for calls in stages:
            yield [call.now() for call in calls]
        return
    in_flight: list[list[Pending[Tensor]]] = []
    for calls in stages:
        in_flight.append([call.later() for call in calls])
        if len(in_flight) > 1:
            yield [pending.wait() for pending in in_flight.pop(0)]
    for last in in_flight:
        yield [pending.wait() for pending in last]


# The blocks of one rank, and their broadcasts.


class PackedBlock(NamedTuple):
    """The packed block of A or of A^T in one stage of a product."""

    stage: Stage
    form: PackedFormat
    bytes: Tensor | None
    """The bytes of the block on the rank that holds it, None elsewhere."""


class SummaBlocks:
    """One rank's packed blocks of A and of A^T, and the calls that bring the blocks of a product.

    Blocks arrive by a broadcast in each stage, or in one all-gather whose result is in the order of the stages.
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
        self.A_NK = self.A_T_NK = [self._pack_block(ctx, stage, transposed=False) for stage in self.stages]
        if ctx.facts.directed:
            self.A_T_NK = [self._pack_block(ctx, stage, transposed=True) for stage in self.stages]

    def _pack_block(self, ctx: Context, stage: Stage, *, transposed: bool) -> PackedBlock:
        rows, cols = self.layout.block(self.row), stage.vertices
        if stage.col == self.col:
            buffer, form = ctx.blocks.pack_adjacency(rows, cols, transposed=transposed)
            return PackedBlock(stage, form, buffer)
        return PackedBlock(stage, ctx.blocks.packed_form(rows, cols, transposed=transposed), None)

    def product_operands(
        self, A_NK: Sequence[PackedBlock], X_NF: Tensor, name: TensorName
    ) -> Iterator[Sequence[Tensor]]:
        """Yield the packed block of A and the rows of X for each stage of A X."""
        if self.at_once:
            return zip(self._gather_A(A_NK), self._gather_all_rows(X_NF, name), strict=True)
        stages = ((self._broadcast_A(A), self._broadcast_rows(X_NF, A.stage, name)) for A in A_NK)
        return run_stages(stages, overlap=self.overlap)

    def transposed_product_operands(self, H_KF: Tensor, S_NH: Tensor) -> Iterator[Sequence[Tensor]]:
        """Yield the rows of H, in the layout of its transpose, and the rows of S for each stage of H^T S."""
        if self.at_once:
            sizes = self._sum_by_column(self.heights)
            H_VF = self.row_group.all_gather(H_KF, sizes=sizes, tensor=TensorName.H)
            return zip(H_VF.split(self.heights), self._gather_all_rows(S_NH, TensorName.S), strict=True)
        stages = (
            (self._broadcast_transposed(H_KF, stage), self._broadcast_rows(S_NH, stage, TensorName.S))
            for stage in self.stages
        )
        return run_stages(stages, overlap=self.overlap)

    def gather_rows(self, X_NF: Tensor, width: int, name: TensorName) -> Iterator[Tensor]:
        """Yield the blocks of this grid row one by one; together they are whole rows of X, `width` wide."""
        rows = len(self.layout.rows_of(self.row, self.layer))
        shapes = [(rows, len(part)) for part in split_evenly(width, self.layout.cols)]
        if self.at_once:
            sizes = [rows * columns for _, columns in shapes]
            blocks = self.row_group.all_gather(X_NF.flatten(), sizes=sizes, tensor=name).split(sizes)
            return (block.view(shape) for block, shape in zip(blocks, shapes, strict=True))
        broadcast = self.row_group.broadcast.call
        stages = ([broadcast(X_NF, root=c, shape=shape, tensor=name)] for c, shape in enumerate(shapes))
        return (X for (X,) in run_stages(stages, overlap=self.overlap))

    # One broadcast for each stage.

    def _broadcast_A(self, A: PackedBlock) -> Call[Tensor]:
        """Broadcast the packed block of A of a stage along this grid row."""
        own = self.no_bytes if A.bytes is None else A.bytes
        shape, words = (A.form.nbytes,), A.form.words
        return self.row_group.broadcast.call(
            own, root=A.stage.col, shape=shape, words=words, tensor=TensorName.A
        )

    def _broadcast_rows(self, X_NF: Tensor, stage: Stage, name: TensorName) -> Call[Tensor]:
        """Broadcast the rows of X at the vertices of a stage along this grid column."""
        shape = len(stage.vertices), X_NF.shape[1]
        if stage.row == self.row:
            first = self.layout.rows_of(self.row, self.layer).start
            X_NF = X_NF[stage.vertices.start - first : stage.vertices.stop - first]
        return self.col_group.broadcast.call(X_NF, root=stage.row, shape=shape, tensor=name)

    def _broadcast_transposed(self, H_KF: Tensor, stage: Stage) -> Call[Tensor]:
        """Broadcast the rows of H, in its transposed layout, at the vertices of a stage along this grid row."""
        shape = len(stage.vertices), H_KF.shape[1]
        if stage in self.starts:
            H_KF = H_KF[self.starts[stage] : self.starts[stage] + len(stage.vertices)]
        return self.row_group.broadcast.call(H_KF, root=stage.col, shape=shape, tensor=TensorName.H)

    # One all-gather, whose result is split by stages.

    def _gather_A(self, A_NK: Sequence[PackedBlock]) -> Iterator[Tensor]:
        own = [A.bytes for A in A_NK if A.bytes is not None]
        sizes, words = [A.form.nbytes for A in A_NK], [A.form.words for A in A_NK]
        with self.ledger.op(Op.COPY, tensor=TensorName.A):
            mine = own[0] if len(own) == 1 else torch.cat([self.no_bytes, *own])
        everything = self.row_group.all_gather(
            mine, sizes=self._sum_by_column(sizes), words=self._sum_by_column(words), tensor=TensorName.A
        )
        for A, packed in zip(A_NK, everything.split(sizes), strict=True):
            with self.ledger.op(Op.COPY, tensor=TensorName.A):
                yield packed if packed.storage_offset() % A.form.dtype.itemsize == 0 else packed.clone()

    def _gather_all_rows(self, X_NF: Tensor, name: TensorName) -> Sequence[Tensor]:
        sizes = [len(rows) for rows in self.layout.layer(self.layer)]
        X_VF = self.col_group.all_gather(X_NF, sizes=sizes, tensor=name)
        return list(X_VF.split(self.heights))

    def _sum_by_column(self, sizes: Sequence[int]) -> list[int]:
        """Return the sums over the stages of each grid column."""
        sums = [0] * self.layout.cols
        for stage, size in zip(self.stages, sizes, strict=True):
            sums[stage.col] += size
        return sums

    def gather_matrix(self, Y: Tensor, down: Sequence[range], across: Sequence[range]) -> Tensor:
        """Gather a matrix from the blocks of all ranks of this fibre layer."""
        sizes = [len(a) * len(c) for a in down for c in across]
        flat = self.plane.all_gather(Y.flatten(), sizes=sizes, tensor=TensorName.DW)
        blocks = iter(flat.split(sizes))
        return torch.cat(
            [torch.cat([next(blocks).view(len(a), len(c)) for c in across], dim=1) for a in down]
        )
