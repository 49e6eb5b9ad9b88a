"""The next thing is made while the last one is used: on a thread of its own, and on a stream of its own on a GPU.

Of shapes alone it is made when it is asked for. What is made must not touch the ledger: what shows there is the wait.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Aside:
    """A thread that makes things, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self, make: Callable[[], T]) -> Callable[[], T]:
        """What is returned waits for the thing."""
        if self._device.type == "meta":
            return make
        if self._stream:  # memory that earlier things leave may still be read by what was asked of the device
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return self._thread.submit(self._made, make).result

    def each(self, numbers: Iterable[int], make: Callable[[int], T]) -> Iterator[tuple[int, Callable[[], T]]]:
        """Numbers in their order, and how to wait for what is made of each, which began one number earlier."""
        begun = ((number, self.begin(partial(make, number))) for number in numbers)
        coming = next(begun, None)
        while coming:
            last, coming = coming, next(begun, None)
            yield last

    def _made(self, make: Callable[[], T]) -> T:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            made = make()
            if self._stream:
                self._stream.synchronize()  # this thread may wait: the one that computes does not
        return made


class Ahead(Generic[T]):
    """Things by number, mostly asked for one after the other."""

    def __init__(self, make: Callable[[int], T], device: torch.device) -> None:
        self._make, self._aside = make, Aside(device)
        self._coming: tuple[int, Callable[[], T]] | None = None

    def take(self, number: int) -> T:
        """That of this number; the one after it is on its way from now on."""
        if self._coming is None or self._coming[0] != number:
            self._send_for(number)
        assert self._coming is not None
        made = self._coming[1]()
        self._send_for(number + 1)
        return made

    def _send_for(self, number: int) -> None:
        self._coming = number, self._aside.begin(partial(self._make, number))
