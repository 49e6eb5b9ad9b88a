"""A clock for ledgers whose time is said by the test."""


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def synchronize(self) -> None:
        """Marks can always be read."""

    def elapsed(self, earlier: float, later: float) -> float:
        return later - earlier

    def delay(self, seconds: float) -> None:
        self.now += seconds
