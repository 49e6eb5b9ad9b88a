"""Collectives out of point-to-point messages, for networks on which gloo's own are slow.

Gloo broadcasts along a tree, so the root's link carries the message several times, and in its all-to-all members wait
for each other. Here every link is busy in both directions all the time. `benchmarks/links.py` measures both.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PIECES = 64
"""Into so many pieces a broadcast is cut: a ring of p members takes (PIECES + p - 2) / PIECES of the link's time."""
SMALLEST_PIECE = 1 << 15
"""Bytes below which a message costs its latency."""
TAGS = 1 << 24
"""Of a call. Those below are for other messages, those above for other calls, which may be under way as well."""
CALLS = 100
"""Of a group that are under way at the same time, at most: tags have 31 bits."""


class Flight(Thread):
    """Rounds under way on a thread of their own, to be waited for as the library's calls are.

    It never keeps a process: a rank that fails leaves at once.
    """

    def __init__(self, rounds: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._rounds, self._result = rounds, Future[None]()
        self.start()

    def run(self) -> None:
        """On that thread."""
        try:
            with torch.no_grad():
                self._rounds()
        except BaseException as error:  # whoever waits is told
            self._result.set_exception(error)
        else:
            self._result.set_result(None)
        finally:
            del self._rounds  # and their buffers

    def wait(self) -> None:
        """Returns when this member is done and whoever asked the future was told, or raises what went wrong."""
        self.join()
        self._result.result()

    def get_future(self) -> "Future[None]":
        """Tells when this member is done."""
        return self._result


class Rounds:
    """The composed calls of a group. All members issue the same ones in the same order, and give them the same tags."""

    def __init__(self, group: dist.ProcessGroup, smallest: int) -> None:
        self._group, self._smallest = group, smallest
        self._issued = 0
        self._flights: dict[int, Flight] = {}

    def pay(self, size: int) -> bool:
        """Whether a call of so many bytes is large enough."""
        return size >= self._smallest

    def broadcast(self, root: int, buffer: Tensor, *, later: bool) -> list[Flight]:
        """What is to be waited for; nothing, if it was."""
        return self._issue(_broadcast, root, buffer, later=later)

    def gather(self, blocks: Sequence[Tensor], *, later: bool) -> list[Flight]:
        """Every member's block to everybody."""
        return self._issue(_gather, blocks, later=later)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor], *, later: bool) -> list[Flight]:
        """A tensor to each member and one from each."""
        return self._issue(_exchange, sends, receives, later=later)

    def settle(self) -> None:
        """Waits for all that is under way, whoever wants it."""
        for flight in self._flights.values():
            flight.wait()

    def _issue(self, rounds: Callable[..., None], *given: Any, later: bool) -> list[Flight]:
        """Its tags are those of an earlier call, which is over by then."""
        self._issued += 1
        tags = self._issued % CALLS
        if earlier := self._flights.pop(tags, None):
            earlier.wait()
        members = Peers(self._group, (1 + tags) * TAGS)
        if not later:
            rounds(members, *given)
            return []
        flight = self._flights[tags] = Flight(partial(rounds, members, *given))
        return [flight]


@dataclass(frozen=True, slots=True)
class Peers:
    """The members of a group, as one call speaks to them."""

    group: dist.ProcessGroup
    first_tag: int

    @property
    def size(self) -> int:
        return self.group.size()

    @property
    def here(self) -> int:
        return self.group.rank()

    def send(self, x: Tensor, to: int, tag: int) -> dist.Work:
        work = dist.isend(x, group=self.group, group_dst=to, tag=self.first_tag + tag)
        assert work is not None
        return work

    def receive(self, x: Tensor, source: int, tag: int) -> dist.Work:
        work = dist.irecv(x, group=self.group, group_src=source, tag=self.first_tag + tag)
        assert work is not None
        return work


def _broadcast(peers: Peers, root: int, buffer: Tensor) -> None:
    """From the root along a ring, piece after piece: each is passed on while the next one comes."""
    size, here = peers.size, (peers.here - root) % peers.size
    before, after = (peers.here - 1) % size, (peers.here + 1) % size
    pieces = list(_cut(buffer))
    coming = [peers.receive(piece, before, tag) for tag, piece in enumerate(pieces)] if here else []
    leaving = []
    for tag, piece in enumerate(pieces):
        if coming:
            coming[tag].wait()
        if here + 1 < size:
            leaving.append(peers.send(piece, after, tag))
    for work in leaving:
        work.wait()


def _gather(peers: Peers, blocks: Sequence[Tensor]) -> None:
    """Every member's block to everybody, along a ring: a member sends its own, then passes on what comes, as it comes.

    A link carries every block once, however uneven they are.
    """
    size, here = peers.size, peers.here
    before, after = (here - 1) % size, (here + 1) % size
    pieces = [list(_cut(block)) for block in blocks]
    tags = list(accumulate((len(cut) for cut in pieces), initial=0))
    upstream = [(here - step) % size for step in range(1, size)]  # in the order in which their blocks come
    coming = {
        owner: [peers.receive(piece, before, tags[owner] + i) for i, piece in enumerate(pieces[owner])]
        for owner in upstream
    }
    leaving = [peers.send(piece, after, tags[here] + i) for i, piece in enumerate(pieces[here])]
    for owner in upstream:
        for i, (work, piece) in enumerate(zip(coming[owner], pieces[owner], strict=True)):
            work.wait()
            if owner != after:
                leaving.append(peers.send(piece, after, tags[owner] + i))
    for work in leaving:
        work.wait()


def _exchange(peers: Peers, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
    """A tensor to each member and one from each, all under way at once.

    One after the other, members of whom some have nothing for some others wait for each other: up to twice the time.
    """
    size, here = peers.size, peers.here
    receives[here].copy_(sends[here])
    others = [(here + step) % size for step in range(1, size)]  # so that not all send to one
    works = [peers.receive(receives[source], source, 0) for source in others if receives[source].numel()]
    works += [peers.send(sends[to], to, 0) for to in others if sends[to].numel()]
    for work in works:
        work.wait()


def _cut(buffer: Tensor) -> Iterator[Tensor]:
    flat = buffer.view(-1)
    piece = max(-(-flat.numel() // PIECES), SMALLEST_PIECE // flat.element_size())
    return iter(flat.split(piece)) if flat.numel() else iter(())
