"""Ranges of whole numbers: blocks of equal or given sizes, and intersections."""

from collections.abc import Sequence
from itertools import pairwise


def split(n: int, parts: int) -> list[range]:
    """0..n in blocks of ceil(n / parts), as in CAGNET and Plexus: the last blocks may be short, or empty."""
    return [split_part(n, parts, i) for i in range(parts)]


def split_part(n: int, parts: int, i: int) -> range:
    """The i-th block of `split`."""
    assert n >= 0 and parts >= 1, (n, parts)
    block = -(-n // parts)
    return range(min(i * block, n), min((i + 1) * block, n))


def split_evenly(n: int, parts: int) -> list[range]:
    """0..n in blocks whose sizes differ by at most 1, the longer blocks first."""
    assert n >= 0 and parts >= 1, (n, parts)
    block, longer = divmod(n, parts)
    return ranges_between([i * block + min(i, longer) for i in range(parts + 1)])


def ranges_between(bounds: Sequence[int]) -> list[range]:
    """The ranges between consecutive bounds."""
    return [range(start, stop) for start, stop in pairwise(bounds)]


def subrange(whole: range, part: range) -> range:
    """The part of a range, given relative to the start of the range."""
    return whole[part.start : part.stop]


def intersect(one: range, other: range) -> range:
    """The intersection of two ranges; empty if disjoint."""
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))
