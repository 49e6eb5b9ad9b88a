"""What all tests share: ranks that stay alive for the whole session, and examples that are the same every time."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from harness.launch.pool import Pool


settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("repeatable")


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
