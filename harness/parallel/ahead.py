"""The next thing is made while the last one is used: on a thread of its own, and on a stream of its own on a GPU.

Of shapes alone it is made when it is asked for. What is made must not touch the ledger: what shows there is the wait.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Ahead(Generic[T]):
    """Things by number, mostly asked for one after the other."""

    def __init__(self, make: Callable[[int], T], device: torch.device) -> None:
        self._make, self._device = make, device
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._coming: tuple[int, Future[T]] | None = None

    def take(self, number: int) -> T:
        """That of this number; the one after it is on its way from now on."""
        if self._device.type == "meta":
            return self._make(number)
        if self._coming is None or self._coming[0] != number:
            self._send_for(number)
        assert self._coming is not None
        made = self._coming[1].result()
        self._send_for(number + 1)
        return made

    def _send_for(self, number: int) -> None:
        if self._stream:  # memory that earlier things leave may still be read by what was asked of the device
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._coming = number, self._thread.submit(self._made, number)

    def _made(self, number: int) -> T:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            made = self._make(number)
            if self._stream:
                self._stream.synchronize()  # this thread may wait: the one that computes does not
        return made
