"""Stages arrive in order; with overlap, the next stage is issued before a stage is yielded."""

import pytest

from harness.comm.call import EmptyCall
from harness.strategies.cagnet.summa import run_stages


class Logged:
    """A call, and then a pending call, that logs what is done with it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def later(self) -> "Logged":
        self.log.append(f"leave {self.name}")
        return self

    def wait(self) -> str:
        self.log.append(f"wait {self.name}")
        return self.name


@pytest.mark.parametrize("stages", [0, 1, 2, 5])
@pytest.mark.parametrize("overlap", [False, True])
def test_stages_arrive_in_order(stages: int, overlap: bool) -> None:
    calls = [(EmptyCall(stage), EmptyCall(-stage)) for stage in range(stages)]
    assert list(run_stages(calls, overlap=overlap)) == [[stage, -stage] for stage in range(stages)]


def test_with_overlap_the_next_stage_is_issued_before_a_stage_is_used() -> None:
    log: list[str] = []
    for (stage,) in run_stages(([Logged(log, name)] for name in "abc"), overlap=True):
        log.append(f"use {stage}")
    assert log == ["leave a", "leave b", "wait a", "use a", "leave c", "wait b", "use b", "wait c", "use c"]
