"""What a paper says a strategy costs: one line a quantity, to be held against what it costs here."""

from enum import StrEnum
from typing import NamedTuple


class Quantity(StrEnum):
    """What a formula speaks of, of one rank and epoch."""

    WORDS = "words"
    CALLS = "messages"
    FORWARD_WORDS = "words forward"
    FORWARD_CALLS = "messages forward"
    """Those of the layers' forward pass alone, without the loss."""
    LAYOUT = "layout"
    """A factor that follows from who holds what."""


class Published(NamedTuple):
    """A formula of a paper, with its value for one spec."""

    quantity: Quantity
    formula: str
    claims: tuple[str, ...]
    """The ids under which the numbers of papers are listed."""
    value: float
    because: str
    """Where and why ours differs."""
    ours: float | None = None
    """The same by our layouts; words and messages are counted instead."""
