"""Blocks change between layouts on every grid, and ranks receive only elements that they do not hold."""

from itertools import product

import pytest
import torch

from harness.base.ranges import ranges_between, split_evenly
from harness.comm.axis import Axis
from harness.comm.layout import coordinates
from harness.ledger import AxisName, Ledger
from harness.strategy.parallel.reshard import MatrixLayout, plan_reshard

X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
GRIDS = [(1, 1, 1), (2, 2, 2), (2, 3, 1), (1, 4, 2), (3, 2, 2), (1, 1, 5), (2, 3, 4)]
UNEVEN = {1: [0, 23], 2: [0, 4, 23], 3: [0, 9, 9, 23], 4: [0, 1, 8, 20, 23], 5: [0, 3, 3, 11, 22, 23]}
INPUT, OUTPUT, ROOT = MatrixLayout(X, Y, Z), MatrixLayout(Z, X, Y), MatrixLayout(X, Z, Y)


@pytest.mark.parametrize("layouts", [(INPUT, OUTPUT), (OUTPUT, INPUT), (ROOT, OUTPUT), (OUTPUT, ROOT)])
@pytest.mark.parametrize("sizes", GRIDS, ids=str)
def test_resharded_blocks_equal_the_target_layout(
    sizes: tuple[int, ...], layouts: tuple[MatrixLayout, MatrixLayout]
) -> None:
    grid, (source, target) = dict(zip((Z, X, Y), sizes, strict=True)), layouts
    H = torch.arange(23 * 7, dtype=torch.float64).view(23, 7)
    rows = {axis: ranges_between(UNEVEN[size]) for axis, size in grid.items()}
    cols = {axis: split_evenly(7, size) for axis, size in grid.items()}
    world = range(grid[X] * grid[Y] * grid[Z])

    def block(layout: MatrixLayout, rank: int) -> torch.Tensor:
        down, across = layout.block(coordinates(grid, rank), rows, cols)
        return H[down.start : down.stop, across.start : across.stop]

    def plan(rank: int):
        axis = Axis("x+y+z", len(world), rank, tuple(world), None, None, Ledger(), torch.device("cpu"))
        return plan_reshard(axis, grid, source, target, rows, cols)

    plans = [plan(rank) for rank in world]
    for rank in world:
        arrived = torch.full(plans[rank].shape, -1.0, dtype=torch.float64)
        for peer in world:
            (r, c), (down, across) = plans[peer].sends[rank], plans[rank].receives[peer]
            assert (len(r), len(c)) == (len(down), len(across)) or not len(r) * len(c) + len(down) * len(
                across
            )
            piece = block(source, peer)[r.start : r.stop, c.start : c.stop]
            assert (arrived[down.start : down.stop, across.start : across.stop] == -1).all()
            arrived[down.start : down.stop, across.start : across.stop] = piece
        assert torch.equal(arrived, block(target, rank))
    if len(set(sizes)) == 1 and sizes[0] > 1:  # on a cube every rank sends one block
        for number in range(len(world)):
            assert sum(len(r) * len(c) > 0 for r, c in plans[number].sends) == 1


def test_plan_takes_local_elements_from_the_rank_itself() -> None:
    grid = {Z: 2, X: 3, Y: 2}
    rows = {axis: split_evenly(24, size) for axis, size in grid.items()}
    for rank, (source, target) in product(range(12), [(INPUT, OUTPUT)]):
        axis = Axis("x+y+z", 12, rank, tuple(range(12)), None, None, Ledger(), torch.device("cpu"))
        plan = plan_reshard(axis, grid, source, target, rows, rows)
        at = coordinates(grid, rank)
        mine, wanted = source.block(at, rows, rows), target.block(at, rows, rows)
        kept = plan.receives[rank]
        for side in (0, 1):
            overlap = set(mine[side]) & set(wanted[side])
            assert len(kept[side]) == len(overlap) or not len(kept[0]) * len(kept[1])
