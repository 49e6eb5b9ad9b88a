"""The row that the time of a collective is recorded in; and a stopped ledger records no event."""

import time

import torch

from harness.comm import engine
from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.ledger import Amounts, AxisName, Direction, HostClock, Key, Ledger, Op, Phase, TensorName

P, H = AxisName.P, TensorName.H
LATE = 0.2  # much longer than a busy machine delays a rank


def axis_here(ledger: Ledger) -> Axis:
    axis = Grid.build({P: engine.world_size()}, ledger)[P]
    axis.all_reduce(torch.ones(1), tensor=H)  # connects and synchronizes the ranks
    ledger.start()
    return axis


def wait_elsewhere() -> dict[Key, Amounts]:
    """Rank 0 issues late. The others issue in layer 1 and wait in layer 2, after some work."""
    ledger = Ledger()
    axis = axis_here(ledger)
    if axis.index == 0:
        time.sleep(LATE)
    with ledger.phase(Phase.CONVOLVE, layer=1):
        pending = axis.broadcast.later(torch.ones(3), root=0, shape=(3,), tensor=H)
    with ledger.phase(Phase.LINEAR, layer=2), ledger.op(Op.GEMM):
        pending.wait()
    return ledger.stop()


def test_wait_is_recorded_in_the_row_in_which_the_call_was_issued(ranks) -> None:
    for entries in ranks(2, wait_elsewhere)[1:]:
        (row,) = (key for key in entries if key.op is Op.BROADCAST)
        assert (row.phase, row.layer) == (Phase.CONVOLVE, 1)
        assert entries[row].seconds > LATE / 4
        assert entries[row].seconds > 2 * entries[Key(Phase.LINEAR, 2, Direction.FORWARD, Op.GEMM)].seconds


def fly_and_work() -> tuple[float, float]:
    """A broadcast completes while this rank works, so it is in flight for less time than until its wait."""
    ledger = Ledger()
    axis = axis_here(ledger)
    begun = time.perf_counter()
    pending = axis.broadcast.later(torch.ones(3), root=0, shape=(3,), tensor=H)
    time.sleep(2 * LATE)
    pending.wait()
    passed = time.perf_counter() - begun
    (row,) = (amounts for key, amounts in ledger.stop().items() if key.op is Op.BROADCAST)
    assert row.seconds < passed - 1.9 * LATE, "work between issue and wait is not the collective's"
    return row.in_flight_seconds, passed


def test_time_in_flight_ends_on_completion_and_not_on_wait(ranks) -> None:
    for in_flight, passed in ranks(2, fly_and_work):
        assert 0 < in_flight < passed - LATE / 4


def wait_for_stragglers() -> float:
    ledger = Ledger()
    axis = axis_here(ledger)
    if axis.index == 0:
        time.sleep(LATE)
    with ledger.phase(Phase.CONVOLVE, layer=0):
        axis.barrier()
    entries = {key: amounts for key, amounts in ledger.stop().items() if amounts.calls}
    (key,) = entries
    assert key == Key(Phase.CONVOLVE, 0, Direction.FORWARD, Op.SKEW, P)
    return entries[key].seconds


def test_barrier_records_the_wait_for_the_straggler(ranks) -> None:
    late, *waiting = ranks(3, wait_for_stragglers)
    assert all(seconds > max(late, LATE / 4) for seconds in waiting)


def sum_two_layers() -> tuple[list[list[float]], dict[Key, Amounts]]:
    ledger = Ledger()
    axis = axis_here(ledger)
    xs = [torch.full((2, 3), axis.index + 1.0), torch.arange(4.0).view(2, 2).T, torch.empty(0)]
    with ledger.backward():
        sums = axis.all_reduce_coalesced(xs, layers=[0, 1, 1], tensor=TensorName.DW)
    assert all(total is x for total, x in zip(sums, xs, strict=True)), "the sums are in place"
    return [x.flatten().tolist() for x in xs], ledger.stop()


def test_coalesced_sums_record_words_in_the_rows_of_their_layers(ranks) -> None:
    for sums, entries in ranks(3, sum_two_layers):
        assert sums == [[6.0] * 6, [0.0, 6.0, 3.0, 9.0], []]
        rows = {key.layer: amounts for key, amounts in entries.items() if key.op is Op.ALL_REDUCE}
        assert {layer: row.elements_payload for layer, row in rows.items()} == {0: 6, 1: 4}
        assert {layer: row.calls for layer, row in rows.items()} == {0: 1, 1: 0}
        assert all(key.phase is Phase.SYNC for key in entries if key.op is Op.ALL_REDUCE)


class StoppedClock(HostClock):
    """A clock that raises an error when it is read."""

    def mark(self) -> float:  # type: ignore[override]
        raise AssertionError("a ledger that is off looked at the clock")


def stay_silent() -> None:
    ledger = Ledger(StoppedClock(), recording=False)
    axis = Grid.build({P: 2}, ledger)[P]
    x = torch.ones(2, 2, requires_grad=True)
    with ledger.phase(Phase.CONVOLVE, layer=0):
        axis.all_reduce(torch.ones(2), tensor=TensorName.DW)
        axis.all_gather.later(torch.ones(2), tensor=H).wait()
        other = 1 - axis.index
        axis.exchange({other: torch.ones(1)}, {other: (1,)}, dtype=torch.float32, tensor=H)
        axis.barrier()
        axis.gather(axis.sum(x, tensor=H), tensor=H, gradient=TensorName.DH).sum().backward()
    assert x.grad is not None
    ledger.recording, ledger.clock = True, HostClock()
    ledger.start()
    (key,) = ledger.stop()
    assert key == Key(Phase.OTHER, -1, Direction.FORWARD)


def test_stopped_ledger_records_no_event_and_does_not_read_the_clock(ranks) -> None:
    ranks(2, stay_silent)
