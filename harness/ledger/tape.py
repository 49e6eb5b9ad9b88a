"""A tape is a ledger that also records kernels and calls in order, as a sequence of events.

Tapes work in runs and in replays, so that the two can be compared event by event. In a replay the clock counts how
often it is read, which is the same on every machine. In a run the tape can record the CPU time of each event (`timed`),
which excludes waits for other ranks. Because CPU time increases slightly when ranks share cores and caches, ranks can
also take turns to compute: a rank releases its turn while it waits for a message.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from time import thread_time
from typing import Any, NamedTuple, TypeVar

from harness.base.locks import TurnLock
from harness.ledger.ledger import NO_INDEX, Amounts, Clock, Key, Ledger, Scope
from harness.ledger.vocabulary import MOVING, Op

T = TypeVar("T")


class ProductShape(NamedTuple):
    """The shape of a matrix product, (rows x inner) times (inner x columns), and the types of its operands."""

    rows: int
    inner: int
    columns: int
    nonzeros: int
    """The nonzeros of the first operand; 0 for a dense product."""
    values: str
    """The dtype of the values, such as float32."""
    indices: str
    """The dtype of the column indices of a sparse operand; empty for a dense product."""


ALGORITHM = MOVING | {Op.SPMM, Op.GEMM}
"""The ops that do not depend on the engine, unlike copies and local sums."""


@dataclass(slots=True)
class Event:
    """A period under one key with its amounts, or the wait for a call that was issued earlier."""

    key: Key
    amounts: Amounts = field(default_factory=Amounts)
    products: list[ProductShape] = field(default_factory=list)
    kernels: int = 0
    """The number of kernels other than products."""
    streamed: int = 0
    """The bytes read and written by these kernels."""
    drawn: int = 0
    """The number of entries of A sampled on the host."""
    copies: int = 0
    """The number of copies between host and device."""
    copied: int = 0
    """The bytes of these copies."""
    partners: int | None = None
    """The members with which an all-to-all exchanges messages; None for other calls, and in a recorded run."""
    prefetched_after: int = NO_INDEX
    """The index of the event after which a background thread may start this one; NO_INDEX for the main thread."""
    leaves: bool = False
    """True for an asynchronous call, whose result is waited for in a later event."""
    waits_for: int = NO_INDEX
    """The index of the event whose call this event waits for."""
    travels_with: int = NO_INDEX
    """The index of the event whose call also sends the words of this event."""
    cpu_seconds: float = 0.0
    """The CPU time of this event, in a timed tape."""

    @property
    def launches(self) -> int:
        """The number of all kernels, products included."""
        return self.kernels + len(self.products)

    @property
    def does_something(self) -> bool:
        """True if the event has a kernel or a call. Others only mark where something begins."""
        return bool(self.launches or self.amounts.calls)


class OutlineEvent(NamedTuple):
    """An event without times, for comparison. A wait refers to its call by the position in the outline."""

    key: Key
    calls: int
    elements_payload: float
    elements_received: float
    bytes: int
    flops: int
    products: tuple[ProductShape, ...]
    leaves: bool
    waits_for: int


def outline_events(events: Sequence[Event]) -> list[OutlineEvent]:
    """Return the events of the algorithm, in order."""
    kept = [number for number, event in enumerate(events) if event.key.op in ALGORITHM]
    position = {number: index for index, number in enumerate(kept)}
    return [_outline_event(events[number], position) for number in kept]


def _outline_event(event: Event, position: Mapping[int, int]) -> OutlineEvent:
    amounts = event.amounts
    return OutlineEvent(
        event.key,
        amounts.calls,
        amounts.elements_payload,
        amounts.elements_received,
        amounts.bytes,
        amounts.flops,
        tuple(event.products),
        event.leaves,
        position.get(event.waits_for, NO_INDEX),
    )


class CountingClock:
    """A clock whose marks are 0, 1, 2, ..."""

    def __init__(self) -> None:
        self._marks = count()

    def mark(self) -> int:
        return next(self._marks)

    def synchronize(self) -> None:
        """Do nothing: counts can always be read."""

    def elapsed(self, earlier: int, later: int) -> float:
        return float(later - earlier)


class Tape(Ledger):
    """A ledger that also records the events of an epoch, in order."""

    def __init__(
        self, clock: Clock | None = None, *, timed: bool = False, turn: TurnLock | None = None
    ) -> None:
        super().__init__(clock or CountingClock())
        self.is_taping = True
        """If False, the tape behaves like a plain ledger."""
        self._timed, self._since, self._turn = timed, 0.0, turn
        self.events: list[Event] = []
        self._open: Event | None = None
        self._opened = NO_INDEX
        """The index of the open event."""
        self._wait_event: Event | None = None
        self._prefetched_after, self._is_fusing = NO_INDEX, False
        self._is_deferring, self._deferred = False, list[Callable[[], None]]()
        """True while an item is prefetched, and the deferred calls of this tape by its kernels."""
        self.is_simulating = False
        """True while a replay computes what other ranks send."""
        self._companions: dict[Key, Event] = {}
        self._call_events: dict[int, int] = {}
        """The index of a call's event, by the mark at which the call was issued."""
        self.watch: Callable[[Sequence[Event]], None] | None = None
        """Called with all events so far whenever another one begins."""

    def start(self) -> None:
        self.events, self._call_events, self._open, self._wait_event = [], {}, None, None
        super().start()
        self._update_turn(self.current)

    def stop(self) -> dict[Key, Amounts]:
        if self.is_taping:
            self._charge_cpu_time()
            if self._turn:
                self._turn.release()
        return super().stop()

    def _charge_cpu_time(self) -> None:
        """Charge the CPU time since the last change of key to the current event."""
        if self._timed and self.recording:
            now = thread_time()
            self._event_of(self.current).cpu_seconds += now - self._since
            self._since = now

    def _update_turn(self, key: Key) -> None:
        """Acquire the turn to compute, and release it to communicate. Not charged to an event."""
        if self._turn and self.is_taping:
            (self._turn.release if key.op in MOVING else self._turn.acquire)()
        if self._timed:
            self._since = thread_time()

    def switch_to(self, key: Key) -> Key:
        if not self.is_taping:
            return super().switch_to(key)
        if self._wait_event is None:
            self._charge_cpu_time()
        self._open, self._wait_event = self._wait_event, None
        before = super().switch_to(key)
        self._update_turn(key)
        return before

    def add(self, key: Key, **more: float) -> None:
        if self._is_deferring:
            self._deferred.append(lambda: self.add(self.current, **more))
            return
        super().add(key, **more)
        is_epoch_sum = "seconds" in more or "in_flight_seconds" in more
        if self.is_taping and not is_epoch_sum:
            event = self._event_of(key) if key == self.current else self._companion_of(key)
            event.amounts.add(more)

    def record_operator(self, product: ProductShape | None, flops: int, touched: int) -> None:
        """Add the FLOPs and bytes of an operator to the current key, and record its kernel."""
        if self.is_simulating:
            return
        for amounts in (self._amounts_of(self.current), self._event_of(self.current).amounts):
            amounts.flops += flops
            amounts.bytes_touched += touched
        self.record_kernel(product, touched)

    @contextmanager
    def simulating_peers(self) -> Iterator[None]:
        outer, self.is_simulating = self.is_simulating, True
        try:
            yield
        finally:
            self.is_simulating = outer

    def record_kernel(self, product: ProductShape | None, touched: int) -> None:
        """Record a kernel in the current event: the shape of a product, or the bytes of another kernel."""
        if self._is_deferring:
            self._deferred.append(partial(self.record_kernel, product, touched))
            return
        if not (self.recording and self.is_taping) or self._is_fusing:
            return
        event = self._event_of(self.current)
        if product:
            event.products.append(product)
        else:
            event.kernels, event.streamed = event.kernels + 1, event.streamed + touched

    def record_partners(self, send: Sequence[int], receive: Sequence[int], own: int) -> None:
        if self.recording and self.is_taping:
            rows = enumerate(zip(send, receive, strict=True))
            partners = sum(max(both) > 0 for member, both in rows if member != own)
            self._event_of(self.current).partners = partners

    def record_sampled(self, entries: int) -> None:
        if self.recording and self.is_taping:
            self._event_of(self.current).drawn += entries

    def record_copy(self, size: int) -> None:
        """Record a copy of `size` bytes between host and device."""
        if self._is_deferring:
            self._deferred.append(partial(self.record_copy, size))
            return
        if self.recording and self.is_taping:
            event = self._event_of(self.current)
            event.copies, event.copied = event.copies + 1, event.copied + size

    def run_fused(self, function: Callable[..., T], *operands: Any) -> T:
        """Record one kernel, which reads every operand and writes every result once."""
        self._is_fusing = True
        try:
            results = function(*operands)
        finally:
            self._is_fusing = False
        tensors = [*operands, *(results if isinstance(results, tuple) else (results,))]
        self.record_kernel(None, sum(getattr(each, "nbytes", 0) for each in tensors))
        return results

    def record_prefetched(self, make: Callable[[], T]) -> Callable[[], T]:
        """Make the item now, because its memory is in use from now on.

        Its events are recorded where the item is taken, with the position from which they could have started.
        """
        if not (self.recording and self.is_taping):
            return make
        after, calls = len(self.events) - 1, self._deferred
        assert not calls, "prefetches cannot be nested"
        self._is_deferring = True
        try:
            items = [make()]
        finally:
            self._is_deferring, self._deferred = False, []

        def made() -> T:
            self._open, self._prefetched_after = None, after
            try:
                for call in calls:
                    call()
                return items.pop()
            finally:
                self._open, self._prefetched_after = None, NO_INDEX

        return made

    def mark_issued(self) -> Any:
        mark = super().mark_issued()
        if not self.is_taping:
            return mark
        self._event_of(self.current).leaves = True
        self._call_events[mark] = self._opened
        return mark

    def waiting_for(self, key: Key, mark: Any) -> Scope:
        if mark in self._call_events:
            self._charge_cpu_time()
            self._wait_event = Event(key, waits_for=self._call_events.pop(mark))
            self.events.append(self._wait_event)
        return super().waiting_for(key, mark)

    def _event_of(self, key: Key) -> Event:
        if self._open is None or self._open.key != key:
            if self.watch:
                self.watch(self.events)
            self._open, self._opened = Event(key, prefetched_after=self._prefetched_after), len(self.events)
            self.events.append(self._open)
            self._companions = {}
        return self._open

    def _companion_of(self, key: Key) -> Event:
        """Return the event of another row whose words are sent by the call of the current event."""
        self._event_of(self.current)
        if key not in self._companions:
            self._companions[key] = Event(key, travels_with=self._opened)
            self.events.append(self._companions[key])
        return self._companions[key]


def take_median_times(epochs: Sequence[list[Event]]) -> list[Event]:
    """Return the events of the last epoch, each with its median CPU time over the epochs with the same events."""
    last = epochs[-1]
    alike = [events for events in epochs if [event.key for event in events] == [event.key for event in last]]
    for event, *same in zip(last, *alike, strict=True):
        event.cpu_seconds = median([each.cpu_seconds for each in same])
    return last
