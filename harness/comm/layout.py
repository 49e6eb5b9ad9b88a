"""Plain arithmetic of layouts: how rows are shared among parts, and where a rank stands in a grid.

It knows nothing of tensors or processes, and does not import torch.
"""

from collections.abc import Mapping
from itertools import pairwise

from harness.ledger.vocabulary import AxisName


def split(n: int, parts: int) -> list[range]:
    """0..n in blocks of ceil(n / parts), as CAGNET and Plexus do: the last may be short, or empty."""
    return [part(n, parts, i) for i in range(parts)]


def part(n: int, parts: int, i: int) -> range:
    """The i-th block of `split`."""
    assert n >= 0 and parts >= 1, (n, parts)
    block = -(-n // parts)
    return range(min(i * block, n), min((i + 1) * block, n))


def balanced(n: int, parts: int) -> list[range]:
    """0..n in blocks whose sizes differ by at most one, the longer ones first."""
    assert n >= 0 and parts >= 1, (n, parts)
    block, longer = divmod(n, parts)
    starts = [i * block + min(i, longer) for i in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def common(one: range, other: range) -> range:
    """What both have."""
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


def coordinates(shape: Mapping[AxisName, int], rank: int) -> dict[AxisName, int]:
    """Where a rank stands: row-major, the first axis slowest."""
    at: dict[AxisName, int] = {}
    for name in reversed(list(shape)):
        rank, at[name] = divmod(rank, shape[name])
    assert rank == 0, "the rank lies outside the grid"
    return {name: at[name] for name in shape}


def rank_at(shape: Mapping[AxisName, int], at: Mapping[AxisName, int]) -> int:
    """The rank that stands there: the inverse of `coordinates`."""
    rank = 0
    for name, size in shape.items():
        assert 0 <= at[name] < size, (name, at[name], size)
        rank = rank * size + at[name]
    return rank


def grids_of(ranks: int, *axes: AxisName) -> list[dict[AxisName, int]]:
    """Every grid of so many ranks over these axes, the squarest first; of equals, those long in the last axes."""
    shapes: list[tuple[int, ...]] = [(ranks,)]
    for _ in axes[1:]:
        shapes = [(*shape[:-1], low, shape[-1] // low) for shape in shapes for low in _divisors(shape[-1])]
    return [
        dict(zip(axes, shape, strict=True)) for shape in sorted(shapes, key=lambda shape: (sum(shape), shape))
    ]


def _divisors(n: int) -> list[int]:
    return [low for low in range(1, n + 1) if n % low == 0]
