"""Time limits that keep the tests of launches short."""

import pytest

from harness.runtime.launch.time_limits import TimeLimits


@pytest.fixture
def short_limits() -> TimeLimits:
    """Limits that end a run soon after it hangs or fails. Runs of users have more time, and end the same way."""
    return TimeLimits(still=2.0, grace=0.3, stack_dump=0.5)
