"""Wall and CPU time of competitors that take turns, some of them in other processes."""

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from time import perf_counter, process_time, sleep
from typing import NamedTuple

from benchmarks.measuring import alternate

SECONDS = 0.02
"""The least time of a turn: a call that is shorter is repeated."""
PAUSE = 0.005
"""Seconds before a turn, in which the idle threads of the turn before go to sleep."""


class Time(NamedTuple):
    """The seconds of a call, and the CPU seconds of all threads of its process."""

    wall: float
    cpu: float


TimeCalls = Callable[[int], Time]
"""Times a number of calls, and returns the mean."""


def time_here(call: Callable[[], object]) -> TimeCalls:
    """Return a function that times calls in this process."""

    def time(repeat: int) -> Time:
        wall, cpu = perf_counter(), process_time()
        for _ in range(repeat):
            call()
        return Time((perf_counter() - wall) / repeat, (process_time() - cpu) / repeat)

    return time


def take_turns(competitors: Mapping[str, TimeCalls], turns: int) -> dict[str, list[Time]]:
    """Time competitors one after the other, in the reverse order in every other turn, after a first call of each."""
    repeats = {}
    for name, time in competitors.items():
        time(1)
        repeats[name] = max(1, ceil(SECONDS / time(1).wall))
    taken: dict[str, list[Time]] = {name: [] for name in competitors}

    def take_turn(name: str) -> None:
        taken[name].append(competitors[name](repeats[name]))

    calls = {name: partial(take_turn, name) for name in competitors}
    alternate(calls, turns, warm=0, swap=True, before=partial(sleep, PAUSE))
    return taken
