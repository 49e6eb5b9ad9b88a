"""The memory and the workers that a build may use."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from harness.base.formatting import GIB
from harness.base.progress import Log, ignore_step

T = TypeVar("T")
SHARED_BYTES_PER_VERTEX = 24
"""Memory that all workers share: labels, split, degrees, and the map of a partition in both directions."""
LOG_INTERVAL = 2.0
"""Seconds between progress messages."""


@dataclass(frozen=True)
class BuildResources:
    """Limits of a build, and where its progress messages go."""

    memory: int = 4 * GIB
    """Total memory in bytes."""
    workers: int = 2
    """Number of threads."""
    log: Log = field(default=ignore_step, compare=False)

    def get_worker_memory(self, n: int) -> int:
        """Return the bytes that remain for all workers together, for a graph of `n` vertices."""
        return max(self.memory - SHARED_BYTES_PER_VERTEX * n, self.memory // 4)

    def run_parallel(
        self, description: str, jobs: Sequence[Callable[[], T]], max_workers: int | None = None
    ) -> list[T]:
        """Run the jobs in threads and return their results in order. Kernels and file I/O release the GIL."""
        results: list[T] = []
        start = last_logged = time.monotonic()
        with ThreadPoolExecutor(min(self.workers, max_workers or self.workers)) as pool:
            for result in pool.map(lambda job: job(), jobs):
                results.append(result)
                now = time.monotonic()
                if now - last_logged > LOG_INTERVAL:
                    remaining = (now - start) * (len(jobs) - len(results)) / len(results)
                    self.log(f"{description}: {len(results)} of {len(jobs)}, {remaining:.0f} s left")
                    last_logged = now
        return results
