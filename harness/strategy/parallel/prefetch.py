"""Prefetching: the next item is made on a background thread, and on a GPU on a separate stream, while the last is used.

In a replay, an item uses memory from where it is submitted, and its kernels are recorded where it is taken. Making an
item must not use the ledger, which records the time that the consumer waits.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from harness.base.device import SideStream, is_gpu
from harness.ledger import Ledger

T = TypeVar("T")


class BackgroundThread:
    """A thread that makes items sequentially."""

    def __init__(self, device: torch.device, ledger: Ledger | None = None, in_use: int = 1) -> None:
        """`ledger` is the consumer's, for a replay.

        `in_use` is the number of items that the consumer still uses when the next one is submitted.
        """
        self._device, self._ledger, self._in_use = device, ledger or Ledger(recording=False), in_use
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._stream = SideStream(device) if is_gpu(device) else None
        self._used: list[Any] = []
        """Items whose kernels may still run, kept so that the stream does not reuse their memory. A replay keeps them
        for as long."""

    def __del__(self) -> None:
        """Wait for an item that was not taken, because the memory that it reads is freed after this."""
        if self._stream is not None and not sys.is_finalizing():
            self._thread.shutdown()
            self._stream.block_current_stream()

    def submit(self, make: Callable[[], T]) -> Callable[[], T]:
        """Start to make an item, and return a function that waits for it."""
        if self._device.type == "meta":
            del self._used[: -self._in_use]
            return partial(self._keep, self._ledger.record_prefetched(make))
        if self._stream is None:
            return self._thread.submit(make).result
        # The stream waits for the kernels that use earlier items, which may then be freed.
        self._stream.wait_for_current_stream()
        del self._used[: -self._in_use]
        return partial(self._receive, self._stream, self._thread.submit(self._stream.run, make))

    def prefetch_each(
        self, numbers: Iterable[int], make: Callable[[int], T]
    ) -> Iterator[tuple[int, Callable[[], T]]]:
        """Yield the numbers in order, each with a function that waits for its item, prefetched one number ahead."""
        submitted = ((number, self.submit(partial(make, number))) for number in numbers)
        pending = next(submitted, None)
        while pending:
            last, pending = pending, next(submitted, None)
            yield last
        self._used.clear()  # the next item is begun behind the kernels of this pass

    def _keep(self, made: Callable[[], T]) -> T:
        self._used.append(made())
        item: T = self._used[-1]
        return item

    def _receive(self, stream: SideStream, pending: "Future[tuple[T, Any]]") -> T:
        """Return an item that the consumer's stream waits for. The host waits only until its kernels are launched."""
        item, made = pending.result()
        stream.block_current_stream_until(made)
        self._used.append(item)
        return item


class Prefetcher(Generic[T]):
    """Makes items by number, and prefetches the next number."""

    def __init__(
        self,
        make: Callable[[int], T],
        device: torch.device,
        ledger: Ledger | None = None,
        in_use: int = 1,
    ) -> None:
        self._make, self._thread = make, BackgroundThread(device, ledger, in_use)
        self._pending: tuple[int, Callable[[], T]] | None = None

    def take(self, number: int) -> T:
        """Return the item of this number, and start to make the next one."""
        if self._pending is None or self._pending[0] != number:
            self._submit(number)
        assert self._pending is not None
        item = self._pending[1]()
        self._submit(number + 1)
        return item

    def _submit(self, number: int) -> None:
        self._pending = number, self._thread.submit(partial(self._make, number))
