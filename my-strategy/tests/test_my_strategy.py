"""The strategy holds every law of the conformance kit. `harness check my-strategy --quick` prints the same as a page."""

from collections.abc import Iterator

import pytest
from harness.conformance import check
from harness.launch.worker_pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Ranks that stay alive between tests, so that each imports torch only once."""
    with Pool() as ranks:
        yield ranks


def test_my_strategy_conforms(pool: Pool) -> None:
    findings = list(check("my-strategy", pool.run, "quick"))
    assert [f"{each.law}: {each.detail}; {each.look}" for each in findings if not each.holds] == []
