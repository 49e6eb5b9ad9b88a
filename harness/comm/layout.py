"""The coordinates of a rank in a grid, and the grids of a number of ranks: plain arithmetic without torch."""

from collections.abc import Mapping

from harness.ledger.vocabulary import AxisName

Coordinates = Mapping[AxisName, int]
"""The index of a rank along every axis."""


def coordinates(shape: Mapping[AxisName, int], rank: int) -> dict[AxisName, int]:
    """The coordinates of a rank: row-major, the first axis slowest."""
    at: dict[AxisName, int] = {}
    for name in reversed(list(shape)):
        rank, at[name] = divmod(rank, shape[name])
    assert rank == 0, "the rank lies outside the grid"
    return {name: at[name] for name in shape}


def rank_at(shape: Mapping[AxisName, int], at: Coordinates) -> int:
    """The rank at these coordinates: the inverse of `coordinates`."""
    rank = 0
    for name, size in shape.items():
        assert 0 <= at[name] < size, (name, at[name], size)
        rank = rank * size + at[name]
    return rank


def list_grids(ranks: int, *axes: AxisName) -> list[dict[AxisName, int]]:
    """Every grid of so many ranks over these axes, the squarest first, and among equals those long in the last axes."""
    shapes: list[tuple[int, ...]] = [(ranks,)]
    for _ in axes[1:]:
        shapes = [(*shape[:-1], low, shape[-1] // low) for shape in shapes for low in _divisors(shape[-1])]
    return [
        dict(zip(axes, shape, strict=True)) for shape in sorted(shapes, key=lambda shape: (sum(shape), shape))
    ]


def _divisors(n: int) -> list[int]:
    return [low for low in range(1, n + 1) if n % low == 0]
