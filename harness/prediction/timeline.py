"""Simulates the timelines of several ranks in one epoch: kernels, calls, and what each rank waits for.

A rank processes its items in order. An item first does local work. It then posts messages, handles them while they are
in flight, and waits for the messages that it needs. A message starts when every poster has posted it and the links of
every poster are free; the links of a rank carry one message at a time.

If a rank has a device, its host issues the items in order and does not wait for them. No item ends before the host has
issued it.

A rank may have a background thread, which starts a piece of work when the rank reaches an item and completes pieces in
order. The rank waits for such a piece as it waits for a message.

Ranks that share cores slow down in proportion. Ranks that are not simulated are assumed to post their messages when
the simulated ranks do.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

Message = Hashable
TINY = 1e-12
"""Work below this number of seconds counts as done, because rounding errors may keep it above zero."""


class WorkItem(NamedTuple):
    """Local work, followed by messages."""

    work: float
    posts: Sequence[tuple[Message, float]] = ()
    """The messages to which this rank contributes, each with its seconds on the links of the rank."""
    needs: Sequence[Message] = ()
    """The messages that must end before the rank starts its next item."""
    background: Sequence[tuple[Message, float]] = ()
    """The work that the background thread may start when the rank reaches this item, with its seconds."""
    handling: float = 0.0
    """Seconds of work on the messages while they are in flight."""
    issue: float = 0.0
    """Seconds in which the host issues this item, while the device may still execute earlier ones."""


class Slice(NamedTuple):
    """An interval of a rank's time: work on an item, or waiting for its issue or for the messages that it needs."""

    item: int
    """The index of the item."""
    seconds: float
    is_waiting: bool
    """True if the rank waits for messages."""
    is_issuing: bool = False
    """True if the device waits until the host has issued all of the item."""


class Timeline(NamedTuple):
    """The simulated time of one rank."""

    slices: list[Slice]
    """The slices in order. Their seconds add up to the end of the last item."""
    ends: list[float]
    """The end of each item, in seconds from the start."""


@dataclass(slots=True, eq=False)
class _RankState:
    items: Sequence[WorkItem]
    number: int = -1
    """The index of the current item."""
    remaining: float = 0.0
    """Seconds of work on the current item that remain."""
    has_posted: bool = False
    """True once the messages of the current item are posted."""
    wake_time: float | None = None
    """When the messages that the rank waits for end; infinite while unknown, None while the rank works."""
    issued: float = 0.0
    """When the host has issued the current item."""
    waits_for_issue: bool = False
    """True if the current slice is a wait for the host."""
    slice_start: float = 0.0
    """When the current slice started."""
    links_free: float = 0.0
    """When the links of the rank will have carried everything that was posted."""
    thread_free: float = 0.0
    """When the background thread will have completed everything that was started."""
    slices: list[Slice] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.number == len(self.items)

    def is_issuing(self, now: float) -> bool:
        """Return whether the device waits for the host to issue the rest of the current item."""
        is_idle = self.remaining <= TINY and not self.has_posted and self.wake_time is None
        return is_idle and self.issued > now

    def find_change(self, now: float, pace: float) -> float:
        """Return the seconds until the rank has done its work, or until its wait ends."""
        if self.wake_time is not None:
            return self.wake_time - now
        return self.issued - now if self.is_issuing(now) else self.remaining / pace

    def end_slice(self, now: float, *, is_waiting: bool, is_issuing: bool = False) -> None:
        """Record the current slice, and start the next one."""
        if now > self.slice_start:
            self.slices.append(Slice(self.number, now - self.slice_start, is_waiting, is_issuing))
        self.slice_start = now

    def start_next_item(self, messages: "_Messages", now: float) -> None:
        """End the current item and start the next one."""
        self.wake_time = None
        if self.number >= 0:
            self.ends.append(now)
        self.number += 1
        if not self.is_done:
            item = self.items[self.number]
            self.remaining, self.has_posted = item.work, False
            self.issued += item.issue
            for message, seconds in item.background:
                self.thread_free = max(now, self.thread_free) + seconds
                messages.set_end(message, self.thread_free)


class _Messages:
    """The messages of all ranks, with the ends of those that have started."""

    def __init__(self, ranks: Sequence[_RankState]) -> None:
        self._missing = Counter(message for rank in ranks for item in rank.items for message, _ in item.posts)
        self._posted: dict[Message, list[tuple[_RankState, float]]] = defaultdict(list)
        self._ends: dict[Message, float] = {}

    def post(self, rank: _RankState, item: WorkItem, now: float) -> None:
        """Post the messages of an item. A message starts with its last post."""
        for message, seconds in item.posts:
            posted = self._posted[message]
            posted.append((rank, seconds))
            self._missing[message] -= 1
            if not self._missing[message]:
                start = max(now, *(poster.links_free for poster, _ in posted))
                end = self._ends[message] = start + max(seconds for _, seconds in posted)
                for poster, _ in posted:
                    poster.links_free = end

    def set_end(self, message: Message, end: float) -> None:
        """Set the end of background work, which is known when the work starts."""
        self._ends[message] = end

    def find_end(self, needed: Sequence[Message]) -> float:
        """Return when all these messages have ended; infinite while one of them has not started."""
        return max((self._ends.get(message, inf) for message in needed), default=0.0)


def simulate_ranks(ranks: Sequence[Sequence[WorkItem]], cores: float | None = None) -> list[Timeline]:
    """Simulate ranks from a common start, and return their timelines.

    All ranks share `cores`. If it is None, each rank has its own device.
    """
    states = [_RankState(items) for items in ranks]
    messages, now = _Messages(states), 0.0
    for rank in states:
        rank.start_next_item(messages, now)
    while active := [rank for rank in states if not rank.is_done]:
        for rank in active:
            if rank.wake_time is not None:
                rank.wake_time = messages.find_end(rank.items[rank.number].needs)
        working = [rank for rank in active if rank.wake_time is None and not rank.is_issuing(now)]
        pace = min(1.0, (cores or inf) / max(len(working), 1))
        step = min(rank.find_change(now, pace) for rank in active)
        assert step < inf, "every rank waits for a message that no rank posts"
        now += max(step, 0.0)
        for rank in working:
            rank.remaining -= step * pace
        for rank in active:
            _continue_rank(rank, messages, now)
    return [Timeline(rank.slices, rank.ends) for rank in states]


def _continue_rank(rank: _RankState, messages: _Messages, now: float) -> None:
    """End what the rank has done by now: its work, or its wait for the host or for messages."""
    if rank.wake_time is not None:
        if rank.wake_time <= now:
            rank.end_slice(now, is_waiting=True)
            rank.start_next_item(messages, now)
    elif rank.is_issuing(now):
        if not rank.waits_for_issue:
            rank.end_slice(now, is_waiting=False)
            rank.waits_for_issue = True
    elif rank.remaining <= TINY:
        if rank.waits_for_issue:
            rank.end_slice(now, is_waiting=False, is_issuing=True)
            rank.waits_for_issue = False
        _finish_work(rank, messages, now)


def _finish_work(rank: _RankState, messages: _Messages, now: float) -> None:
    """Post the messages of the item, or after they are handled, start the next item or wait."""
    rank.end_slice(now, is_waiting=False)
    item = rank.items[rank.number]
    if not rank.has_posted:
        messages.post(rank, item, now)
        rank.has_posted, rank.remaining = True, item.handling
        if item.handling > TINY:
            return
    if messages.find_end(item.needs) <= now:
        rank.start_next_item(messages, now)
    else:
        rank.wake_time = inf
