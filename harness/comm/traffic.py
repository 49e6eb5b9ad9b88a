"""How many words a collective is said to move: the ledger's conventions, in one place.

`payload` is the full logical buffer of the call, whatever the library does with it. `received` is what a ring
brings to this rank. Neither counts padding, nor the type that travels.
"""

from typing import NamedTuple


class Traffic(NamedTuple):
    """Words of one call on one rank."""

    payload: float
    received: float


def all_reduce(words: int, ranks: int) -> Traffic:
    """A reduce-scatter, then a gather, of the reduced buffer."""
    return Traffic(words, 2 * (ranks - 1) * words / ranks)


def all_gather(words: int, own: int) -> Traffic:
    """The gathered buffer; this rank's own piece does not travel to it."""
    return Traffic(words, words - own)


def reduce_scatter(words: int, ranks: int) -> Traffic:
    """The buffer before it is scattered; partial sums of the other ranks' pieces pass through this rank."""
    return Traffic(words, (ranks - 1) * words / ranks)


def broadcast(words: int, *, root: bool) -> Traffic:
    """The buffer, once to every rank but the root."""
    return Traffic(words, 0 if root else words)


def all_to_all(arriving: int, own: int) -> Traffic:
    """What lies here afterwards; the rows that this rank keeps do not travel."""
    return Traffic(arriving, arriving - own)


def send(words: int) -> Traffic:
    """What leaves."""
    return Traffic(words, 0)


def recv(words: int) -> Traffic:
    """What arrives."""
    return Traffic(words, words)
