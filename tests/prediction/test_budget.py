"""Time budgets of predictions: order, exclusions, corrected estimates and processes, with a simulated clock."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.prediction.budget import Budget, Outcomes, ReportPartial, run_within_budget

COSTS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 40.0, "e": 3.0}


class Worked:
    """Work in one process whose pieces take `pace` times their costs on a clock of its own."""

    def __init__(self, pace: float = 1.0) -> None:
        self.now, self.pace, self.order = 0.0, pace, list[str]()

    def __call__(self, name: str, _: ReportPartial) -> str:
        self.now += COSTS[name] * self.pace
        self.order.append(name)
        return name.upper()

    def within(self, seconds: float, report: Callable[..., None] = lambda *_: None) -> Outcomes:
        return run_within_budget(Budget(COSTS, seconds), self, report=report, clock=lambda: self.now)


def test_all_work_is_done_in_order_without_a_limit() -> None:
    worked = Worked(100.0)
    done = worked.within(float("inf"))
    assert worked.order == list(COSTS)
    assert done.results == {name: name.upper() for name in COSTS}
    assert not done.left_out
    assert not done.lost


def test_work_that_does_not_fit_is_left_out_with_its_estimate_and_later_work_is_done() -> None:
    done = Worked().within(10.0)
    assert list(done.results) == ["a", "b", "c", "e"], "they fill the budget to the last second"
    assert done.left_out == {"d": 40.0}


def test_estimates_are_corrected_by_the_work_that_is_done() -> None:
    """Everything takes ten times as long, so after `a` and `b` no other piece is begun within 45 seconds."""
    worked = Worked(10.0)
    done = worked.within(45.0)
    assert worked.order == ["a", "b"]
    assert done.left_out.keys() == {"c", "d", "e"}
    for name, seconds in done.left_out.items():
        assert COSTS[name] * 5 < seconds < COSTS[name] * 10, "two seconds as estimated count among those done"


@pytest.mark.parametrize("pace", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seconds", [12.0, 1000.0])
def test_the_time_left_is_right_within_a_factor_of_two(pace: float, seconds: float) -> None:
    told, worked = list[tuple[float, float]](), Worked(pace)
    worked.within(seconds, lambda *report: told.append((worked.now, report[-1])))
    assert len(told) == len(worked.order)
    for now, left in told:
        assert (worked.now - now) / 2 <= left <= 2 * (worked.now - now)


def test_two_processes_halve_the_time_left() -> None:
    costs = dict.fromkeys("abcdefgh", 3.0)
    assert Budget(costs, processes=1).estimate_remaining(0.0) == 24.0
    assert Budget(costs, processes=2).estimate_remaining(0.0) == 12.0
    assert Budget(costs, 10.0, processes=2).estimate_remaining(0.0) == 9.0, "six of the eight fit"
    budget = Budget(costs, 10.0, processes=2)
    assert [budget.start_next(0.0), budget.start_next(0.0)] == ["a", "b"]
    assert budget.estimate_remaining(1.0) == 8.0


def test_work_that_is_ended_is_estimated_at_no_less_than_was_spent_on_it() -> None:
    """The other estimates grow with it: 22 seconds were spent where 3 were estimated, the two of the start included."""
    budget = Budget({"a": 1.0, "b": 3.0}, 30.0)
    budget.start_next(0.0)
    assert budget.list_unfinished(0.5) == {"a": 1.0, "b": 3.0}
    assert budget.list_unfinished(20.0) == {"a": 20.0, "b": 22.0}


def elsewhere(name: str, _: ReportPartial) -> tuple[str, int]:
    return name.upper(), os.getpid()


def test_processes_do_the_work_elsewhere_and_return_its_results() -> None:
    done = run_within_budget(Budget(COSTS, processes=2), elsewhere, 2)
    assert {name: result for name, (result, _) in done.results.items()} == {
        name: name.upper() for name in COSTS
    }
    assert 1 <= len({process for _, process in done.results.values()} - {os.getpid()}) <= 2


def test_a_process_that_dies_costs_its_own_work_alone() -> None:
    def work(name: str, _: ReportPartial) -> Any:
        return os.kill(os.getpid(), signal.SIGKILL) if name == "b" else name

    done = run_within_budget(Budget(COSTS, processes=2), work, 2)
    assert done.results.keys() == {"a", "c", "d", "e"}
    assert "SIGKILL" in done.lost["b"]


def test_an_error_of_a_process_is_raised_here() -> None:
    def work(name: str, _: ReportPartial) -> Any:
        raise UserError(f"{name} is broken")

    with pytest.raises(UserError, match="a is broken"):
        run_within_budget(Budget({"a": 1.0}), work, 1)


def test_work_that_never_ends_is_ended_and_nothing_else_is_lost() -> None:
    """The clock runs out once the other work is done."""
    over = list[bool]()

    def work(name: str, _: ReportPartial) -> Any:
        while name == "b":
            os.read(os.pipe()[0], 1)
        return name

    def report(done: int, of: int, doing: str, left: float) -> None:
        if done == len(COSTS) - 1:
            over.append(True)

    done = run_within_budget(Budget(COSTS, 30.0, 2), work, 2, report, lambda: 100.0 * bool(over))
    assert done.results.keys() == {"a", "c", "d", "e"}
    assert done.left_out == {"b": 100.0}


def test_work_that_is_ended_leaves_what_it_had_found() -> None:
    """Both pieces tell two parts; one of them ends, and the other never does."""
    over = list[bool]()

    def work(name: str, keep: ReportPartial) -> Any:
        keep(0.25, name * 2)
        keep(0.5, name * 3)
        while name == "b":
            os.read(os.pipe()[0], 1)
        return name

    def report(done: int, of: int, doing: str, left: float) -> None:
        if done == 1 and left == 10.0:  # half of `b` took the ten seconds of the clock
            over.append(True)

    now = iter([0.0] * 3 + [10.0] * 10_000)
    done = run_within_budget(
        Budget({"a": 1.0, "b": 1.0}, 30.0, 2), work, 2, report, lambda: 30.0 if over else next(now)
    )
    assert done.results == {"a": "a"}
    assert done.partial == {"b": "bbb"}
    assert done.left_out == {"b": 60.0}


@pytest.mark.parametrize("pace", [0.1, 1.0, 10.0])
def test_the_share_that_is_done_tells_the_time_of_a_piece_and_corrects_those_that_wait(pace: float) -> None:
    budget = Budget({"a": 40.0, "b": 20.0}, processes=1)
    budget.start_next(0.0)
    budget.record_progress("a", 0.25)
    now = 10.0 * pace
    assert budget.estimate_cost("a", now) == 40.0 * pace
    assert budget.estimate_remaining(now) == pytest.approx(30.0 * pace + 20.0 * (2 + now) / (2 + 10))
    budget.complete("a", 40.0 * pace)
    assert budget.estimate_remaining(40.0 * pace) == pytest.approx(20.0 * (2 + 40 * pace) / 42)


def test_a_piece_of_which_a_part_is_of_use_is_begun_after_all_that_fit() -> None:
    budget = Budget({"a": 50.0, "b": 40.0, "c": 5.0}, 10.0, 3, divisible=["a"])
    assert budget.estimate_remaining(0.0) == 10.0
    assert [budget.start_next(0.0) for _ in range(3)] == ["c", "a", None]
    assert budget.estimate_remaining(4.0) == 6.0
    assert Budget({"a": 50.0}, 10.0, divisible=["a"]).start_next(10.0) is None
