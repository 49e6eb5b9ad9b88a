"""An axis works on shapes without data: with torch's fake process group and fake tensors.

Replays of thousands of ranks depend on this: one process writes, for any rank of any grid, the same rows with the same
words as that rank does in a run.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.comm.launchers import RankPlace
from harness.ledger import AxisName, Key, Ledger, Phase, TensorName

X, Y = AxisName.X, AxisName.Y
SHAPE = {X: 2, Y: 3}
H, DH = TensorName.H, TensorName.DH
Rows = list[tuple[Key, int, float, float, int]]


def step(grid: Grid) -> Rows:
    """Make every call once, over uneven sizes, forward and backward."""
    ledger, x, y, plane = grid.ledger, grid[X], grid[Y], grid.world
    sizes = [4, 0, 2]
    ledger.start()
    with ledger.phase(Phase.CONVOLVE, layer=0):
        H_NF = torch.ones(sizes[y.index], 3, requires_grad=True)
        T_NF = y.gather(H_NF, tensor=H, gradient=DH, sizes=sizes)
        Z_NF = y.scatter(x.replicate(x.sum(T_NF, tensor=H), gradient=DH), tensor=H, gradient=DH, sizes=sizes)
    with ledger.phase(Phase.SAMPLE):
        coming = plane.broadcast.later(torch.ones(2), root=4, shape=(2,), tensor=H)
        x.all_to_all(torch.ones(5, 2), send=[2, 3], receive=[2 + x.index] * 2, tensor=H)
        peer = 1 - x.index
        x.exchange({peer: torch.ones(3)}, {peer: (3,)}, dtype=torch.float32, tensor=H)
        coming.wait()
    with ledger.backward():
        plane.sum(Z_NF.sum(), tensor=TensorName.LOSS).backward()
    return [
        (key, row.calls, row.elements_payload, row.elements_received, row.bytes)
        for key, row in ledger.stop().items()
    ]


def step_for_real() -> Rows:
    return step(Grid.build(SHAPE, Ledger()))


def step_on_shapes(rank: int) -> Rows:
    engine.join_world(Engine.REPLAY, RankPlace(rank, 6))
    grid = Grid.build(SHAPE, Ledger())  # before the mode, because building groups needs real tensors
    with FakeTensorMode():
        rows = step(grid)
    engine.leave_world()
    return rows


def test_step_on_shapes_writes_the_same_rows_as_a_real_step(ranks) -> None:
    for rank, real in enumerate(ranks(6, step_for_real)):
        (replayed,) = ranks(1, step_on_shapes, rank)
        assert replayed == real
        assert sum(calls for _, calls, *_ in real) == 11
