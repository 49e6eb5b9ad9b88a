"""The words that a collective moves by the ledger's conventions.

`payload` is the full logical buffer of the call, whatever the library does with it. `received` is what a ring
brings to this rank. Neither depends on padding or on the type that travels.
"""

from typing import NamedTuple


class Traffic(NamedTuple):
    """Words of one call on one rank."""

    payload: float
    received: float


def all_reduce(words: int, ranks: int) -> Traffic:
    """Counts a reduce-scatter and then an all-gather of the reduced buffer."""
    return Traffic(words, 2 * (ranks - 1) * words / ranks)


def all_gather(words: int, own: int) -> Traffic:
    """Counts the gathered buffer; this rank's own piece is not received."""
    return Traffic(words, words - own)


def reduce_scatter(words: int, ranks: int) -> Traffic:
    """Counts the buffer before the scatter; partial sums of the other ranks' pieces pass through this rank."""
    return Traffic(words, (ranks - 1) * words / ranks)


def broadcast(words: int, *, root: bool) -> Traffic:
    """Counts the buffer, which every rank but the root receives once."""
    return Traffic(words, 0 if root else words)


def all_to_all(arriving: int, own: int) -> Traffic:
    """Counts the rows that this rank has afterwards; the rows that it keeps are not received."""
    return Traffic(arriving, arriving - own)


def send(words: int) -> Traffic:
    """Counts a message that leaves."""
    return Traffic(words, 0)


def recv(words: int) -> Traffic:
    """Counts a message that arrives."""
    return Traffic(words, words)
