"""Runs whose ranks are stopped and continued from outside end well; a stop for good is named, with its rank."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from os import close, pidfd_open
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.requests import make_spec
from harness.results.record import read_record
from harness.runtime.launch.fork_server import Child, ForkServer
from harness.runtime.launch.launch import launch
from harness.runtime.launch.time_limits import TimeLimits
from tests.processes import find_processes

ROOT = Path(__file__).parents[2]
RANKS = 3
LIMITS = TimeLimits(still=3.0)
LONGEST_STOP = 1.0
FOR_GOOD = 10
"""Of so many runs one has a rank that is stopped for good."""


class Watched(ForkServer):
    """A fork server that shows the ranks of the run that it started last, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[Child] = []

    def start(self, *given: Any, **more: Any) -> Iterator[Child]:
        self.ranks.clear()
        for child in super().start(*given, **more):
            self.ranks.append(child)
            yield child


@contextmanager
def meddler(server: Watched, meddle: Callable[[list[int], threading.Event], None]) -> Iterator[None]:
    """A thread that does something to the ranks, by handles that never mean another process, until the run is over."""
    over = threading.Event()
    server.ranks.clear()

    def work() -> None:
        while len(server.ranks) < RANKS and not over.wait(0.01):
            pass
        with ExitStack() as opened:
            handles = []
            for child in [] if over.is_set() else server.ranks:
                handles.append(pidfd_open(child.pid))
                opened.callback(close, handles[-1])
            meddle(handles, over)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def send(handle: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, what)


def stop_now_and_then(draw: random.Random) -> Callable[[list[int], threading.Event], None]:
    def meddle(ranks: list[int], over: threading.Event) -> None:
        while not over.wait(draw.random() * 0.2):
            chosen = draw.sample(ranks, draw.randint(1, len(ranks)))
            for rank in chosen:
                send(rank, signal.SIGSTOP)
            time.sleep(draw.random() ** 2 * LONGEST_STOP)
            for rank in chosen:
                send(rank, signal.SIGCONT)

    return meddle


def stop_for_good(rank: int, after: float) -> Callable[[list[int], threading.Event], None]:
    def meddle(ranks: list[int], over: threading.Event) -> None:
        if not over.wait(after):
            send(ranks[rank], signal.SIGSTOP)

    return meddle


def run(server: Watched, tmp_path: Path, number: int, for_good: bool) -> None:
    draw = random.Random(number)
    training = {"epochs": 100_000 if for_good else draw.randint(10, 40), "warmup": 1}
    asked = {"strategy": "g3", "dataset": "tiny-sbm", "ranks": RANKS, "training": training, "launch": number}
    victim = draw.randrange(RANKS)
    meddle = stop_for_good(victim, draw.random() * 2) if for_good else stop_now_and_then(draw)
    with meddler(server, meddle):
        folder = launch(
            make_spec(ROOT, asked, "test"), ROOT, tmp_path / "runs", lambda _: None, LIMITS, server
        )
    record = read_record(folder).record
    if not for_good:
        assert record["status"] == "ok", (number, record["error"])
        return
    error = record["error"]
    assert (record["status"], error["type"], error["rank"]) == ("timeout", "Hang", victim), (number, error)
    assert f"rank {victim} was stopped by a signal" in error["message"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("runs", [4, 200])
def test_stopped_and_continued_runs_succeed_and_a_final_stop_is_named(runs: int, tmp_path: Path) -> None:
    with Watched() as server:
        for number in range(runs):
            run(server, tmp_path, number, for_good=number % FOR_GOOD == 3)
            assert find_processes(tmp_path) == [], "a rank outlived its run"
