"""Ranges of integers: splits into blocks, and intersections."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise


def split_range(n: int, parts: int) -> list[range]:
    """Split range(n) into blocks of ceil(n / parts), as in CAGNET and Plexus. The last blocks may be short or empty."""
    return list(_split_once(n, parts))


@lru_cache(maxsize=1024)
def _split_once(n: int, parts: int) -> tuple[range, ...]:
    return tuple(split_part(n, parts, i) for i in range(parts))


def split_part(n: int, parts: int, i: int) -> range:
    """Return the i-th block of `split_range`."""
    assert n >= 0 and parts >= 1, (n, parts)
    block = -(-n // parts)
    return range(min(i * block, n), min((i + 1) * block, n))


def split_evenly(n: int, parts: int) -> list[range]:
    """Split range(n) into blocks whose sizes differ by at most 1, the longer blocks first."""
    assert n >= 0 and parts >= 1, (n, parts)
    block, longer = divmod(n, parts)
    return ranges_between([i * block + min(i, longer) for i in range(parts + 1)])


def split_evenly_part(n: int, parts: int, i: int) -> range:
    """Return the i-th block of `split_evenly`."""
    block, longer = divmod(n, parts)
    return range(i * block + min(i, longer), (i + 1) * block + min(i + 1, longer))


def ranges_between(bounds: Sequence[int]) -> list[range]:
    """Return the ranges between consecutive bounds."""
    return [range(start, stop) for start, stop in pairwise(bounds)]


def slice_range(whole: range, part: range) -> range:
    """Return a part of a range; `part` is relative to its start."""
    return whole[part.start : part.stop]


def intersect_ranges(one: range, other: range) -> range:
    """Return the intersection of two ranges, empty if they are disjoint."""
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))
