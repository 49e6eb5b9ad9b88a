"""How busy a rank is: windows against sums over every slice, and a driver that is asked in a thread beside."""

import threading
import time
from itertools import accumulate, count, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.ledger import COMPUTING, MOVING, Direction, Key, Ledger, Op, Phase
from harness.runtime.load import (
    Reading,
    Window,
    last_percent,
    make_utilisation_reader,
    read_in_background,
    split_into_windows,
)
from tests.hand_clock import HandClock


def slices(*parts: tuple[Op, float]) -> list[tuple[Key, float]]:
    return [(Key(Phase.CONVOLVE, 0, Direction.FORWARD, op), seconds) for op, seconds in parts]


def test_a_planted_wait_is_seen_where_it_was() -> None:
    clock = HandClock()
    ledger = Ledger(clock)
    ledger.start()
    with ledger.phase(Phase.CONVOLVE, layer=0):
        for op, seconds in ((Op.SPMM, 2.5), (Op.RECV, 1.0), (Op.GLUE, 0.25), (Op.COPY, 0.5)):
            with ledger.op(op):
                clock.now += seconds
    ledger.stop()
    assert split_into_windows(ledger.slices, 1.0) == [
        Window(1.0, 1.0, 0.0),
        Window(1.0, 1.0, 0.0),
        Window(1.0, 0.5, 0.5),
        Window(1.0, 0.25, 0.5),
        Window(0.25, 0.25, 0.0),
    ]


@given(st.lists(st.tuples(st.sampled_from(Op), st.integers(0, 40)), max_size=30), st.integers(1, 25))
def test_every_window_has_what_overlaps_it(parts: list[tuple[Op, int]], width: int) -> None:
    ends = list(accumulate(length for _, length in parts))
    total = ends[-1] if ends else 0

    def overlap(ops: frozenset[Op], first: int, last: int) -> int:
        return sum(
            max(0, min(end, last) - max(end - length, first))
            for (op, length), end in zip(parts, ends, strict=True)
            if op in ops
        )

    edges = [*range(0, total, width), total]
    expected = [
        (last - first, overlap(COMPUTING, first, last), overlap(MOVING, first, last))
        for first, last in pairwise(edges)
    ]
    found = split_into_windows(slices(*parts), width)
    assert len(found) == len(expected)
    for window, counted in zip(found, expected, strict=True):
        assert window == pytest.approx(counted, abs=1e-9)


def test_no_op_both_computes_and_sends() -> None:
    assert not COMPUTING & MOVING
    assert set(Op) - COMPUTING - MOVING == {Op.GLUE, Op.SKEW}


def test_readings_end_with_the_block_that_takes_them() -> None:
    numbers, before = count(), threading.active_count()
    with read_in_background(lambda: float(next(numbers)), every=0.001) as readings:
        while len(readings) < 3:
            time.sleep(0.001)
    heard = len(readings)
    assert threading.active_count() == before
    assert [percent for _, percent in readings] == list(range(heard))
    assert [at for at, _ in readings] == sorted(at for at, _ in readings)


def test_driver_is_not_queried_without_a_gpu() -> None:
    ask = make_utilisation_reader(torch.device("cpu"))
    with read_in_background(ask) as readings:
        assert ask is None
    assert readings == []


def test_a_moment_has_what_was_read_last_before_it() -> None:
    readings = [Reading(1.0, 10.0), Reading(2.0, 20.0)]
    assert [last_percent(readings, at) for at in (0.9, 1.0, 1.9, 2.5)] == [None, 10.0, 10.0, 20.0]
    assert last_percent([], 1.0) is None
