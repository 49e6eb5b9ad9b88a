"""What mini-batches needed of other ranks: counted by whoever fetches it, told in a run's record."""

from dataclasses import dataclass


@dataclass
class Remote:
    """Rows of features."""

    rows: int = 0
    """That other ranks have."""
    cached: int = 0
    """Those of them that were at hand."""

    def forget(self) -> None:
        """Counting begins anew."""
        self.rows = self.cached = 0
