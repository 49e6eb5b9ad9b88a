"""The number of words that a collective sends, by the conventions of the ledger.

`payload` is the full logical buffer of the call, however the library implements it. `received` is what this rank
receives in a ring algorithm. Neither depends on padding or on the dtype that is sent.
"""

from typing import NamedTuple


class Traffic(NamedTuple):
    """The words of one call on one rank."""

    payload: float
    received: float


def all_reduce(words: int, ranks: int) -> Traffic:
    """Count a reduce-scatter followed by an all-gather of the reduced buffer."""
    return Traffic(words, 2 * (ranks - 1) * words / ranks)


def all_gather(words: int, own: int) -> Traffic:
    """Count the gathered buffer. This rank's piece is not received."""
    return Traffic(words, words - own)


def reduce_scatter(words: int, ranks: int) -> Traffic:
    """Count the buffer before the scatter. Partial sums of the other ranks' pieces pass through this rank."""
    return Traffic(words, (ranks - 1) * words / ranks)


def broadcast(words: int, *, root: bool) -> Traffic:
    """Count the buffer, which every rank except the root receives once."""
    return Traffic(words, 0 if root else words)


def all_to_all(words: int, own: int) -> Traffic:
    """Count the rows that this rank has afterwards. The rows that it keeps are not received."""
    return Traffic(words, words - own)


def send(words: int) -> Traffic:
    """Count a message that is sent."""
    return Traffic(words, 0)


def recv(words: int) -> Traffic:
    """Count a message that is received."""
    return Traffic(words, words)
