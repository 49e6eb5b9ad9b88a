"""What a rank of G3 computes and sends in which order: bins, and the tables of who needs which rows of them (5.2, 6).

Every rank has asked the others for the bins of what it needs of them, so a message has a bin of its owner and nothing
but rows. Everything is made once.

Legend: N this rank's vertices, K those that it needs of others, in the order of owner, bin and number.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels import Csr, transpose
from harness.kernels.csr import from_coo, row_of, take
from harness.kernels.parts import beside, select_rows, without_empty_columns
from harness.ledger import Direction, TensorName
from harness.strategy import Context
from strategies.g3.bins import Bins, bins_of
from strategies.g3.crossing import Address, crossing, returns
from strategies.g3.messages import FORWARD, Due


class Bin(NamedTuple):
    """Rows that are computed together."""

    rows: Tensor
    """Which of this rank's vertices."""
    sends: Mapping[int, Tensor]
    """By peer, which of this rank's vertices it needs of this bin."""
    needs: Sequence[Address]
    """Messages without which the bin cannot be computed."""
    completes: Sequence[Address]
    """Messages whose gradients can be computed after this bin; on the way back the last bin comes first."""


class Message(NamedTuple):
    """Rows of another rank's bin, and the gradients that go back to it."""

    slots: range
    """Their places among K."""
    entries: range
    """Theirs in A_KN."""


class Schedule(NamedTuple):
    """All of a rank."""

    listed: Bins
    bins: Sequence[Bin]
    messages: Mapping[Address, Message]
    turns: Mapping[Address, int]
    """In which turn of later layers their owners compute them."""
    returns: Mapping[Address, int]
    """In which turn of a peer the gradients of a bin of this rank come back."""
    halo: int
    """The number of K."""

    def due(self, direction: Direction, layer: int) -> dict[Address, Due]:
        """What is to come of the input of a layer, or of its gradient. What the first makes comes in its order."""
        if direction is FORWARD:
            return {
                at: Due(len(message.slots), at[1] if layer < 2 else self.turns[at])
                for at, message in self.messages.items()
            }
        return {
            (peer, number): Due(len(rows), self.returns[peer, number])
            for number, each in enumerate(self.bins)
            for peer, rows in each.sends.items()
        }


def schedule(
    ctx: Context, blocks: Sequence[range], own: int, size: int, *, priority: bool, at_once: bool
) -> tuple[Schedule, Csr]:
    """Of the rank whose vertices are `blocks[own]`, in bins of so many vertices; and A_NK, on the host."""
    bins_by_rank = cache(lambda rank: bins_of(ctx, blocks[rank], size, priority=priority, at_once=at_once))
    listed = bins_by_rank(own)
    needed, turns, sends = crossing(ctx, blocks, own, bins_by_rank)
    A_NK = _columns_of(ctx, blocks, own, needed)
    messages, ready = _messages(needed, transpose(A_NK), listed)
    bins = [
        Bin(
            ctx.memory.hold(TensorName.INDEX, rows.clone()),
            {
                peer: ctx.memory.hold(TensorName.INDEX, there[i])
                for peer, there in sends.items()
                if i in there
            },
            _needs(rows_of(A_NK, rows), messages),
            [address for address, first in ready.items() if first == i],
        )
        for i, rows in enumerate(listed.parts)
    ]
    back = {address: len(bins) - 1 - first for address, first in ready.items()}
    coming_back = returns(ctx, blocks, own, bins_by_rank, sends, back)
    return Schedule(listed, bins, messages, turns, coming_back, A_NK.cols), A_NK


def _columns_of(ctx: Context, blocks: Sequence[range], own: int, needed: Mapping[Address, Tensor]) -> Csr:
    """A at the vertices of others, without empty columns, these in the order of the messages."""
    owners = sorted({peer for peer, _ in needed})
    found = [without_empty_columns(ctx.blocks.host_block(blocks[own], blocks[peer])) for peer in owners]
    A = beside(found or [ctx.blocks.host_block(blocks[own], range(0))])
    if A.col.is_meta:
        return A
    place, start = torch.empty(A.cols, dtype=torch.int64), 0
    for owner in owners:
        mine = torch.cat([vertices for (peer, _), vertices in needed.items() if peer == owner])
        place[start : start + len(mine)] = start + torch.argsort(mine)
        start += len(mine)
    return from_coo(row_of(A), take(place, A.col), A.val, A.shape)


def _messages(
    needed: Mapping[Address, Tensor], A_KN: Csr, listed: Bins
) -> tuple[dict[Address, Message], dict[Address, int]]:
    """And the first bin that takes of each."""
    messages, ready, start = {}, {}, 0
    for address, rows in needed.items():
        slots = range(start, start + len(rows))
        if A_KN.col.is_meta:
            first, last = (A_KN.nnz * end // max(A_KN.rows, 1) for end in (slots.start, slots.stop))
            ready[address] = 0
        else:
            first, last = int(A_KN.rowptr[slots.start]), int(A_KN.rowptr[slots.stop])
            ready[address] = int(take(listed.of_vertices[:, 0], A_KN.col[first:last]).min())
        messages[address] = Message(slots, range(first, last))
        start = slots.stop
    return messages, ready


def _needs(A_BK: Csr, messages: Mapping[Address, Message]) -> list[Address]:
    """The messages in whose columns these rows have a nonzero; of shapes alone all of them."""
    if A_BK.col.is_meta:
        return list(messages)
    ends = torch.tensor([message.slots.stop for message in messages.values()], dtype=A_BK.col.dtype)
    hit = torch.bucketize(A_BK.col, ends, right=True).unique().tolist()
    addresses = list(messages)
    return [addresses[place] for place in hit]


def rows_of(A: Csr, rows: Tensor) -> Csr:
    """Those of a bin; of shapes alone, with their share of the nonzeros."""
    if not A.col.is_meta:
        return select_rows(A, rows)
    nnz = A.nnz * len(rows) // max(A.rows, 1)
    return Csr(A.rowptr.new_empty(len(rows) + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)


def rows_between(A: Csr, rows: range, entries: range) -> Csr:
    """Rows that follow each other, and have these entries."""
    rowptr = A.rowptr[rows.start : rows.stop + 1] - entries.start
    inside = slice(entries.start, entries.stop)
    return Csr(rowptr, A.col[inside], A.val[inside], A.cols)
