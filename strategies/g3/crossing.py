"""Which rows cross between ranks, and in which bins of their owners: every rank asks for what it needs.

A rank sees in its own rows of A which vertices of others it needs. Whoever is asked learns who needs what of it, and
answers with its bins; so nobody reads rows of others. In a replay nobody is there to ask, and the graph is read
instead; of shapes alone, what is needed is spread evenly.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.kernels.compact import filled_columns
from harness.ledger import AxisName, TensorName
from harness.parallel.asking import ask
from harness.strategy import Context

Address = tuple[int, int]
"""A peer, and a bin of whoever has the rows."""
Lists = Mapping[int, Tensor]
"""By peer or by bin, vertices as their owner numbers them; bins without any are left out."""


class Crossing(NamedTuple):
    """Rows of others that this rank needs, and its own that they need, by peer and by bin."""

    needed: Mapping[Address, Tensor]
    sends: Mapping[int, Lists]


def crossing(ctx: Context, blocks: Sequence[range], own: int, bins_of: Callable[[int], Tensor]) -> Crossing:
    """Of the rank whose vertices are `blocks[own]`; `bins_of` has the bin of every vertex of a rank, by the graph."""
    over, rows, mine = ctx.grid[AxisName.P], blocks[own], bins_of(own)
    peers = [peer for peer in range(len(blocks)) if peer != own]
    needed = {peer: _needed(ctx, rows, blocks[peer]) for peer in peers}
    if over.device.type == "meta":
        wanted: Lists = {peer: _needed(ctx, blocks[peer], rows) for peer in peers}
        theirs: Lists = {peer: bins_of(peer)[needed[peer]] for peer in peers}
    else:
        wanted, theirs = _asked(over, blocks, needed, mine)
    return Crossing(
        {
            (peer, number): vertices
            for peer in peers
            for number, vertices in _by_bin(needed[peer], theirs[peer]).items()
        },
        {peer: _by_bin(wanted[peer], mine[wanted[peer]]) for peer in peers},
    )


def _needed(ctx: Context, rows: range, owner: range) -> Tensor:
    """The vertices of an owner that these rows need."""
    found = filled_columns(ctx.on_host(rows, owner))
    return torch.arange(len(found)) * len(owner) // max(len(found), 1) if found.is_meta else found


def _asked(over: Axis, blocks: Sequence[range], needed: Lists, mine: Tensor) -> tuple[Lists, Lists]:
    """By peer: what it needs of this rank, and the bins of what this rank needs of it."""
    counts = [len(needed.get(rank, ())) for rank in range(len(blocks))]
    named = [vertices + blocks[peer].start for peer, vertices in needed.items()]
    asked = ask(over, blocks, torch.cat([*named, mine[:0]]).to(over.device), counts, others=tuple)
    coming = asked.coming.cpu()
    bins = asked.answer(mine[coming].to(over.device), asked.own, TensorName.INDEX).cpu()
    return dict(enumerate(coming.split(asked.asked))), dict(enumerate(bins.split(counts)))


def _by_bin(vertices: Tensor, bins: Tensor) -> dict[int, Tensor]:
    return {int(number): vertices[bins == number] for number in bins.unique()}
