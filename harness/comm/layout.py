"""Coordinates of ranks in a grid, and the grids of a given number of ranks. Does not import torch."""

from collections.abc import Collection, Mapping

from harness.ledger.vocabulary import AxisName

Coordinates = Mapping[AxisName, int]
"""The index of a rank along every axis."""


def coordinates(shape: Mapping[AxisName, int], rank: int) -> dict[AxisName, int]:
    """Return the coordinates of a rank, in row-major order."""
    at: dict[AxisName, int] = {}
    for name in reversed(list(shape)):
        rank, at[name] = divmod(rank, shape[name])
    assert rank == 0, "the rank lies outside the grid"
    return {name: at[name] for name in shape}


def rank_at(shape: Mapping[AxisName, int], at: Coordinates) -> int:
    """Return the rank at these coordinates: the inverse of `coordinates`."""
    rank = 0
    for name, size in shape.items():
        assert 0 <= at[name] < size, (name, at[name], size)
        rank = rank * size + at[name]
    return rank


def list_members(
    shape: Mapping[AxisName, int], at: Coordinates, names: Collection[AxisName]
) -> tuple[int, ...]:
    """Return the ranks with the coordinates `at` except along the axes `names`, in ascending order."""
    ranks, stride = [0], 1
    for name in reversed(list(shape)):
        steps = range(shape[name]) if name in names else (at[name],)
        ranks = [stride * step + rank for step in steps for rank in ranks]
        stride *= shape[name]
    return tuple(ranks)


def list_grids(ranks: int, *axes: AxisName) -> list[dict[AxisName, int]]:
    """Return all grids of `ranks` ranks over these axes, the squarest first; ties go to those longer in later axes."""
    shapes: list[tuple[int, ...]] = [(ranks,)]
    for _ in axes[1:]:
        shapes = [(*shape[:-1], low, shape[-1] // low) for shape in shapes for low in _divisors(shape[-1])]
    return [
        dict(zip(axes, shape, strict=True)) for shape in sorted(shapes, key=lambda shape: (sum(shape), shape))
    ]


def _divisors(n: int) -> list[int]:
    return [low for low in range(1, n + 1) if n % low == 0]
