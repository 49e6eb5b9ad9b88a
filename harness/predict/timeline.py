"""Plays what ranks do in an epoch against each other: kernels, calls, and what waits for what.

A rank works through its items in order. An item is work of the rank itself, and then perhaps messages: the item posts
some, does the work of the call while they travel, and needs some before the rank goes on. A message
starts when all who post it have posted it and the links of each have carried what was posted before; a rank's links
carry one message at a time.
A background thread of the rank works beside it: it begins a piece of work when the rank reaches an item, and ends the
pieces one after the other. The rank waits for a piece as for a message.
Ranks that share cores work at the pace that the cores allow. Whatever is unknown about a rank that is not played is
taken to be as this rank has it.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

Message = Hashable
TINY = 1e-12
"""Seconds of work that are none: sums of floating point numbers do not end at zero."""


class Item(NamedTuple):
    """Work, and the messages that follow it."""

    work: float
    posts: Sequence[tuple[Message, float]] = ()
    """The messages to which this rank contributes, each with its seconds on the links."""
    needs: Sequence[Message] = ()
    """The messages whose end the rank waits for before it goes on."""
    begins: Sequence[tuple[Message, float]] = ()
    """The work that a background thread may begin when the rank comes to this item, and its seconds."""
    handling: float = 0.0
    """The work of a call that the rank does while its messages travel."""


class Slice(NamedTuple):
    """A stretch of a rank's time: the work of an item, or the wait for the messages that it needs."""

    item: int
    """The number of the item."""
    seconds: float
    waits: bool


class Played(NamedTuple):
    """The time of one rank."""

    slices: list[Slice]
    """The time in order; the seconds add up to the end of the last item."""
    ends: list[float]
    """The end of each item, from the start."""


@dataclass(slots=True, eq=False)
class _Rank:
    items: Sequence[Item]
    number: int = -1
    """The number of the current item."""
    left: float = 0.0
    """The work of the current item that is to be done, before its messages or beside them."""
    posted: bool = False
    """Whether the messages of the current item have left."""
    wakes: float | None = None
    """When the messages that the rank waits for have ended; infinite while that is unknown; None for a rank at work."""
    begun: float = 0.0
    """When the current work or wait began."""
    links_free: float = 0.0
    """When the links of the rank have carried everything that was posted."""
    thread_free: float = 0.0
    """When the background thread has done everything that was begun."""
    slices: list[Slice] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.number == len(self.items)

    def note(self, now: float, *, waits: bool) -> None:
        """Notes the time since the current work or wait began."""
        if now > self.begun:
            self.slices.append(Slice(self.number, now - self.begun, waits))
        self.begun = now

    def go_on(self, messages: "_Messages", now: float) -> None:
        """Begins the next item."""
        self.wakes = None
        if self.number >= 0:
            self.ends.append(now)
        self.number += 1
        if not self.done:
            item = self.items[self.number]
            self.left, self.posted = item.work, False
            for message, seconds in item.begins:
                self.thread_free = max(now, self.thread_free) + seconds
                messages.ends_at(message, self.thread_free)


class _Messages:
    """The messages of all ranks: posted by some, ended once all have posted them."""

    def __init__(self, ranks: Sequence[_Rank]) -> None:
        self._missing = Counter(message for rank in ranks for item in rank.items for message, _ in item.posts)
        self._posted: dict[Message, list[tuple[_Rank, float]]] = defaultdict(list)
        self._ended: dict[Message, float] = {}

    def post(self, rank: _Rank, item: Item, now: float) -> None:
        """Posts the messages of an item; the last post of a message starts it."""
        for message, seconds in item.posts:
            posted = self._posted[message]
            posted.append((rank, seconds))
            self._missing[message] -= 1
            if not self._missing[message]:
                start = max(now, *(poster.links_free for poster, _ in posted))
                end = self._ended[message] = start + max(seconds for _, seconds in posted)
                for poster, _ in posted:
                    poster.links_free = end

    def ends_at(self, message: Message, end: float) -> None:
        """Takes notice of work in the background, whose end is known when it begins."""
        self._ended[message] = end

    def end(self, needed: Sequence[Message]) -> float:
        """When all of these have ended; infinite while one of them has not started."""
        return max((self._ended.get(message, inf) for message in needed), default=0.0)


def play(ranks: Sequence[Sequence[Item]], cores: float | None = None) -> list[Played]:
    """Plays ranks from a common start. `cores` are shared by all of them; None: each has a device of its own."""
    everyone = [_Rank(items) for items in ranks]
    messages, now = _Messages(everyone), 0.0
    for rank in everyone:
        rank.go_on(messages, now)
    while busy := [rank for rank in everyone if not rank.done]:
        for rank in busy:
            if rank.wakes is not None:
                rank.wakes = messages.end(rank.items[rank.number].needs)
        working = [rank for rank in busy if rank.wakes is None]
        pace = min(1.0, (cores or inf) / max(len(working), 1))
        step = min(
            min((rank.left for rank in working), default=inf) / pace,
            min((rank.wakes for rank in busy if rank.wakes is not None), default=inf) - now,
        )
        assert step < inf, "every rank waits for a message that no rank posts"
        now += max(step, 0.0)
        for rank in working:
            rank.left -= step * pace
        for rank in busy:
            if rank.wakes is None and rank.left <= TINY:
                _finish_work(rank, messages, now)
            elif rank.wakes is not None and rank.wakes <= now:
                rank.note(now, waits=True)
                rank.go_on(messages, now)
    return [Played(rank.slices, rank.ends) for rank in everyone]


def _finish_work(rank: _Rank, messages: _Messages, now: float) -> None:
    """Posts the messages of the item, handles them, and then goes on or waits."""
    rank.note(now, waits=False)
    item = rank.items[rank.number]
    if not rank.posted:
        messages.post(rank, item, now)
        rank.posted, rank.left = True, item.handling
        if item.handling > TINY:
            return
    if messages.end(item.needs) <= now:
        rank.go_on(messages, now)
    else:
        rank.wakes = inf
