"""A collective as a method of an axis: waited for at once, or later by whoever wants its result.

    H = axis.broadcast(H, root=0, ...)              issued and waited for
    coming = axis.broadcast.later(H, root=0, ...)   issued; `coming.wait()` is the result
    call = axis.broadcast.call(H, root=0, ...)      not issued yet: `call.now()` and `call.later()` do

What a call moves and how it starts is said once, in `harness.comm.axis`; how it is charged to the ledger, here.
"""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from harness.comm.collectives import Started
from harness.comm.pending import Landed, Pending
from harness.comm.traffic import Traffic
from harness.ledger import Key, Ledger

P = ParamSpec("P")
T = TypeVar("T")
Start = Callable[[bool], Started[T]]
"""Hands a call to the library, told whether it will be waited for later."""


class Call(Generic[T]):
    """A collective that is about to be issued, once."""

    __slots__ = ("_key", "_ledger", "_start", "_words")

    def __init__(self, ledger: Ledger, key: Key, words: Traffic | None, start: Start[T]) -> None:
        """`words` are None for a call that counts its own."""
        self._ledger, self._key, self._words, self._start = ledger, key, words, start

    def now(self) -> T:
        """Issues it and waits for it, in its row of the ledger."""
        with self._ledger.at(self._key):
            started = self._begin(False)
            for work in started.works:
                work.wait()
            return started.land()

    def later(self) -> Pending[T]:
        """Issues it in its row, to which the wait will be charged too."""
        ledger = self._ledger
        with ledger.at(self._key):
            left = ledger.leave() if ledger.recording else None
            started = self._begin(True)
        return Pending(ledger, self._key, left, started)

    def _begin(self, later: bool) -> Started[T]:
        started = self._start(later)
        if self._words is not None:
            self._ledger.count(
                payload=self._words.payload, received=self._words.received, bytes=started.bytes
            )
        return started


class Nothing(Call[T]):
    """Where there is nothing to do, as on an axis of one: the result is there already."""

    __slots__ = ("_result",)

    def __init__(self, result: T) -> None:
        self._result = result

    def now(self) -> T:
        return self._result

    def later(self) -> Pending[T]:
        return Landed(self._result)


class Bound(Generic[P, T]):
    """A collective of one axis."""

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
    """Makes a method that prepares a call into one that can be called in all three ways."""

    def __init__(self, prepare: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._prepare, self.__doc__ = prepare, prepare.__doc__

    def __get__(self, axis: Any, owner: type) -> Bound[P, T]:
        return Bound(self._prepare, axis)
