"""Prefetching: the next item is made while the last one is used, on a thread and, on a GPU, on a stream of its own.

In a replay of shapes alone an item takes memory from where it is begun, and its kernels come where it is asked for.
Making an item must not touch the ledger: the ledger shows the time that the consumer waits.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from harness.device import SideStream, is_gpu
from harness.ledger import Ledger

T = TypeVar("T")


class BackgroundThread:
    """A thread that makes items, one after the other."""

    def __init__(self, device: torch.device, ledger: Ledger | None = None, in_use: int = 1) -> None:
        """`ledger` is that of the consumer, for a replay.

        `in_use` is the number of items that the consumer has taken and not used up when the next one is begun.
        """
        self._device, self._ledger, self._in_use = device, ledger or Ledger(recording=False), in_use
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._stream = SideStream(device) if is_gpu(device) else None
        self._used: list[Any] = []
        """The items whose kernels may still run: the stream would hand their memory to the item that it makes. On
        shapes alone they are kept as long."""

    def __del__(self) -> None:
        """An item that nobody took reads memory that is freed after this."""
        if self._stream is not None and not sys.is_finalizing():
            self._thread.shutdown()
            self._stream.block_current_stream()

    def submit(self, make: Callable[[], T]) -> Callable[[], T]:
        """Starts to make an item; the function that is returned waits for the item."""
        if self._device.type == "meta":
            del self._used[: -self._in_use]
            return partial(self._keep, self._ledger.record_prefetched(make))
        if self._stream is None:
            return self._thread.submit(make).result
        # Earlier items are used up, and the stream waits for the kernels that use them: now they may be freed.
        self._stream.wait_for_current_stream()
        del self._used[: -self._in_use]
        return partial(self._receive, self._stream, self._thread.submit(self._stream.run, make))

    def prefetch_each(
        self, numbers: Iterable[int], make: Callable[[int], T]
    ) -> Iterator[tuple[int, Callable[[], T]]]:
        """The numbers in order, each with a function that waits for its item, which was begun one number earlier."""
        begun = ((number, self.submit(partial(make, number))) for number in numbers)
        coming = next(begun, None)
        while coming:
            last, coming = coming, next(begun, None)
            yield last

    def _keep(self, made: Callable[[], T]) -> T:
        self._used.append(made())
        item: T = self._used[-1]
        return item

    def _receive(self, stream: SideStream, coming: "Future[tuple[T, Any]]") -> T:
        """The item, which the consumer's stream waits for; the host waits only until its kernels are launched."""
        item, made = coming.result()
        stream.block_current_stream_until(made)
        self._used.append(item)
        return item


class Prefetcher(Generic[T]):
    """Items by number, mostly asked for one after the other."""

    def __init__(
        self,
        make: Callable[[int], T],
        device: torch.device,
        ledger: Ledger | None = None,
        in_use: int = 1,
    ) -> None:
        self._make, self._thread = make, BackgroundThread(device, ledger, in_use)
        self._coming: tuple[int, Callable[[], T]] | None = None

    def take(self, number: int) -> T:
        """The item of this number; the next item is begun."""
        if self._coming is None or self._coming[0] != number:
            self._submit(number)
        assert self._coming is not None
        item = self._coming[1]()
        self._submit(number + 1)
        return item

    def _submit(self, number: int) -> None:
        self._coming = number, self._thread.submit(partial(self._make, number))
