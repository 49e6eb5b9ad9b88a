"""Stages arrive in order, and with overlap the next one has left before the one before is handed out."""

import pytest

from harness.parallel.arrivals import arrivals


class Flight:
    def __init__(self, log: list[str], stage: int) -> None:
        self.log, self.stage = log, stage
        log.append(f"leave {stage}")

    def wait(self) -> int:
        self.log.append(f"wait {self.stage}")
        return self.stage


@pytest.mark.parametrize("stages", [0, 1, 2, 5])
@pytest.mark.parametrize("overlap", [False, True])
def test_every_stage_arrives_in_order(stages: int, overlap: bool) -> None:
    def call(stage: int, *, later: bool) -> object:
        return Flight([], stage) if later else stage

    assert list(arrivals(call, range(stages), overlap=overlap)) == list(range(stages))


def test_with_overlap_the_next_leaves_before_one_is_used() -> None:
    log: list[str] = []

    def call(stage: int, *, later: bool) -> Flight:
        assert later
        return Flight(log, stage)

    for stage in arrivals(call, range(3), overlap=True):
        log.append(f"use {stage}")
    assert log == ["leave 0", "leave 1", "wait 0", "use 0", "leave 2", "wait 1", "use 1", "wait 2", "use 2"]
