"""What a rank of G3 computes and sends in which order: bins, and the tables of who needs which rows of them (5.2, 6).

A rank's vertices are put into a list, and the list is cut into bins. Every rank has asked the others for the bins of
what it needs of them, so a message has a bin of its owner and nothing but rows. Everything is made once; of shapes
alone the list is that of the numbers.

Legend: N this rank's vertices, K those that it needs of others, in the order of owner, bin and number.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from harness.kernels import Csr, transpose
from harness.kernels.assemble import beside
from harness.kernels.compact import without_empty_columns
from harness.kernels.csr import block, from_coo, row_of, take
from harness.kernels.spgemm import select_rows
from harness.kernels.traverse import breadth_first
from harness.ledger import TensorName
from harness.strategy import Context
from strategies.g3.crossing import Address, crossing


class Bin(NamedTuple):
    """Rows that are computed together."""

    rows: Tensor
    """Which of this rank's vertices."""
    sends: Mapping[int, Tensor]
    """By peer, which of this rank's vertices it needs of this bin."""
    needs: Sequence[Address]
    """Messages without which the bin cannot be computed."""


class Message(NamedTuple):
    """Rows of another rank's bin, and the gradients that go back to it."""

    slots: range
    """Their places among K."""
    entries: range
    """Theirs in A_KN."""
    ready: int
    """The bin of this rank after which, from the last to the first, their gradients can be computed."""


class Schedule(NamedTuple):
    """All of a rank."""

    parts: Sequence[Tensor]
    """The vertices of every bin, on the host."""
    bins: Sequence[Bin]
    messages: Mapping[Address, Message]
    halo: int
    """The number of K."""

    @property
    def interior_first(self) -> list[int]:
        """Bins that wait for nobody, then the others."""
        return sorted(range(len(self.bins)), key=lambda number: bool(self.bins[number].needs))


def schedule(
    ctx: Context, blocks: Sequence[range], own: int, size: int, *, priority: bool
) -> tuple[Schedule, Csr]:
    """Of the rank whose vertices are `blocks[own]`, in bins of so many vertices; and A_NK, on the host."""
    listed = cache(lambda rank: _listed(ctx, blocks[rank], priority))

    def bins_of(rank: int) -> Tensor:
        bins = torch.empty_like(listed(rank))
        bins[listed(rank)] = torch.arange(len(bins)) // size
        return bins

    needed, sends = crossing(ctx, blocks, own, bins_of)
    A_NK = _columns_of(ctx, blocks, own, needed)
    A_KN = transpose(A_NK)
    parts = listed(own).split(size) if len(blocks[own]) else ()
    messages = _messages(needed, A_KN, bins_of(own))
    bins = [
        Bin(
            ctx.hold(TensorName.INDEX, rows.clone()),
            {peer: ctx.hold(TensorName.INDEX, there[i]) for peer, there in sends.items() if i in there},
            _needs(rows_of(A_NK, rows), messages),
        )
        for i, rows in enumerate(parts)
    ]
    return Schedule(parts, bins, messages, A_NK.cols), A_NK


def _listed(ctx: Context, rows: range, priority: bool) -> Tensor:
    """Step 1: vertices with neighbours on other ranks first, then the rest, both as a search comes to them."""
    numbers = torch.arange(len(rows))
    if not priority or not len(rows):
        return numbers
    A = ctx.on_host(rows, range(ctx.facts.vertices))
    if A.col.is_meta:
        return numbers
    inside = block(A, range(len(rows)), rows)
    found = breadth_first(inside)
    remote = inside.rowptr.diff() < A.rowptr.diff()
    return torch.cat([found[remote[found]], found[~remote[found]]])


def _columns_of(ctx: Context, blocks: Sequence[range], own: int, needed: Mapping[Address, Tensor]) -> Csr:
    """A at the vertices of others, without empty columns, these in the order of the messages."""
    owners = sorted({peer for peer, _ in needed})
    found = [without_empty_columns(ctx.on_host(blocks[own], blocks[peer])) for peer in owners]
    A = beside(found or [ctx.on_host(blocks[own], range(0))])
    if A.col.is_meta:
        return A
    place, start = torch.empty(A.cols, dtype=torch.int64), 0
    for owner in owners:
        mine = torch.cat([vertices for (peer, _), vertices in needed.items() if peer == owner])
        place[start : start + len(mine)] = start + torch.argsort(mine)
        start += len(mine)
    return from_coo(row_of(A), take(place, A.col), A.val, A.shape)


def _messages(needed: Mapping[Address, Tensor], A_KN: Csr, number_of: Tensor) -> dict[Address, Message]:
    found, start = {}, 0
    for address, rows in needed.items():
        slots = range(start, start + len(rows))
        if A_KN.col.is_meta:
            first, last = (A_KN.nnz * end // max(A_KN.rows, 1) for end in (slots.start, slots.stop))
            ready = 0
        else:
            first, last = int(A_KN.rowptr[slots.start]), int(A_KN.rowptr[slots.stop])
            ready = int(take(number_of, A_KN.col[first:last]).min())
        found[address] = Message(slots, range(first, last), ready)
        start = slots.stop
    return found


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
