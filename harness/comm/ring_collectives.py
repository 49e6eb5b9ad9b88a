"""Collectives built from point-to-point messages, for networks on which gloo's collectives are slow.

Gloo broadcasts along a tree, so the root's link carries the message several times, and members wait for each other in
gloo's all-to-all. These collectives keep every link busy in both directions. `benchmarks/collectives.py` compares them.
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
"""The number of pieces of a pipelined broadcast: a ring of p members takes (PIECES + p - 2) / PIECES link times."""
SMALLEST_PIECE = 1 << 15
"""The size in bytes below which the latency of a message dominates."""
TAGS = 1 << 24
"""The number of tags of one call. Lower tags are for other messages, higher ones for other calls in flight."""
CALLS = 100
"""The maximum number of calls in flight per group: tags have 31 bits."""


class RingWork(Thread):
    """A call in flight on a separate thread, with the interface of `torch.distributed.Work`.

    The thread is a daemon, so that a failing rank exits at once.
    """

    def __init__(self, messages: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._messages, self._result = messages, Future[None]()
        self.start()

    def run(self) -> None:
        """Run the messages, on the new thread."""
        try:
            with torch.no_grad():
                self._messages()
        except BaseException as error:  # raised again in `wait`
            self._result.set_exception(error)
        else:
            self._result.set_result(None)
        finally:
            del self._messages  # releases their buffers

    def wait(self) -> None:
        """Wait until this member is done and the callbacks of the future have run; re-raise any error."""
        self.join()
        self._result.result()

    def get_future(self) -> "Future[None]":
        """Return a future that is set when this member is done."""
        return self._result


class RingCollectives:
    """The ring collectives of a group. All members issue the same calls in the same order, so that tags match."""

    def __init__(self, group: dist.ProcessGroup, smallest: int) -> None:
        self._group, self._smallest = group, smallest
        self._issued = 0
        self._in_flight: dict[int, RingWork] = {}

    def is_worthwhile(self, size: int) -> bool:
        """Return True if a call of `size` bytes is large enough."""
        return size >= self._smallest

    def broadcast(self, root: int, buffer: Tensor, *, later: bool) -> list[RingWork]:
        """Fill every member's buffer with the root's. Return the works to wait for: none unless `later`."""
        return self._issue(_broadcast, root, buffer, later=later)

    def gather(self, blocks: Sequence[Tensor], *, later: bool) -> list[RingWork]:
        """Send every member's block to all members."""
        return self._issue(_gather, blocks, later=later)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor], *, later: bool) -> list[RingWork]:
        """Send a tensor to each member and receive one from each."""
        return self._issue(_exchange, sends, receives, later=later)

    def drain(self) -> None:
        """Wait for all calls in flight, including those whose results are not used."""
        for flight in self._in_flight.values():
            flight.wait()

    def _issue(self, messages: Callable[..., None], *given: Any, later: bool) -> list[RingWork]:
        """Issue a call. An earlier call that used the same tags is waited for first."""
        self._issued += 1
        tags = self._issued % CALLS
        if earlier := self._in_flight.pop(tags, None):
            earlier.wait()
        members = TaggedGroup(self._group, (1 + tags) * TAGS)
        if not later:
            messages(members, *given)
            return []
        flight = self._in_flight[tags] = RingWork(partial(messages, members, *given))
        return [flight]


@dataclass(frozen=True, slots=True)
class TaggedGroup:
    """A group and the first tag of one call, which separates its messages from those of other calls."""

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
    """Pipeline pieces along a ring that starts at the root: forward each piece while the next one is received."""
    size, distance = members.size, (members.index - root) % members.size
    before, after = (members.index - 1) % size, (members.index + 1) % size
    pieces = list(_split_pieces(buffer))
    receives = [members.receive(piece, before, tag) for tag, piece in enumerate(pieces)] if distance else []
    sends = []
    for tag, piece in enumerate(pieces):
        if receives:
            receives[tag].wait()
        if distance + 1 < size:
            sends.append(members.send(piece, after, tag))
    for work in sends:
        work.wait()


def _gather(members: TaggedGroup, blocks: Sequence[Tensor]) -> None:
    """Send blocks along a ring: each member sends its block, then forwards the pieces of others as it receives them.

    Each link carries every block once, even if the blocks are uneven.
    """
    size, index = members.size, members.index
    before, after = (index - 1) % size, (index + 1) % size
    pieces = [list(_split_pieces(block)) for block in blocks]
    tags = list(accumulate((len(cut) for cut in pieces), initial=0))
    upstream = [(index - step) % size for step in range(1, size)]  # in the order in which blocks are received
    receives = {
        owner: [members.receive(piece, before, tags[owner] + i) for i, piece in enumerate(pieces[owner])]
        for owner in upstream
    }
    sends = [members.send(piece, after, tags[index] + i) for i, piece in enumerate(pieces[index])]
    for owner in upstream:
        for i, (work, piece) in enumerate(zip(receives[owner], pieces[owner], strict=True)):
            work.wait()
            if owner != after:
                sends.append(members.send(piece, after, tags[owner] + i))
    for work in sends:
        work.wait()


def _exchange(members: TaggedGroup, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
    """Send a tensor to each member and receive one from each, all at once.

    Rounds of pairwise exchanges would take up to twice the time if some pairs have nothing to send.
    """
    size, index = members.size, members.index
    receives[index].copy_(sends[index])
    # Staggered, so that members have different targets at any time.
    others = [(index + step) % size for step in range(1, size)]
    works = [members.receive(receives[source], source, 0) for source in others if receives[source].numel()]
    works += [members.send(sends[to], to, 0) for to in others if sends[to].numel()]
    for work in works:
        work.wait()


def _split_pieces(buffer: Tensor) -> Iterator[Tensor]:
    flat = buffer.view(-1)
    piece = max(-(-flat.numel() // PIECES), SMALLEST_PIECE // flat.element_size())
    return iter(flat.split(piece)) if flat.numel() else iter(())
