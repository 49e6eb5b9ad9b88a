"""Which rows cross between ranks, and in which bins of their owners: every rank asks for what it needs.

A rank sees in its own rows of A which vertices of others it needs. Whoever is asked learns who needs what of it, and
answers with its bins, and with their turns; so nobody reads rows of others. In the end ranks tell each other in which
turn gradients come back. In a replay nobody is there to ask, and the graph is read instead; of shapes alone, what is
needed is spread evenly.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels.csr import row_of, take
from harness.kernels.parts import filled_columns
from harness.ledger import AxisName, TensorName
from harness.parallel.row_requests import ask
from harness.strategy import Context
from strategies.g3.bins import Bins

Address = tuple[int, int]
"""A peer, and a bin of whoever has the rows."""
Lists = Mapping[int, Tensor]
"""By peer or by bin, vertices as their owner numbers them; bins without any are left out."""


class Crossing(NamedTuple):
    """Rows of others that this rank needs, and its own that they need, by peer and by bin."""

    needed: Mapping[Address, Tensor]
    turns: Mapping[Address, int]
    """In which turn their owner computes them, where bins wait for rows."""
    sends: Mapping[int, Lists]


def crossing(ctx: Context, blocks: Sequence[range], own: int, bins_of: Callable[[int], Bins]) -> Crossing:
    """Of the rank whose vertices are `blocks[own]`; `bins_of` has the bins of a rank, by the graph."""
    over, rows, mine = ctx.grid[AxisName.P], blocks[own], bins_of(own)
    peers = [peer for peer in range(len(blocks)) if peer != own]
    needed = {peer: _needed(ctx, rows, blocks[peer]) for peer in peers}
    if over.device.type == "meta":
        wanted: Lists = {peer: _needed(ctx, blocks[peer], rows) for peer in peers}
        theirs: Lists = {peer: bins_of(peer).of_vertices[needed[peer]] for peer in peers}
    else:
        wanted, theirs = _asked(over, blocks, needed, mine.of_vertices)
    return Crossing(
        {
            (peer, number): vertices
            for peer in peers
            for number, vertices in _by_bin(needed[peer], theirs[peer][:, 0]).items()
        },
        {(peer, number): turn for peer in peers for number, turn in theirs[peer].unique(dim=0).tolist()},
        {peer: _by_bin(wanted[peer], mine.of_vertices[wanted[peer], 0]) for peer in peers},
    )


def returns(
    ctx: Context,
    blocks: Sequence[range],
    own: int,
    bins_of: Callable[[int], Bins],
    sends: Mapping[int, Lists],
    mine: Mapping[Address, int],
) -> dict[Address, int]:
    """In which turn a peer sends back the gradients of what it needs of a bin of this rank.

    `mine` are the turns in which this rank does, each told to the owner of the rows.
    """
    over = ctx.grid[AxisName.P]
    told = {peer: [turn for (owner, _), turn in sorted(mine.items()) if owner == peer] for peer in sends}
    arrived = over.exchange(
        {peer: torch.tensor(turns, device=over.device) for peer, turns in told.items() if turns},
        {peer: (len(bins),) for peer, bins in sends.items() if bins},
        dtype=torch.int64,
        tensor=TensorName.INDEX,
    )
    found = {}
    for peer, turns in arrived.items():
        if turns.is_meta:
            turns = _by_the_graph(ctx, blocks[peer], blocks[own], bins_of(peer), sends[peer])  # noqa: PLW2901
        found |= {(peer, number): int(turn) for number, turn in zip(sorted(sends[peer]), turns, strict=True)}
    return found


def _by_the_graph(ctx: Context, rows: range, owner: range, bins: Bins, needed: Lists) -> Tensor:
    """The last turns of these rows in which a bin takes of what it needs of each of its owner's bins."""
    A, last = ctx.blocks.host_block(rows, owner), len(bins.parts) - 1
    if A.col.is_meta:
        return torch.full((len(needed),), last)
    row, col = take(bins.of_vertices[:, 0], row_of(A)), A.col.long()
    first = torch.full((len(owner),), last).scatter_reduce(0, col, row, "amin")
    return torch.tensor([last - int(take(first, needed[number]).min()) for number in sorted(needed)])


def _needed(ctx: Context, rows: range, owner: range) -> Tensor:
    """The vertices of an owner that these rows need."""
    found = filled_columns(ctx.blocks.host_block(rows, owner))
    return torch.arange(len(found)) * len(owner) // max(len(found), 1) if found.is_meta else found


def _asked(over: Axis, blocks: Sequence[range], needed: Lists, mine: Tensor) -> tuple[Lists, Lists]:
    """By peer: what it needs of this rank, and bins and turns of what this rank needs of it."""
    counts = [len(needed.get(rank, ())) for rank in range(len(blocks))]
    named = [vertices + blocks[peer].start for peer, vertices in needed.items()]
    asked = ask(over, blocks, torch.cat([*named, mine[:0, 0]]).to(over.device), counts, others=tuple)
    coming = asked.coming.cpu()
    leaving = mine[coming].to(over.device)
    bins = asked.answer(leaving, leaving[:0], TensorName.INDEX).cpu()
    return dict(enumerate(coming.split(asked.asked))), dict(enumerate(bins.split(counts)))


def _by_bin(vertices: Tensor, bins: Tensor) -> dict[int, Tensor]:
    return {int(number): vertices[bins == number] for number in bins.unique()}
