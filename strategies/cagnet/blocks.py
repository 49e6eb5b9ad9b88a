"""Blocks of CAGNET's 2D and 3D algorithms: which one a rank has, and how they travel along a row and along a column.

What is computed from them is said in `twod` and `threed`.
Legend: N the vertices of this grid row, K those of a stage, F this rank's share of the features.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.call import Call
from harness.kernels.csr import Form
from harness.ledger import AxisName, TensorName
from harness.parallel.row_strategy import RowOperators
from harness.ranges import balanced
from harness.strategy import Context, Strategy
from strategies.cagnet.summa import Split3D, Stage, arrivals

ROW, COL = AxisName.ROW, AxisName.COL


class Travelling(NamedTuple):
    """A block of A or A^T that one stage multiplies by."""

    stage: Stage
    form: Form
    bytes: Tensor | None
    """On the rank that has it."""


class Blocks(RowOperators):
    """One rank's blocks of A and of A^T, packed to travel, and its blocks of everything dense."""

    def __init__(
        self, ctx: Context, strategy: Strategy, layout: Split3D, layer: int, *, overlap: bool
    ) -> None:
        every_row, at = tuple(axis for axis in ctx.grid.shape if axis is not COL), ctx.at
        super().__init__(ctx, strategy, over=every_row, across=COL)
        self.layout, self.layer, self.overlap = layout, layer, overlap
        self.row_number, self.col_number = at[ROW], at[COL]
        self.along_row, self.along_col = ctx.grid[COL], ctx.grid[ROW]
        self.stages = layout.stages(layer)
        mine = [stage for stage in self.stages if stage.col == at[COL]]
        starts = accumulate((len(stage.vertices) for stage in mine), initial=0)
        self.starts = dict(zip(mine, starts, strict=False))
        self.plane = ctx.grid.axis((ROW, COL))
        self.no_bytes = torch.empty(0, dtype=torch.uint8, device=ctx.device)
        self.A_NK = self._travelling(ctx, transposed=False)
        self.A_T_NK = self._travelling(ctx, transposed=True) if ctx.facts.directed else self.A_NK

    def _travelling(self, ctx: Context, *, transposed: bool) -> list[Travelling]:
        return [self._block(ctx, stage, transposed) for stage in self.stages]

    def _block(self, ctx: Context, stage: Stage, transposed: bool) -> Travelling:
        rows, cols = self.layout.block(self.row_number), stage.vertices
        if stage.col == self.col_number:
            buffer, form = ctx.blocks.packed(rows, cols, transposed=transposed)
            return Travelling(stage, form, buffer)
        return Travelling(stage, ctx.blocks.form(rows, cols, transposed=transposed), None)

    def block_of_A(self, A: Travelling) -> Call[Tensor]:
        """The block of A of a stage, out of this grid row, packed."""
        mine = self.no_bytes if A.bytes is None else A.bytes
        shape, words = (A.form.bytes,), A.form.words
        return self.along_row.broadcast.call(
            mine, root=A.stage.col, shape=shape, words=words, tensor=TensorName.A
        )

    def rows_of(self, X_NF: Tensor, stage: Stage, name: TensorName) -> Call[Tensor]:
        """The rows of X at the vertices of a stage, out of this grid column."""
        shape, here = (len(stage.vertices), X_NF.shape[1]), self.rows.start
        if stage.row == self.row_number:
            X_NF = X_NF[stage.vertices.start - here : stage.vertices.stop - here]
        return self.along_col.broadcast.call(X_NF, root=stage.row, shape=shape, tensor=name)

    def rows_of_transposed(self, H_KF: Tensor, stage: Stage) -> Call[Tensor]:
        """The rows of H, in the layout of its transpose, at the vertices of a stage, out of this grid row."""
        shape = len(stage.vertices), H_KF.shape[1]
        if stage in self.starts:
            H_KF = H_KF[self.starts[stage] : self.starts[stage] + len(stage.vertices)]
        return self.along_row.broadcast.call(H_KF, root=stage.col, shape=shape, tensor=TensorName.H)

    def row(self, X_NF: Tensor, width: int, name: TensorName) -> Iterator[Tensor]:
        """Every block of the rows of X, which have this width, in turn."""
        shapes = [(len(self.rows), len(part)) for part in balanced(width, self.layout.cols)]
        broadcast = self.along_row.broadcast.call
        stages = ([broadcast(X_NF, root=c, shape=shape, tensor=name)] for c, shape in enumerate(shapes))
        return (X for (X,) in arrivals(stages, overlap=self.overlap))

    def gathered(self, Y: Tensor, down: Sequence[range], across: Sequence[range]) -> Tensor:
        """The whole matrix from the block of every rank of a plane."""
        sizes = [len(a) * len(c) for a in down for c in across]
        flat = self.plane.all_gather(Y.flatten(), sizes=sizes, tensor=TensorName.DW)
        blocks = iter(flat.split(sizes))
        return torch.cat(
            [torch.cat([next(blocks).view(len(a), len(c)) for c in across], dim=1) for a in down]
        )
