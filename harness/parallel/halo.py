"""The halo exchange: a block row of A gets the rows that it needs of other ranks, and only those, in one all-to-all.

Every rank reads from the graph which of its rows the others need, so no lists of indices are sent. Rows arrive in the
order of their owners and, from each owner, in ascending order. Gradients return to the owners, which add them up in the
order of the ranks that sent them: the same bits every time.

Legend: N this rank's vertices, M the rows that leave, K the rows that arrive. A_NN is a block row at this rank's own
vertices, A_NK the rest of the block row without its empty columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Call
from harness.kernels import Csr
from harness.kernels.csr import take
from harness.kernels.recorded import Kernels
from harness.ledger import Op, TensorName
from harness.strategy import LONG, Context, Counts, csr_bytes


class Halo(NamedTuple):
    """The rows that one rank sends to each member of an axis, and how many rows each member sends to this rank."""

    send_rows: Tensor
    """Indices (M,) of the rows that others need, in the order of the others."""
    send: list[int]
    receive: list[int]

    def exchange(self, over: Axis, kernels: Kernels, H_NF: Tensor, moves: TensorName) -> Call[Tensor]:
        """Sends the rows that others need; the result has the rows that this rank needs."""
        leaving_MF = kernels.run(Op.COPY, moves, take, H_NF, self.send_rows)
        return over.all_to_all.call(leaving_MF, send=self.send, receive=self.receive, tensor=moves)

    def exchange_gradients(self, over: Axis, dH_KF: Tensor, moves: TensorName) -> Call[Tensor]:
        """Sends the gradients of the rows that arrived to their owners; the result has those of the rows that left."""
        return over.all_to_all.call(dH_KF, send=self.receive, receive=self.send, tensor=moves)


class BlockRow(NamedTuple):
    """A block row of A or of A^T, cut at this rank's boundary."""

    A_NN: Csr | None
    """None where this rank's own rows are no stage of its own product."""
    A_NK: Csr
    halo: Halo


def build_block_row(
    ctx: Context, blocks: Sequence[range], own: int, stages: range, *, transposed: bool = False
) -> BlockRow:
    """The block row of the rank with the vertices `blocks[own]`, with the columns at the blocks in `stages`."""
    halo, A_NK = build_halo(ctx, blocks, own, stages, transposed=transposed)
    A_NN = ctx.blocks.adjacency(blocks[own], blocks[own], transposed=transposed) if own in stages else None
    return BlockRow(A_NN, ctx.memory.hold_matrix(A_NK), halo)


def build_halo(
    ctx: Context, blocks: Sequence[range], own: int, stages: range, *, transposed: bool = False
) -> tuple[Halo, Csr]:
    """The halo of such a block row, and A_NK on the host."""
    rows, others = blocks[own], [i for i in range(len(blocks)) if i != own]
    wanted = [i for i in others if i in stages]
    served = others if own in stages else []
    A_NK, arriving = ctx.blocks.compact_on_host(rows, [blocks[i] for i in wanted], transposed=transposed)
    leaving, needed = ctx.blocks.needed([blocks[i] for i in served], rows, transposed=transposed)
    receive, send = dict(zip(wanted, arriving, strict=True)), dict(zip(served, needed, strict=True))
    sizes = ([rows.get(i, 0) for i in range(len(blocks))] for rows in (send, receive))
    return Halo(leaving, *sizes), A_NK


class Boundary(NamedTuple):
    """The sizes of what `block_row` cuts, counted in the graph, for formulas."""

    counts: Counts
    blocks: Sequence[range]
    own: int
    stages: range

    def incoming_rows(self, *, transposed: bool = False) -> dict[int, int]:
        """The number of rows that arrive from each owner."""
        return {
            i: self.counts.filled(self.blocks[self.own], self.blocks[i], transposed=transposed)
            for i in self._others(self.stages)
        }

    def outgoing_rows(self, *, transposed: bool = False) -> dict[int, int]:
        """The number of rows that leave for each other rank."""
        served = range(len(self.blocks)) if self.own in self.stages else range(0)
        return {
            i: self.counts.filled(self.blocks[i], self.blocks[self.own], transposed=transposed)
            for i in self._others(served)
        }

    def index_bytes(self, *, transposed: bool = False) -> int:
        """The bytes of the indices of the rows that leave."""
        return LONG * sum(self.outgoing_rows(transposed=transposed).values())

    def compact_bytes(self, precision: str, *, transposed: bool = False) -> int:
        """The bytes of A_NK."""
        rows = self.blocks[self.own]
        return csr_bytes(len(rows), self.nonzeros(transposed=transposed), precision)

    def nonzeros(self, *, transposed: bool = False) -> int:
        """The nonzeros of A_NK."""
        rows = self.blocks[self.own]
        wanted = (self.blocks[i] for i in self._others(self.stages))
        return sum(self.counts.nonzeros(rows, cols, transposed=transposed) for cols in wanted)

    def _others(self, numbers: range) -> list[int]:
        return [i for i in numbers if i != self.own]


def offset_positions(places: list[Tensor], sizes: list[int]) -> Tensor:
    """Converts places within lists of these sizes to places in the concatenated list."""
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat([each + start for each, start in zip(places, starts[:-1], strict=True)])
