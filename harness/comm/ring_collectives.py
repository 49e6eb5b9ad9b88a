"""Collectives out of point-to-point messages, for networks on which gloo's own are slow.

Gloo broadcasts along a tree, so the root's link carries the message several times, and in gloo's all-to-all the members
wait for each other. The collectives below keep every link busy in both directions all the time. `benchmarks/links.py`
measures both.
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
"""The number of pieces of a broadcast: a ring of p members takes (PIECES + p - 2) / PIECES of the link's time."""
SMALLEST_PIECE = 1 << 15
"""The bytes below which a message costs its latency."""
TAGS = 1 << 24
"""The tags of one call. Tags below are for other messages, tags above for other calls that are under way as well."""
CALLS = 100
"""The calls of a group that are under way at the same time, at most: tags have 31 bits."""


class RingWork(Thread):
    """A call under way on a thread of its own, to be waited for as the library's calls are.

    The thread never keeps a process alive: a rank that fails leaves at once.
    """

    def __init__(self, messages: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._messages, self._result = messages, Future[None]()
        self.start()

    def run(self) -> None:
        """Runs on the new thread."""
        try:
            with torch.no_grad():
                self._messages()
        except BaseException as error:  # raised again in `wait`
            self._result.set_exception(error)
        else:
            self._result.set_result(None)
        finally:
            del self._messages  # and their buffers

    def wait(self) -> None:
        """Returns when this member is done and the callbacks of the future have run, or raises what went wrong."""
        self.join()
        self._result.result()

    def get_future(self) -> "Future[None]":
        """A future that is set when this member is done."""
        return self._result


class RingCollectives:
    """The composed calls of a group. All members issue the same calls in the same order, and so give the same tags."""

    def __init__(self, group: dist.ProcessGroup, smallest: int) -> None:
        self._group, self._smallest = group, smallest
        self._issued = 0
        self._flights: dict[int, RingWork] = {}

    def is_worthwhile(self, size: int) -> bool:
        """True if a call of so many bytes is large enough."""
        return size >= self._smallest

    def broadcast(self, root: int, buffer: Tensor, *, later: bool) -> list[RingWork]:
        """Fills every member's buffer with the root's; returns the flights to wait for, none unless `later`."""
        return self._issue(_broadcast, root, buffer, later=later)

    def gather(self, blocks: Sequence[Tensor], *, later: bool) -> list[RingWork]:
        """Sends every member's block to every member."""
        return self._issue(_gather, blocks, later=later)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor], *, later: bool) -> list[RingWork]:
        """Sends a tensor to each member and receives one from each."""
        return self._issue(_exchange, sends, receives, later=later)

    def drain(self) -> None:
        """Waits for all flights, also for flights whose results nobody wants."""
        for flight in self._flights.values():
            flight.wait()

    def _issue(self, messages: Callable[..., None], *given: Any, later: bool) -> list[RingWork]:
        """Issues a call. Its tags are those of an earlier call, which is waited for first."""
        self._issued += 1
        tags = self._issued % CALLS
        if earlier := self._flights.pop(tags, None):
            earlier.wait()
        members = TaggedGroup(self._group, (1 + tags) * TAGS)
        if not later:
            messages(members, *given)
            return []
        flight = self._flights[tags] = RingWork(partial(messages, members, *given))
        return [flight]


@dataclass(frozen=True, slots=True)
class TaggedGroup:
    """The members of a group, and the tags by which the messages of one call are told from others."""

    group: dist.ProcessGroup
    first_tag: int

    @property
    def size(self) -> int:
        return self.group.size()

    @property
    def index(self) -> int:
        return self.group.rank()

    def send(self, x: Tensor, to: int, tag: int) -> dist.Work:
        work = dist.isend(x, group=self.group, group_dst=to, tag=self.first_tag + tag)
        assert work is not None
        return work

    def receive(self, x: Tensor, source: int, tag: int) -> dist.Work:
        work = dist.irecv(x, group=self.group, group_src=source, tag=self.first_tag + tag)
        assert work is not None
        return work


def _broadcast(members: TaggedGroup, root: int, buffer: Tensor) -> None:
    """Sends pieces along a ring that starts at the root: each piece is passed on while the next one arrives."""
    size, distance = members.size, (members.index - root) % members.size
    before, after = (members.index - 1) % size, (members.index + 1) % size
    pieces = list(_split_pieces(buffer))
    coming = [members.receive(piece, before, tag) for tag, piece in enumerate(pieces)] if distance else []
    leaving = []
    for tag, piece in enumerate(pieces):
        if coming:
            coming[tag].wait()
        if distance + 1 < size:
            leaving.append(members.send(piece, after, tag))
    for work in leaving:
        work.wait()


def _gather(members: TaggedGroup, blocks: Sequence[Tensor]) -> None:
    """Sends blocks along a ring: a member sends its own, then passes on the pieces of others as they arrive.

    A link carries every block once, however uneven the blocks are.
    """
    size, index = members.size, members.index
    before, after = (index - 1) % size, (index + 1) % size
    pieces = [list(_split_pieces(block)) for block in blocks]
    tags = list(accumulate((len(cut) for cut in pieces), initial=0))
    upstream = [(index - step) % size for step in range(1, size)]  # in the order in which their blocks arrive
    coming = {
        owner: [members.receive(piece, before, tags[owner] + i) for i, piece in enumerate(pieces[owner])]
        for owner in upstream
    }
    leaving = [members.send(piece, after, tags[index] + i) for i, piece in enumerate(pieces[index])]
    for owner in upstream:
        for i, (work, piece) in enumerate(zip(coming[owner], pieces[owner], strict=True)):
            work.wait()
            if owner != after:
                leaving.append(members.send(piece, after, tags[owner] + i))
    for work in leaving:
        work.wait()


def _exchange(members: TaggedGroup, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
    """Sends a tensor to each member and receives one from each, all under way at once.

    One after the other would take up to twice the time: where some pairs have nothing to send, members would wait.
    """
    size, index = members.size, members.index
    receives[index].copy_(sends[index])
    others = [(index + step) % size for step in range(1, size)]  # not all members send to the same one
    works = [members.receive(receives[source], source, 0) for source in others if receives[source].numel()]
    works += [members.send(sends[to], to, 0) for to in others if sends[to].numel()]
    for work in works:
        work.wait()


def _split_pieces(buffer: Tensor) -> Iterator[Tensor]:
    flat = buffer.view(-1)
    piece = max(-(-flat.numel() // PIECES), SMALLEST_PIECE // flat.element_size())
    return iter(flat.split(piece)) if flat.numel() else iter(())
