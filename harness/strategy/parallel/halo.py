"""The halo exchange: one all-to-all that sends each rank exactly the remote rows that its block row of A needs.

Every rank derives from the graph which of its rows the others need, so no indices are sent. Rows are received in the
order of their owners and, from each owner, in ascending order. Gradients are returned to the owners, which sum them in
rank order, so the result is deterministic.

Legend: N this rank's vertices, M the rows that it sends, K the rows that it receives. A_NN is the part of the block row
at this rank's vertices, A_NK the rest without its empty columns.
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
    """The rows that a rank sends to each member of an axis, and the number of rows that it receives from each."""

    send_rows: Tensor
    """Indices (M,) of the rows that other members need, in the order of the members."""
    send: list[int]
    receive: list[int]

    def exchange(self, over: Axis, kernels: Kernels, H_NF: Tensor, moves: TensorName) -> Call[Tensor]:
        """Send the rows that others need; the result of the call is the rows that this rank needs."""
        leaving_MF = kernels.run(Op.COPY, moves, take, H_NF, self.send_rows)
        return over.all_to_all.call(leaving_MF, send=self.send, receive=self.receive, tensor=moves)

    def exchange_gradients(self, over: Axis, dH_KF: Tensor, moves: TensorName) -> Call[Tensor]:
        """Return the gradients of received rows to their owners; the result is the gradients of the rows it sent."""
        return over.all_to_all.call(dH_KF, send=self.receive, receive=self.send, tensor=moves)


class BlockRow(NamedTuple):
    """A block row of A or A^T, split into local and remote columns."""

    A_NN: Csr | None
    """None if this rank's product does not include its local columns."""
    A_NK: Csr
    halo: Halo

    def multiply(
        self,
        over: Axis,
        kernels: Kernels,
        H_NF: Tensor,
        *,
        moves: TensorName,
        makes: TensorName,
        overlap: bool,
    ) -> Tensor:
        """Return A H on this rank.

        1. Send the rows that other ranks need.
        2. Multiply by this rank's own rows; with `overlap`, while the rows of other ranks arrive.
        3. Multiply by the rows that arrived.
        """
        arriving = self.halo.exchange(over, kernels, H_NF, moves).issue(overlap=overlap)
        T_NF = None if self.A_NN is None else kernels.spmm(self.A_NN, H_NF, makes)
        return kernels.spmm(self.A_NK, arriving.wait(), makes, add_to=T_NF)


def build_block_row(
    ctx: Context, blocks: Sequence[range], own: int, stages: range, *, transposed: bool = False
) -> BlockRow:
    """Build the block row of the rank that owns `blocks[own]`, restricted to the columns of the blocks in `stages`."""
    halo, A_NK = build_halo(ctx, blocks, own, stages, transposed=transposed)
    A_NN = ctx.blocks.adjacency(blocks[own], blocks[own], transposed=transposed) if own in stages else None
    return BlockRow(A_NN, ctx.memory.hold_matrix(A_NK), halo)


def build_halo(
    ctx: Context, blocks: Sequence[range], own: int, stages: range, *, transposed: bool = False
) -> tuple[Halo, Csr]:
    """Return the halo of such a block row, and A_NK on the host."""
    rows, others = blocks[own], [i for i in range(len(blocks)) if i != own]
    sources = [i for i in others if i in stages]
    targets = others if own in stages else []
    A_NK, receive_sizes = ctx.blocks.compact_adjacency(
        rows, [blocks[i] for i in sources], transposed=transposed
    )
    send_rows, send_sizes = ctx.blocks.needed_columns(
        [blocks[i] for i in targets], rows, transposed=transposed
    )
    send = _sizes_by_member(targets, send_sizes, len(blocks))
    receive = _sizes_by_member(sources, receive_sizes, len(blocks))
    return Halo(send_rows, send, receive), A_NK


def _sizes_by_member(members: Sequence[int], sizes: Sequence[int], count: int) -> list[int]:
    """Return the size for each of `count` members; 0 for members that are not listed."""
    by_member = dict(zip(members, sizes, strict=True))
    return [by_member.get(i, 0) for i in range(count)]


class Boundary(NamedTuple):
    """The sizes of what `build_block_row` returns, counted in the graph, for cost formulas."""

    counts: Counts
    blocks: Sequence[range]
    own: int
    stages: range

    def incoming_rows(self, *, transposed: bool = False) -> dict[int, int]:
        """Return the number of rows received from each owner."""
        return {
            i: self.counts.nonempty_columns(self.blocks[self.own], self.blocks[i], transposed=transposed)
            for i in self._others(self.stages)
        }

    def outgoing_rows(self, *, transposed: bool = False) -> dict[int, int]:
        """Return the number of rows sent to each other rank."""
        targets = range(len(self.blocks)) if self.own in self.stages else range(0)
        return {
            i: self.counts.nonempty_columns(self.blocks[i], self.blocks[self.own], transposed=transposed)
            for i in self._others(targets)
        }

    def index_bytes(self, *, transposed: bool = False) -> int:
        """Return the bytes of the indices of the rows that are sent."""
        return LONG * sum(self.outgoing_rows(transposed=transposed).values())

    def compact_bytes(self, precision: str, *, transposed: bool = False) -> int:
        """Return the bytes of A_NK."""
        rows = self.blocks[self.own]
        return csr_bytes(len(rows), self.nonzeros(transposed=transposed), precision)

    def nonzeros(self, *, transposed: bool = False) -> int:
        """Return the nonzeros of A_NK."""
        rows = self.blocks[self.own]
        sources = (self.blocks[i] for i in self._others(self.stages))
        return sum(self.counts.nonzeros(rows, cols, transposed=transposed) for cols in sources)

    def _others(self, numbers: range) -> list[int]:
        return [i for i in numbers if i != self.own]


def offset_positions(places: list[Tensor], sizes: list[int]) -> Tensor:
    """Convert positions within lists of these sizes to positions in the concatenated list."""
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat([each + start for each, start in zip(places, starts[:-1], strict=True)])
