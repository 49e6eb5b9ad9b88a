"""Pieces of work in processes: their order, their results, errors, and processes that die."""

import os
import signal
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.prediction.workers import run_pieces

COSTS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 40.0, "e": 3.0}


def elsewhere(name: str) -> tuple[str, int]:
    return name.upper(), os.getpid()


def test_work_in_this_process_begins_with_the_highest_cost() -> None:
    order = list[str]()
    done = run_pieces(COSTS, lambda name: order.append(name) or name.upper())  # type: ignore[func-returns-value]
    assert order == ["d", "c", "e", "b", "a"]
    assert done.results == {name: name.upper() for name in COSTS}
    assert not done.lost


def test_processes_do_the_work_elsewhere_and_return_its_results() -> None:
    done = run_pieces(COSTS, elsewhere, 2)
    assert {name: result for name, (result, _) in done.results.items()} == {
        name: name.upper() for name in COSTS
    }
    assert 1 <= len({process for _, process in done.results.values()} - {os.getpid()}) <= 2


def test_a_process_that_dies_costs_its_own_work_alone() -> None:
    def work(name: str) -> Any:
        return os.kill(os.getpid(), signal.SIGKILL) if name == "b" else name

    done = run_pieces(COSTS, work, 2)
    assert done.results.keys() == {"a", "c", "d", "e"}
    assert "memory" in done.lost["b"]


@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_of_the_work_is_raised_here(processes: int) -> None:
    def work(name: str) -> Any:
        raise UserError(f"{name} is broken")

    with pytest.raises(UserError, match="a is broken"):
        run_pieces({"a": 1.0}, work, processes)


@pytest.mark.parametrize("processes", [0, 2])
def test_progress_counts_pieces_and_estimates_the_remaining_time(processes: int) -> None:
    told = list[tuple[int, int, str, float | None]]()
    run_pieces(COSTS, elsewhere, processes, lambda *report: told.append(report))
    counts = [completed for completed, *_ in told]
    assert counts == sorted(counts) and counts[0] == 0
    assert told[0][3] is None and all(total == len(COSTS) for _, total, *_ in told)
    assert all(left is not None and left >= 0 for completed, _, _, left in told if completed)


def test_no_piece_is_no_work() -> None:
    assert run_pieces({}, elsewhere, 2) == ({}, {})
