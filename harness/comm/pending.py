"""A collective under way. Its wait is charged to the row of the ledger in which it was issued."""

from typing import Any, Generic, TypeVar
from weakref import WeakSet

from torch.distributed import Work

from harness.comm.collectives import Started
from harness.comm.rounds import Flight
from harness.ledger import Key, Ledger

T = TypeVar("T")


class Pending(Generic[T]):
    """A call that was issued. Its buffers are neither read nor written before `wait`."""

    __slots__ = ("__weakref__", "_key", "_ledger", "_left", "_result", "_started", "_told")

    def __init__(self, ledger: Ledger, key: Key, left: Any, started: Started[T]) -> None:
        self._ledger, self._key, self._left = ledger, key, left
        self._started: Started[T] | None = started
        self._result: T
        self._told = left is None or (bool(started.works) and _tell(started.works[-1], ledger, key, left))
        _under_way.add(self)

    def wait(self) -> T:
        """The result; a second call returns it again."""
        if self._started is not None:
            ledger = self._ledger
            with ledger.landing(self._key, self._left):
                for work in self._started.works:
                    work.wait()
                if not self._told:
                    ledger.flew(self._key, self._left, ledger.clock.mark())
                self._result = self._started.land()
            self._started = None
            _under_way.discard(self)
        return self._result


_under_way: "WeakSet[Pending[Any]]" = WeakSet()


def settle(ledger: Ledger) -> None:
    """Waits for all calls of one ledger that were issued and not waited for, as long as somebody holds them."""
    for pending in [each for each in _under_way if each._ledger is ledger]:
        pending.wait()


class Landed(Pending[T]):
    """The result of a call for which there was nothing to do, as on an axis of one."""

    __slots__ = ()

    def __init__(self, result: T) -> None:
        self._started = None
        self._result = result


def _tell(work: Work | Flight, ledger: Ledger, key: Key, left: Any) -> bool:
    """Asks the library to note the end of a flight; gloo cannot say when a message ended, only that it did."""
    try:
        future = work.get_future()
    except RuntimeError:
        return False
    future.add_done_callback(lambda _: ledger.flew(key, left, ledger.clock.mark()))
    return True
