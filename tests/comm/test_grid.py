"""Coordinates of ranks and members of axes equal those of a row-major numpy array of ranks."""

import numpy as np
import pytest
import torch

from harness.base.errors import UserError
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName

D, X, Y, Z = AxisName.D, AxisName.X, AxisName.Y, AxisName.Z
SHAPES = [{X: 2, Y: 3}, {X: 3, Y: 2}, {X: 2, Y: 2, Z: 2}, {X: 2, Y: 1, Z: 3}, {AxisName.P: 4}]


def planes(shape: dict[AxisName, int]) -> list[tuple[AxisName, ...]]:
    """Return every axis, every pair of axes in both orders, and all axes."""
    pairs = [(one, other) for one in shape for other in shape if one != other]
    return [*[(name,) for name in shape], *pairs, tuple(shape)]


def look_around(shape: dict[AxisName, int]) -> dict:
    """Return this rank's coordinates, and the results of a gather and a sum over every axis and plane."""
    grid = Grid.build(shape, Ledger())
    me = torch.tensor([grid.rank])
    seen = {}
    for names in planes(shape):
        axis = grid.axis(names)
        gathered = axis.all_gather(me, tensor=TensorName.COUNT).tolist()
        total = axis.all_reduce(me.clone(), tensor=TensorName.COUNT).tolist()
        seen[names] = (axis.name, axis.size, axis.index, list(axis.ranks), gathered, total)
    return {"rank": grid.rank, "at": grid.coordinates, "seen": seen}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_members_of_axes_and_planes_equal_numpy(ranks, shape: dict[AxisName, int]) -> None:
    sizes, order = tuple(shape.values()), list(shape)
    everyone = np.arange(np.prod(sizes)).reshape(sizes)
    for rank, found in enumerate(ranks(everyone.size, look_around, shape)):
        at = np.unravel_index(rank, sizes)
        assert found["rank"] == rank
        assert found["at"] == dict(zip(shape, at, strict=True))
        for names, (name, size, index, members, gathered, total) in found["seen"].items():
            joined = sorted(names, key=order.index)
            free = tuple(slice(None) if axis in joined else at[i] for i, axis in enumerate(order))
            expected = everyone[free].ravel().tolist()
            assert name == "+".join(joined)
            assert (size, members, gathered) == (len(expected), expected, expected)
            assert members[index] == rank
            assert total == [sum(expected)]


def meet_again(shape: dict[AxisName, int]) -> tuple[bool, bool]:
    grid = Grid.build(shape, Ledger())
    return grid.axis((X, Z)) is grid.axis((Z, X)), grid.world is grid.axis(tuple(shape))


def test_axis_is_built_once(ranks) -> None:
    assert ranks(4, meet_again, {X: 2, Y: 1, Z: 2}) == [(True, True)] * 4


@pytest.mark.parametrize("shape", [{}, {AxisName.P: 1}, {X: 1, Y: 1, Z: 1}], ids=str)
def test_one_rank_forms_any_grid_of_size_one(shape: dict[AxisName, int]) -> None:
    grid = Grid.build(shape, Ledger())
    assert grid.world.size == 1
    assert grid.coordinates == dict.fromkeys(shape, 0)


@pytest.mark.parametrize(
    ("shape", "said"),
    [({X: 2, Y: 2}, "x=2 x y=2 .* 4 ranks.* 1 "), ({X: 0}, "without ranks")],
)
def test_grid_of_the_wrong_size_is_refused(shape: dict[AxisName, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Grid.build(shape, Ledger())


def test_unknown_axis_is_refused_with_the_known_axes() -> None:
    with pytest.raises(UserError, match=r"x, y\b.* z\b"):
        Grid.build({X: 1, Y: 1}, Ledger())[Z]


def reduce_beside_messages(in_flight: int) -> float:
    """Return a sum that rank 0 asks for before it sends its part of exchanges that the others have begun."""
    grid = Grid.build({X: 3}, Ledger())
    axis, rows = grid[X], torch.full((3, 2), float(grid.rank))

    def start_messages() -> list:
        sizes = [1] * 3
        return [
            axis.all_to_all.later(rows, send=sizes, receive=sizes, tensor=TensorName.H)
            for _ in range(in_flight)
        ]

    started = [] if grid.rank == 0 else start_messages()
    total = axis.all_reduce(torch.ones(1), tensor=TensorName.LOSS).item()
    for pending in started or start_messages():
        assert pending.wait()[:, 0].tolist() == [0.0, 1.0, 2.0]
    return total


def test_a_sum_does_not_wait_for_messages_in_flight(ranks) -> None:
    """In one group of gloo, which serves two calls at a time, none of these ranks would ever get its sum."""
    assert ranks(3, reduce_beside_messages, 4) == [3.0] * 3
