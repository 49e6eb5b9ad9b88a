"""Composed collectives equal the library's, and concurrent calls do not interfere."""

import time

import pytest
import torch
from torch import Tensor

from harness.comm import engine, ring_collectives
from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName

P, Q = AxisName.P, AxisName.ROW
H = TensorName.H
ROWS = [[5000, 5000], [9000, 0, 77], [1, 2500, 7000, 300]]
CALLS = 6


def axis_here(composed_from: int) -> Axis:
    return Grid.build({P: engine.world_size()}, Ledger(), composed_from=composed_from)[P]


def whole(rows: list[int]) -> Tensor:
    return torch.arange(sum(rows) * 64, dtype=torch.float32).view(-1, 64)


def compose(rows: list[int], later: bool) -> list[bool]:
    """Send buffers of many pieces, sequentially or concurrently, and wait in different orders."""
    axis, x = axis_here(1 << 17), whole(rows)
    mine = x.split(rows)[axis.index]
    calls = [
        axis.broadcast.call(x, root=1, shape=x.shape, tensor=H),
        axis.all_gather.call(mine, tensor=H, sizes=rows),
        axis.reduce_scatter.call(x, tensor=H, sizes=rows),
    ]
    if later:
        turn = -1 if axis.index % 2 else 1
        under_way = [call.later() for call in calls]
        found = [pending.wait() for pending in under_way[::turn]][::turn]
    else:
        found = [call.now() for call in calls]
    return [torch.equal(result, due) for result, due in zip(found, [x, x, mine * axis.size], strict=True)]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_large_buffers_arrive_complete(ranks, rows: list[int], later: bool) -> None:
    for checks in ranks(len(rows), compose, rows, later):
        assert all(checks), checks


def everything_at_once(seed: int) -> list[bool]:
    """Start composed calls; meanwhile make blocking ones, send messages and call a library's collective."""
    axis, random = axis_here(0), torch.Generator().manual_seed(seed + 1000 * engine.rank())
    size, here, shape = axis.size, axis.index, (700, 64)
    found, under_way = [], []
    for number in range(CALLS):
        x = torch.full(shape, 10.0 * number + here)
        under_way.append((number, axis.broadcast.later(x, root=number % size, shape=shape, tensor=H)))
        time.sleep(0.01 * torch.rand(1, generator=random).item())
        after, before = (here + 1) % size, (here - 1) % size
        came = axis.exchange({after: x}, {before: shape}, dtype=x.dtype, tensor=H, tag=number)
        found.append(bool((came[before] == 10 * number + before).all()))
        if number % 2:
            gathered = axis.all_gather(x, tensor=H).view(size, *shape)
            found.append(all(bool((gathered[i] == 10 * number + i).all()) for i in range(size)))
        else:
            total = size * 10 * number + sum(range(size))
            found.append(bool((axis.all_reduce(x.clone(), tensor=H) == total).all()))
    for number, pending in under_way:
        found.append(bool((pending.wait() == 10 * number + number % size).all()))
    return found


@pytest.mark.parametrize("world", [2, 3, 4])
def test_calls_in_flight_do_not_interfere_with_others(ranks, world: int) -> None:
    for seed in range(3):
        for checks in ranks(world, everything_at_once, seed):
            assert all(checks), checks


def more_than_there_are_tags_for() -> list[bool]:
    """Issue all calls before waiting for any."""
    axis = axis_here(0)
    coming = [
        axis.broadcast.later(torch.full((3,), float(number)), root=number % axis.size, shape=(3,), tensor=H)
        for number in range(2 * ring_collectives.CALLS + 7)
    ]
    return [bool((pending.wait() == number).all()) for number, pending in enumerate(coming)]


def test_tags_are_reused_after_they_run_out(ranks) -> None:
    for checks in ranks(3, more_than_there_are_tags_for):
        assert all(checks), checks


def along_both_axes() -> list[bool]:
    """Wait for the calls of two groups in different orders on different ranks."""
    grid = Grid.build({P: 2, Q: 2}, Ledger(), composed_from=0)
    shape, found = (900, 64), []
    for stage in range(4):
        x = torch.full(shape, 1.0 + grid.rank)
        calls = [grid[name].broadcast.later(x, root=stage % 2, shape=shape, tensor=H) for name in (P, Q)]
        results = {}
        for i in (0, 1) if grid.rank % 2 else (1, 0):
            results[i] = calls[i].wait()
        for i, name in enumerate((P, Q)):
            found.append(bool((results[i] == 1 + grid[name].ranks[stage % 2]).all()))
    return found


def test_axes_do_not_wait_for_each_other(ranks) -> None:
    for checks in ranks(4, along_both_axes):
        assert all(checks), checks


def wait_for_nobody() -> str:
    """One member leaves while the other waits for its message."""
    axis, x = axis_here(0), torch.ones(900, 64)
    axis.barrier()
    if axis.index == 1:
        engine.leave_world()
        return "left"
    coming = axis.broadcast.later(x, root=1, shape=x.shape, tensor=H)
    try:
        coming.wait()
    except RuntimeError as error:
        return str(error)
    return "it came"


def test_waiting_for_a_member_that_left_raises_a_connection_error(ranks) -> None:
    waited, left = ranks(2, wait_for_nobody)
    assert left == "left"
    assert "Connection" in waited  # closed, or reset


def share_ring() -> list[bool]:
    """The world and the only axis longer than one share a group, which counts the calls of both."""
    grid = Grid.build({P: 2, Q: 1}, Ledger(), composed_from=0)
    assert grid.world.group is grid[P].group
    return [grid.world.ring is grid[P].ring, grid[Q].ring is None]


def test_axes_of_the_same_group_use_different_tags(ranks) -> None:
    for checks in ranks(2, share_ring):
        assert all(checks), checks
