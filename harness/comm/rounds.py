"""Collectives out of point-to-point rounds, for networks on which gloo's own are slow.

Gloo broadcasts along a tree, so the root's link carries the message several times, and its all-to-all lets pairs
collide. Here every link is busy in both directions all the time, with one message each way.
`benchmarks/links.py` measures both. All members call these at the same point; they return when this member is
done.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch.distributed as dist
from torch import Tensor

PIECES = 64
"""Into so many pieces a broadcast is cut: a ring of p members takes (PIECES + p - 2) / PIECES of the link's time."""
SMALLEST_PIECE = 1 << 15
"""Bytes below which a message costs its latency."""


def broadcast(group: dist.ProcessGroup, root: int, buffer: Tensor) -> None:
    """From the root along a ring, piece after piece: each is passed on while the next one comes."""
    size, here = group.size(), (group.rank() - root) % group.size()
    before, after = (group.rank() - 1) % size, (group.rank() + 1) % size
    pieces = list(_cut(buffer))
    coming = [_receive(group, piece, before, tag) for tag, piece in enumerate(pieces)] if here else []
    leaving = []
    for tag, piece in enumerate(pieces):
        if coming:
            coming[tag].wait()
        if here + 1 < size:
            leaving.append(_send(group, piece, after, tag))
    for work in leaving:
        work.wait()


def gather(group: dist.ProcessGroup, blocks: Sequence[Tensor]) -> None:
    """Every member's block to everybody, along a ring: a member sends its own, then passes on what comes, as it comes.

    A link carries every block once, however uneven they are.
    """
    size, here = group.size(), group.rank()
    before, after = (here - 1) % size, (here + 1) % size
    pieces = [list(_cut(block)) for block in blocks]
    tags = list(accumulate((len(cut) for cut in pieces), initial=0))
    upstream = [(here - step) % size for step in range(1, size)]  # in the order in which their blocks come
    coming = {
        owner: [_receive(group, piece, before, tags[owner] + i) for i, piece in enumerate(pieces[owner])]
        for owner in upstream
    }
    leaving = [_send(group, piece, after, tags[here] + i) for i, piece in enumerate(pieces[here])]
    for owner in upstream:
        for i, (work, piece) in enumerate(zip(coming[owner], pieces[owner], strict=True)):
            work.wait()
            if owner != after:
                leaving.append(_send(group, piece, after, tags[owner] + i))
    for work in leaving:
        work.wait()


def exchange(group: dist.ProcessGroup, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
    """A tensor to each member and one from each: in every round each member has one partner each way."""
    size, here = group.size(), group.rank()
    receives[here].copy_(sends[here])
    for step in range(1, size):
        to, source = (here + step) % size, (here - step) % size
        works = []
        if receives[source].numel():
            works.append(_receive(group, receives[source], source, step))
        if sends[to].numel():
            works.append(_send(group, sends[to], to, step))
        for work in works:
            work.wait()


def _cut(buffer: Tensor) -> Iterator[Tensor]:
    flat = buffer.view(-1)
    piece = max(-(-flat.numel() // PIECES), SMALLEST_PIECE // flat.element_size())
    return iter(flat.split(piece)) if flat.numel() else iter(())


def _send(group: dist.ProcessGroup, x: Tensor, to: int, tag: int) -> dist.Work:
    work = dist.isend(x, group=group, group_dst=to, tag=tag)
    assert work is not None
    return work


def _receive(group: dist.ProcessGroup, x: Tensor, source: int, tag: int) -> dist.Work:
    work = dist.irecv(x, group=group, group_src=source, tag=tag)
    assert work is not None
    return work
