"""The ledger records time in the row where it was spent, tested with a simulated clock."""

import ast
from pathlib import Path
from time import perf_counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.ledger import (
    SAMPLING,
    AxisName,
    Direction,
    HostClock,
    Key,
    Ledger,
    Op,
    Phase,
    TensorName,
    apply,
    charge_backward,
    clock_for,
)
from tests.hand_clock import HandClock

ROOT = Path(__file__).parents[2]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


def seconds(entries: dict) -> dict[Key, float]:
    """Only the rows in which time passed."""
    return {key: amounts.seconds for key, amounts in entries.items() if amounts.seconds}


def test_scopes_nest_and_give_time_back() -> None:
    clock = HandClock()
    ledger = Ledger(clock)
    ledger.start()
    clock.delay(1)
    with ledger.phase(Phase.CONVOLVE, layer=3):
        clock.delay(2)
        with ledger.op(Op.BROADCAST, axis=AxisName.P, tensor=TensorName.H, peer=4):
            clock.delay(4)
            with ledger.phase(Phase.SYNC):
                clock.delay(8)
            clock.delay(16)
        clock.delay(32)
    clock.delay(64)
    assert seconds(ledger.stop()) == {
        Key(Phase.OTHER, -1, FORWARD): 1 + 64,
        Key(Phase.CONVOLVE, 3, FORWARD): 2 + 32,
        Key(Phase.CONVOLVE, 3, FORWARD, Op.BROADCAST, AxisName.P, 4, TensorName.H): 4 + 16,
        Key(Phase.SYNC, 3, FORWARD): 8,
    }


def fail_after(clock: HandClock, delay: int) -> None:
    clock.delay(delay)
    raise ZeroDivisionError


def test_an_error_leaves_its_scope_like_everything_else() -> None:
    clock = HandClock()
    ledger = Ledger(clock)
    ledger.start()
    with pytest.raises(ZeroDivisionError), ledger.phase(Phase.LOAD):
        fail_after(clock, 1)
    clock.delay(2)
    assert seconds(ledger.stop()) == {Key(Phase.LOAD, -1, FORWARD): 1, Key(Phase.OTHER, -1, FORWARD): 2}


@given(st.lists(st.tuples(st.sampled_from(Phase), st.integers(-1, 3), st.integers(0, 9)), max_size=30))
def test_entries_add_up_whatever_happened(visits: list[tuple[Phase, int, int]]) -> None:
    clock = HandClock()
    ledger = Ledger(clock)
    ledger.start()
    for phase, layer, delay in visits:
        with ledger.phase(phase, layer=layer):
            clock.delay(delay)
    assert sum(seconds(ledger.stop()).values()) == sum(delay for _, _, delay in visits) == clock.now


def test_counts_go_to_the_current_row_and_a_remembered_one_can_be_taken_up_again() -> None:
    clock = HandClock()
    ledger = Ledger(clock)
    ledger.start()
    with ledger.phase(Phase.FETCH, layer=1), ledger.op(Op.ALL_GATHER):
        there = ledger.current
        ledger.count_call(payload=10, received=7.5, bytes=40)
        issued = clock.mark()
    clock.delay(5)
    with ledger.at(there):
        clock.delay(3)
        ledger.count_call(payload=1, received=0, bytes=4)
    ledger.record_in_flight(there, issued, clock.mark())
    entries = ledger.stop()
    row = entries[there]
    assert (row.calls, row.elements_payload, row.elements_received, row.bytes) == (2, 11, 7.5, 44)
    assert (row.seconds, row.in_flight_seconds) == (3, 8)
    assert seconds(entries)[Key(Phase.OTHER, -1, FORWARD)] == 5


def test_an_epoch_starts_empty() -> None:
    ledger = Ledger(HandClock())
    ledger.start()
    ledger.count_call(payload=1, received=1, bytes=1)
    ledger.record_in_flight(ledger.current, 0, 1)
    first = ledger.stop()
    ledger.start()
    second = ledger.stop()
    assert [row.calls for row in first.values()] == [1]
    assert [(row.calls, row.in_flight_seconds) for row in second.values()] == [(0, 0)]


def test_a_ledger_that_is_off_records_nothing() -> None:
    clock = HandClock()
    ledger = Ledger(clock, recording=False)
    with ledger.phase(Phase.LOAD), ledger.op(Op.SPMM), ledger.backward(), ledger.at(ledger.current):
        clock.delay(1)
        ledger.count_call(payload=1, received=1, bytes=1)
        ledger.record_in_flight(ledger.current, 0, 1)
    ledger.recording = True
    ledger.start()
    assert seconds(ledger.stop()) == {}
    scopes = {id(scope) for scope in (Ledger(recording=False).phase(p) for p in Phase)}
    assert len(scopes) == 1, "no scope is made"


def test_entries_add_up_to_an_independent_clock() -> None:
    """The better of a few tries: a machine that is busy elsewhere may take any of them away."""
    covered = []
    for _ in range(5):
        ledger = Ledger()
        begun = perf_counter()
        ledger.start()
        for layer in range(3):
            with ledger.phase(Phase.CONVOLVE, layer=layer), ledger.op(Op.GEMM):
                torch.ones(300, 300) @ torch.ones(300, 300)
        entries = ledger.stop()
        covered.append(sum(seconds(entries).values()) / (perf_counter() - begun))
    assert 0.9 < max(covered) <= 1


def test_a_cpu_has_the_hosts_clock() -> None:
    assert isinstance(clock_for(torch.device("cpu")), HostClock)


class Delay(torch.autograd.Function):
    """y = x, with a delay of its own in each direction."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, clock: HandClock, there: int, back: int) -> torch.Tensor:
        ctx.clock, ctx.back = clock, back
        clock.delay(there)
        return x.clone()

    @staticmethod
    def backward(ctx, dy: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        ctx.clock.delay(ctx.back)
        return dy, None, None, None


class Recorded(torch.autograd.Function):
    """An operator that names its own ops, in both directions."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, ledger: Ledger, there: int, back: int) -> torch.Tensor:
        ctx.ledger, ctx.back = ledger, back
        with ledger.op(Op.SPMM, tensor=TensorName.T):
            ledger.clock.delay(there)
        return x.clone()

    @staticmethod
    def backward(ctx, dy: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        with ctx.ledger.op(Op.SPMM, tensor=TensorName.S):
            ctx.ledger.clock.delay(ctx.back)
        return dy, None, None, None


def test_a_planted_delay_appears_in_its_own_row_forward_and_backward() -> None:
    """Powers of two: every second is told from every other."""
    clock = HandClock()
    ledger = Ledger(clock)
    x = torch.ones(3, requires_grad=True)
    ledger.start()
    for layer in range(2):
        with ledger.phase(Phase.CONVOLVE, layer=layer):
            x = apply(ledger, Recorded, x, ledger, 1 << 4 * layer, 2 << 4 * layer)
        with ledger.phase(Phase.ACTIVATE, layer=layer):
            with ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
                y = Delay.apply(x.relu() * 2, clock, 4 << 4 * layer, 8 << 4 * layer).relu()
            x = charge_backward(ledger, y, (x,), op=Op.ELEMENTWISE, tensor=TensorName.H)
    with ledger.phase(Phase.LOSS):
        loss = charge_backward(ledger, Delay.apply(x, clock, 256, 512).sum(), (x,), op=Op.ELEMENTWISE)
    with ledger.backward():
        clock.delay(1024)
        loss.backward()
        clock.delay(2048)
    expected = {
        Key(Phase.LOSS, -1, FORWARD): 256,
        Key(Phase.LOSS, -1, BACKWARD, Op.ELEMENTWISE): 512,
        Key(Phase.OTHER, -1, BACKWARD): 1024 + 2048,
    }
    for layer in range(2):
        for direction, tensor, after in (
            (FORWARD, TensorName.T, 1),
            (BACKWARD, TensorName.S, 2),
        ):
            expected[Key(Phase.CONVOLVE, layer, direction, Op.SPMM, tensor=tensor)] = after << 4 * layer
        for direction, after in ((FORWARD, 4), (BACKWARD, 8)):
            key = Key(Phase.ACTIVATE, layer, direction, Op.ELEMENTWISE, tensor=TensorName.H)
            expected[key] = after << 4 * layer
    assert seconds(ledger.stop()) == expected


def test_two_uses_of_a_tensor_are_each_charged_their_own_backward() -> None:
    """A residual connection: the nodes of one branch are not followed into the other's."""
    clock = HandClock()
    ledger = Ledger(clock)
    x = torch.ones(3, requires_grad=True) * 1.0
    ledger.start()
    with ledger.phase(Phase.CONVOLVE, layer=0):
        one = charge_backward(ledger, Delay.apply(x, clock, 0, 1), (x,), op=Op.SPMM)
    with ledger.phase(Phase.LINEAR, layer=1):
        other = charge_backward(ledger, Delay.apply(x, clock, 0, 2), (x,), op=Op.GEMM)
    with ledger.phase(Phase.ACTIVATE, layer=2):
        both = charge_backward(ledger, Delay.apply(one + other, clock, 0, 4), (one, other), op=Op.ELEMENTWISE)
    with ledger.backward():
        both.sum().backward()
    assert seconds(ledger.stop()) == {
        Key(Phase.CONVOLVE, 0, BACKWARD, Op.SPMM): 1,
        Key(Phase.LINEAR, 1, BACKWARD, Op.GEMM): 2,
        Key(Phase.ACTIVATE, 2, BACKWARD, Op.ELEMENTWISE): 4,
    }


def test_no_graph_is_recorded_without_gradients() -> None:
    ledger = Ledger(HandClock())
    ledger.start()
    frozen = torch.ones(2)
    assert charge_backward(ledger, frozen, ()) is frozen
    assert apply(ledger, Recorded, frozen, ledger, 0, 0).grad_fn is None
    leaf = torch.ones(2, requires_grad=True)
    assert charge_backward(ledger, leaf, ()) is leaf


@pytest.mark.long
def test_no_reader_takes_one_phase_of_sampling_for_all() -> None:
    """A comparison with one phase of `SAMPLING` misses the others; a reader asks whether a phase is in it."""
    single = {f"Phase.{phase.name}" for phase in SAMPLING}
    files = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("harness/**/*.py"), *ROOT.glob("strategies/**/*.py")]
    nodes = {(path.name, node) for path in files for node in ast.walk(ast.parse(path.read_text()))}
    compared = [(name, node) for name, node in nodes if isinstance(node, ast.Compare)]
    assert len(compared) > 100
    assert [
        (name, ast.unparse(node))
        for name, node in compared
        if single & {ast.unparse(side) for side in (node.left, *node.comparators)}
    ] == []
