"""A ledger that also keeps the order of things: every kernel and every call, one event each.

It works in a run as well as in a replay, so the two can be compared event by event. Its clock counts the times it was
asked: time that is the same on every machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from harness.ledger import MOVING, NOBODY, Amounts, Key, Ledger, Op, Scope

ALGORITHM = MOVING | {Op.SPMM, Op.GEMM}
"""What an algorithm consists of, whatever the engine; copies and sums may be another engine's business."""


@dataclass(slots=True)
class Event:
    """A stretch under one key in which something was counted, or the wait for a call that left earlier."""

    key: Key
    amounts: Amounts = field(default_factory=Amounts)
    leaves: bool = False
    """The call's result is waited for in a later event."""
    waits_for: int = NOBODY
    """The number of the event whose call this one waits for."""


class Line(NamedTuple):
    """An event as it can be compared: no time, and the wait for a call by the number of its line."""

    key: Key
    calls: int
    words_payload: float
    words_received: float
    bytes: int
    flops: int
    leaves: bool
    waits_for: int


def outline(events: Sequence[Event]) -> list[Line]:
    """The events of the algorithm, in order."""
    kept = [number for number, event in enumerate(events) if event.key.op in ALGORITHM]
    line_of = {number: line for line, number in enumerate(kept)}
    return [_line(events[number], line_of) for number in kept]


def _line(event: Event, line_of: Mapping[int, int]) -> Line:
    amounts = event.amounts
    return Line(
        event.key,
        amounts.calls,
        amounts.words_payload,
        amounts.words_received,
        amounts.bytes,
        amounts.flops,
        event.leaves,
        line_of.get(event.waits_for, NOBODY),
    )


class CountingClock:
    """Each mark is one later than the one before."""

    def __init__(self) -> None:
        self._marks = count()

    def mark(self) -> int:
        return next(self._marks)

    def settle(self) -> None:
        """Counts can always be read."""

    def between(self, earlier: int, later: int) -> float:
        return float(later - earlier)


class Tape(Ledger):
    """The events of an epoch, in order, besides its entries."""

    def __init__(self) -> None:
        super().__init__(CountingClock())
        self.events: list[Event] = []
        self._open: Event | None = None
        self._wait: Event | None = None
        self._left: dict[int, int] = {}
        """The mark at which a call left, and the number of its event."""

    def start(self) -> None:
        self.events, self._left = [], {}
        super().start()

    def move_to(self, key: Key) -> Key:
        self._open, self._wait = self._wait, None
        return super().move_to(key)

    def add(self, key: Key, **more: float) -> None:
        super().add(key, **more)
        if (
            "seconds" not in more and "in_flight_seconds" not in more
        ):  # what an epoch is summed up to at its end
            amounts = self._event(key).amounts
            for name, value in more.items():
                setattr(amounts, name, getattr(amounts, name) + value)

    def leave(self) -> Any:
        mark = super().leave()
        self._left[mark] = len(self.events)
        self._event(self.here).leaves = True
        return mark

    def landing(self, key: Key, left: Any) -> Scope:
        if left in self._left:
            self._wait = Event(key, waits_for=self._left.pop(left))
            self.events.append(self._wait)
        return super().landing(key, left)

    def _event(self, key: Key) -> Event:
        if self._open is None or self._open.key != key:
            self._open = Event(key)
            self.events.append(self._open)
        return self._open
