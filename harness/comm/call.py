"""Collectives as methods of an axis: synchronous, asynchronous or deferred.

    H = axis.broadcast(H, root=0, ...)               synchronous
    pending = axis.broadcast.later(H, root=0, ...)   asynchronous: `pending.wait()` returns the result
    call = axis.broadcast.call(H, root=0, ...)       deferred: `call.now()` or `call.later()` issues it

`harness.comm.axis` defines what each call sends; this module charges calls to the ledger.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from torch.distributed import Work

from harness.comm.collectives import StartedCall
from harness.comm.ring_collectives import RingWork
from harness.comm.traffic import Traffic
from harness.ledger import Key, Ledger

# Asynchronous calls. The wait is charged to the row of the ledger in which the call was issued.

T = TypeVar("T")


class Pending(Generic[T]):
    """A handle to an asynchronous call. Its buffers must not be read or written before `wait`."""

    __slots__ = ("__weakref__", "_is_recorded", "_key", "_ledger", "_mark", "_result", "_started")

    def __init__(self, ledger: Ledger, key: Key, mark: Any, started: StartedCall[T]) -> None:
        self._ledger, self._key, self._mark = ledger, key, mark
        self._started: StartedCall[T] | None = started
        self._result: T
        self._is_recorded = mark is None or (
            bool(started.works) and _record_end(started.works[-1], ledger, key, mark)
        )
        _in_flight.add(self)

    def wait(self) -> T:
        """Wait for the call and return its result. Later calls return the same result at once."""
        if self._started is not None:
            ledger = self._ledger
            with ledger.waiting_for(self._key, self._mark):
                for work in self._started.works:
                    work.wait()
                if not self._is_recorded:
                    ledger.record_in_flight(self._key, self._mark, ledger.clock.mark())
                self._result = self._started.result()
            self._started = None
            _in_flight.discard(self)
        return self._result


_in_flight: "WeakSet[Pending[Any]]" = WeakSet()


def drain(ledger: Ledger) -> None:
    """Wait for all asynchronous calls of a ledger that are still referenced."""
    for pending in [each for each in _in_flight if each._ledger is ledger]:
        pending.wait()


class CompletedCall(Pending[T]):
    """A handle to a call that sent nothing, as on an axis of one rank."""

    __slots__ = ()

    def __init__(self, result: T) -> None:
        self._started = None
        self._result = result


def _record_end(work: Work | RingWork, ledger: Ledger, key: Key, mark: Any) -> bool:
    """Record on the ledger when the call completes. Return False where that is impossible: gloo's messages have no
    future, and in a CUDA graph the callback would run on a stream that the graph does not wait for."""
    if ledger.capturing:
        return False
    try:
        future = work.get_future()
    except RuntimeError:
        return False
    future.add_done_callback(lambda _: ledger.record_in_flight(key, mark, ledger.clock.mark()))
    return True


P = ParamSpec("P")
Start = Callable[[bool], StartedCall[T]]
"""Issues a call to the library; the argument is True for an asynchronous call."""


class Call(Generic[T]):
    """A collective that has not been issued yet. It may be issued once."""

    __slots__ = ("_key", "_ledger", "_start", "_words")

    def __init__(self, ledger: Ledger, key: Key, words: Traffic | None, start: Start[T]) -> None:
        """`words` is None if `start` counts the words itself."""
        self._ledger, self._key, self._words, self._start = ledger, key, words, start

    def now(self) -> T:
        """Issue the call and wait for its result, in its row of the ledger."""
        with self._ledger.at(self._key):
            started = self._issue(False)
            for work in started.works:
                work.wait()
            return started.result()

    def later(self) -> Pending[T]:
        """Issue the call asynchronously, in its row of the ledger. The wait will be charged to the same row."""
        ledger = self._ledger
        with ledger.at(self._key):
            mark = ledger.mark_issued() if ledger.recording else None
            started = self._issue(True)
        return Pending(ledger, self._key, mark, started)

    def issue(self, *, overlap: bool) -> Pending[T]:
        """Issue the call. Without `overlap`, also wait for its result, so that `wait` returns at once."""
        return self.later() if overlap else CompletedCall(self.now())

    def _issue(self, later: bool) -> StartedCall[T]:
        started = self._start(later)
        if self._words is not None:
            self._ledger.count_call(
                payload=self._words.payload, received=self._words.received, bytes=started.bytes
            )
        return started


class EmptyCall(Call[T]):
    """A call that sends nothing, as on an axis of one rank: its result is its input."""

    __slots__ = ("_result",)

    def __init__(self, result: T) -> None:
        self._result = result

    def now(self) -> T:
        return self._result

    def later(self) -> Pending[T]:
        return CompletedCall(self._result)


class BoundCollective(Generic[P, T]):
    """A collective bound to an axis."""

    __slots__ = ("_axis", "_prepare")

    def __init__(self, prepare: Callable[Concatenate[Any, P], Call[T]], axis: Any) -> None:
        self._prepare, self._axis = prepare, axis

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._prepare(self._axis, *args, **kwargs).now()

    def later(self, *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        return self._prepare(self._axis, *args, **kwargs).later()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        return self._prepare(self._axis, *args, **kwargs)


class collective(Generic[P, T]):  # noqa: N801  a decorator, as `property` is
    """Decorator: turns a method that prepares a `Call` into a collective with the three ways of calling it."""

    def __init__(self, prepare: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._prepare, self.__doc__ = prepare, prepare.__doc__

    def __get__(self, axis: Any, owner: type) -> BoundCollective[P, T]:
        return BoundCollective(self._prepare, axis)


# Comparison of the members' calls, for tests of strategies (`harness.comm.agreement`).

_comparing = ContextVar("comparing", default=False)
"""Set for one thread only, so calls of a background thread are not compared."""


@contextmanager
def compare_calls() -> Iterator[None]:
    """Compare the collectives of this thread with those of the other members, until the context ends."""
    token = _comparing.set(True)
    try:
        yield
    finally:
        _comparing.reset(token)


def is_comparing() -> bool:
    """Return True in `compare_calls`."""
    return _comparing.get()
