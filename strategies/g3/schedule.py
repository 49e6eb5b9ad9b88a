"""The schedule of a rank of G3: its bins, and the rows that each bin sends and needs (SIGMOD'23, sections 5.2 and 6).

A rank finds the vertices of other ranks that it needs in its own rows of A, and requests each from its owner. The owner
answers with the vertex's bin and the bin's turn, so no rank reads the rows of others. A message then holds the rows of
one bin for one peer, without indices. Finally, ranks exchange the turns in which gradients return. In a replay no rank
can answer, so the graph is read instead; with shapes only, the needed vertices are spread evenly. All of this happens
once, before training.

Legend: N this rank's vertices, K the vertices of others that it needs, in the order of owner, bin and number.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels import Csr, transpose
from harness.kernels.csr import from_coo, row_indices, take
from harness.kernels.parts import drop_empty_columns, hstack, nonempty_columns, select_rows
from harness.ledger import AxisName, Direction, TensorName
from harness.strategies.g3.bins import BinList, BinOrder, cut_into_bins
from harness.strategy import Context
from harness.strategy.parallel.row_requests import request_rows

Address = tuple[int, int]
"""A peer, and the number of a bin on the rank that owns the rows."""
VertexLists = Mapping[int, Tensor]
"""Vertices in the owner's numbering, by peer or by bin; bins without vertices are left out."""


class Bin(NamedTuple):
    """Rows that are computed together."""

    rows: Tensor
    """The numbers of this rank's vertices in the bin."""
    sends: VertexLists
    """The vertices of the bin that each peer needs."""
    needs: Sequence[Address]
    """The messages that the bin's output depends on."""
    completes: Sequence[Address]
    """The messages whose gradients are complete after this bin's backward step, which runs from the last bin."""


class Message(NamedTuple):
    """Rows of another rank's bin, whose gradients return to that rank."""

    slots: range
    """The positions of the rows in K."""
    entries: range
    """The positions of the rows' nonzeros in A_KN."""


class Incoming(NamedTuple):
    """The size and the turn of a message that will arrive."""

    rows: int
    turn: int
    """The sender's turn after which the message leaves."""


class Schedule(NamedTuple):
    """The bins and messages of one rank."""

    order: BinOrder
    bins: Sequence[Bin]
    messages: Mapping[Address, Message]
    turns: Mapping[Address, int]
    """The turn of each message's bin on the owner, in later layers."""
    returns: Mapping[Address, int]
    """The peer's turn after which the gradients of a bin of this rank return."""
    halo: int
    """The size of K."""

    def incoming(self, direction: Direction, layer: int) -> dict[Address, Incoming]:
        """Return the messages of a layer's input, or of its gradient. The first layer's output comes in list order."""
        if direction is Direction.FORWARD:
            return {
                address: Incoming(len(message.slots), address[1] if layer < 2 else self.turns[address])
                for address, message in self.messages.items()
            }
        return {
            (peer, number): Incoming(len(rows), self.returns[peer, number])
            for number, each in enumerate(self.bins)
            for peer, rows in each.sends.items()
        }


class SetUp(NamedTuple):
    """What only the set-up of a rank needs, on the host."""

    vertices: range
    """This rank's vertices."""
    parts: Sequence[Tensor]
    """Their numbers in each bin."""
    A_NK: Csr


def build_schedule(
    ctx: Context, blocks: Sequence[range], own: int, size: int, *, priority: bool, at_once: bool
) -> tuple[Schedule, SetUp]:
    """Return the schedule of the rank with the vertices `blocks[own]` in bins of `size`, and what its set-up needs."""
    cut = cache(lambda rows: cut_into_bins(ctx, rows, size, priority=priority, at_once=at_once))

    def bins_of_rank(rank: int) -> BinList:
        """Return the bins of a rank; with shapes only, blocks of equal length share theirs."""
        return cut(range(len(blocks[rank])) if ctx.blocks.has_only_shapes else blocks[rank])

    bin_list = bins_of_rank(own)
    needed, turns, sends = find_halo(ctx, blocks, own, bins_of_rank)
    A_NK = _build_halo_matrix(ctx, blocks, own, needed)
    messages, first_bin = _build_messages(needed, transpose(A_NK), bin_list)
    needs = _find_needed_messages(A_NK, messages, bin_list.parts)
    completes: dict[int, list[Address]] = defaultdict(list)
    for address, first in first_bin.items():
        completes[first].append(address)
    bins = [
        Bin(
            ctx.memory.hold(TensorName.INDEX, rows.clone()),
            {
                peer: ctx.memory.hold(TensorName.INDEX, lists[i].clone())
                for peer, lists in sends.items()
                if i in lists
            },
            needs[i],
            completes.get(i, ()),
        )
        for i, rows in enumerate(bin_list.parts)
    ]
    sent_back = {address: len(bins) - 1 - first for address, first in first_bin.items()}
    returns = _exchange_return_turns(ctx, blocks, own, bins_of_rank, sends, sent_back)
    schedule = Schedule(bin_list.order, bins, messages, turns, returns, A_NK.cols)
    return schedule, SetUp(blocks[own], bin_list.parts, A_NK)


# The halo by bin: a rank requests the vertices that it needs, and learns from others' requests what to send.


class HaloLists(NamedTuple):
    """The rows of other ranks that a rank needs, and its own rows that other ranks need."""

    needed: Mapping[Address, Tensor]
    turns: Mapping[Address, int]
    """The turn in which the owner computes each needed bin, in later layers."""
    sends: Mapping[int, VertexLists]
    """For every peer, the vertices of each of this rank's bins."""


def find_halo(
    ctx: Context, blocks: Sequence[range], own: int, bins_of_rank: Callable[[int], BinList]
) -> HaloLists:
    """Return the halo of the rank with the vertices `blocks[own]`; `bins_of_rank` returns the bins of any rank."""
    over, rows, bin_list = ctx.grid[AxisName.P], blocks[own], bins_of_rank(own)
    peers = [peer for peer in range(len(blocks)) if peer != own]
    needed = {peer: _find_needed_vertices(ctx, rows, blocks[peer]) for peer in peers}
    if over.device.type == "meta":
        requested: VertexLists = {peer: _find_needed_vertices(ctx, blocks[peer], rows) for peer in peers}
        answer = cache(lambda table, vertices: table[vertices])
        answers: VertexLists = {peer: answer(bins_of_rank(peer).bin_and_turn, needed[peer]) for peer in peers}
    else:
        requested, answers = _exchange_requests(over, blocks, needed, bin_list.bin_and_turn)
    # Tensors hash by identity: with shapes only, peers whose blocks have equal sizes share their tensors.
    list_turns = cache(lambda answers: answers.unique(dim=0).tolist())
    group, group_own = (
        cache(_group_by_bin),
        cache(lambda rows: _group_by_bin(rows, bin_list.bin_and_turn[rows])),
    )
    return HaloLists(
        {
            (peer, number): vertices
            for peer in peers
            for number, vertices in group(needed[peer], answers[peer]).items()
        },
        {(peer, number): turn for peer in peers for number, turn in list_turns(answers[peer])},
        {peer: group_own(requested[peer]) for peer in peers},
    )


def _find_needed_vertices(ctx: Context, rows: range, owner: range) -> Tensor:
    """Return the vertices of an owner for which these rows have nonzeros."""
    if ctx.blocks.has_only_shapes:
        return _spread_evenly(ctx.blocks.counts.nonempty_columns(rows, owner), len(owner))
    return nonempty_columns(ctx.blocks.host_adjacency(rows, owner))


@lru_cache(maxsize=256)
def _spread_evenly(count: int, vertices: int) -> Tensor:
    """Return `count` of this many vertices, at equal distances. The result is shared and must not be changed."""
    return torch.arange(count) * vertices // max(count, 1)


def _exchange_requests(
    over: Axis, blocks: Sequence[range], needed: VertexLists, bin_and_turn: Tensor
) -> tuple[VertexLists, VertexLists]:
    """Return the vertices that each peer requests, and its answers to this rank's requests.

    `bin_and_turn` has this rank's answer for each of its vertices.
    """
    counts = [len(needed.get(rank, ())) for rank in range(len(blocks))]
    vertices = [numbers + blocks[peer].start for peer, numbers in needed.items()]
    wanted = torch.cat([*vertices, bin_and_turn[:0, 0]]).to(over.device)
    requests = request_rows(over, blocks, wanted, counts, replayed_requests=tuple)
    requested = requests.requested.cpu()
    own_answers = bin_and_turn[requested].to(over.device)
    answers = requests.exchange_and_merge(own_answers, own_answers[:0], TensorName.INDEX).cpu()
    return dict(enumerate(requested.split(requests.send_counts))), dict(enumerate(answers.split(counts)))


def _group_by_bin(vertices: Tensor, bin_and_turn: Tensor) -> dict[int, Tensor]:
    """Return the vertices of each bin, given the bin and the turn of every vertex; views of one sorted list."""
    bins, order = bin_and_turn[:, 0].sort(stable=True)
    numbers, sizes = bins.unique_consecutive(return_counts=True)
    return dict(zip(numbers.tolist(), vertices[order].split(sizes.tolist()), strict=True))


# The turns in which gradients return.


def _exchange_return_turns(
    ctx: Context,
    blocks: Sequence[range],
    own: int,
    bins_of_rank: Callable[[int], BinList],
    sends: Mapping[int, VertexLists],
    sent_back: Mapping[Address, int],
) -> dict[Address, int]:
    """Return the turn in which each peer returns the gradients of each bin that this rank sends to it.

    Every rank sends to each owner the turns of its own returns, `sent_back`.
    """
    over = ctx.grid[AxisName.P]
    leaving: dict[int, list[int]] = {peer: [] for peer in sends}
    for owner, number in sorted(sent_back):
        leaving[owner].append(sent_back[owner, number])
    arrived = over.exchange(
        {peer: torch.tensor(turns, device=over.device) for peer, turns in leaving.items() if turns},
        {peer: (len(bins),) for peer, bins in sends.items() if bins},
        dtype=torch.int64,
        tensor=TensorName.INDEX,
    )
    returns: dict[Address, int] = {}
    for peer, received in arrived.items():
        turns = received
        if received.is_meta:
            turns = _find_return_turns(ctx, blocks[peer], blocks[own], bins_of_rank(peer), sends[peer])
        for number, turn in zip(sorted(sends[peer]), turns, strict=True):
            returns[peer, number] = int(turn)
    return returns


def _find_return_turns(
    ctx: Context, rows: range, owner: range, bin_list: BinList, needed: VertexLists
) -> Tensor:
    """Find in the graph the turns in which the rank of `rows` returns gradients to the owner, by bin in `needed`."""
    last = len(bin_list.parts) - 1
    if ctx.blocks.has_only_shapes:
        return torch.full((len(needed),), last)
    A = ctx.blocks.host_adjacency(rows, owner)
    row, col = take(bin_list.bin_and_turn[:, 0], row_indices(A)), A.col.long()
    first = torch.full((len(owner),), last).scatter_reduce(0, col, row, "amin")
    return torch.tensor([last - int(take(first, needed[number]).min()) for number in sorted(needed)])


# The matrix at the halo, and the messages as ranges of its columns.


def _build_halo_matrix(
    ctx: Context, blocks: Sequence[range], own: int, needed: Mapping[Address, Tensor]
) -> Csr:
    """Return A_NK: A at the vertices of other ranks, without empty columns, in the order of the messages."""
    owners = sorted({peer for peer, _ in needed})
    if ctx.blocks.has_only_shapes:
        return ctx.blocks.compact_adjacency(blocks[own], [blocks[peer] for peer in owners])[0]
    pieces = [drop_empty_columns(ctx.blocks.host_adjacency(blocks[own], blocks[peer])) for peer in owners]
    A = hstack(pieces or [ctx.blocks.host_adjacency(blocks[own], range(0))])
    place, start = torch.empty(A.cols, dtype=torch.int64), 0
    for owner in owners:
        listed = torch.cat([vertices for (peer, _), vertices in needed.items() if peer == owner])
        place[start : start + len(listed)] = start + torch.argsort(listed)
        start += len(listed)
    return from_coo(row_indices(A), take(place, A.col), A.val, A.shape)


def _build_messages(
    needed: Mapping[Address, Tensor], A_KN: Csr, bin_list: BinList
) -> tuple[dict[Address, Message], dict[Address, int]]:
    """Return the messages, and the first bin that uses the rows of each."""
    messages, first_bin, start = {}, {}, 0
    for address, rows in needed.items():
        slots = range(start, start + len(rows))
        if A_KN.col.is_meta:
            first, last = (A_KN.nnz * end // max(A_KN.rows, 1) for end in (slots.start, slots.stop))
            first_bin[address] = 0
        else:
            first, last = int(A_KN.rowptr[slots.start]), int(A_KN.rowptr[slots.stop])
            first_bin[address] = int(take(bin_list.bin_and_turn[:, 0], A_KN.col[first:last]).min())
        messages[address] = Message(slots, range(first, last))
        start = slots.stop
    return messages, first_bin


def _find_needed_messages(
    A_NK: Csr, messages: Mapping[Address, Message], parts: Sequence[Tensor]
) -> list[list[Address]]:
    """Return for each bin the messages in whose columns its rows have a nonzero.

    With shapes only, every bin needs all messages, and all bins share one list: there are as many lists as bins, and
    the messages are as many as bins times peers.
    """
    addresses = list(messages)
    if A_NK.col.is_meta:
        return [addresses] * len(parts)
    ends = torch.tensor([message.slots.stop for message in messages.values()], dtype=A_NK.col.dtype)
    hits = (torch.bucketize(select_rows(A_NK, rows).col, ends, right=True).unique() for rows in parts)
    return [[addresses[place] for place in hit.tolist()] for hit in hits]


def select_bin_rows(A: Csr, rows: Tensor) -> Csr:
    """Select the rows of a bin; with shapes only, they have an even share of the nonzeros."""
    if not A.col.is_meta:
        return select_rows(A, rows)
    nnz = A.nnz * len(rows) // max(A.rows, 1)
    return Csr(A.rowptr.new_empty(len(rows) + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)


def slice_rows(A: Csr, rows: range, entries: range) -> Csr:
    """Return consecutive rows of A, whose nonzeros are `entries`."""
    rowptr = A.rowptr[rows.start : rows.stop + 1] - entries.start
    inside = slice(entries.start, entries.stop)
    return Csr(rowptr, A.col[inside], A.val[inside], A.cols)
