"""What several test files share: ranks that stay alive for the whole session."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.launch.pool import Pool


@pytest.fixture(scope="session")
def pool() -> "Iterator[Pool]":
    """Rank processes; the first job pays for importing torch, the others for a process group."""
    from harness.launch.pool import Pool

    with Pool() as processes:
        yield processes


@pytest.fixture(scope="session")
def ranks(pool: "Pool") -> Callable[..., list[Any]]:
    """`ranks(world, function, *arguments)`: the results of a top-level function on every rank, in rank order."""
    return pool.run
