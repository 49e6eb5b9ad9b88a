"""Runs pieces of work within a budget of wall-clock time, in this process or in worker processes.

Each piece of work has an estimated cost. Completed pieces correct the estimates of the others, which accounts for a
slow or busy machine. A piece may report its progress and partial results. A piece that does not fit the remaining time
is not started. When the time is over, workers are killed, and their partial results are kept.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from gc import freeze
from itertools import chain
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, NamedTuple, Protocol

import torch

from harness.base.children import die_with_parent
from harness.base.progress import ignore_step

PRIOR_SECONDS = 2.0
"""The seconds of completed work after which estimates and measurements have equal weight."""
REPORT_INTERVAL = 1.0
"""The seconds between two reports."""


class ReportRemaining(Protocol):
    """Receives the numbers of completed and of all pieces, what is running, and the estimated remaining seconds."""

    def __call__(self, completed: int, total: int, running: str, remaining: float, /) -> None: ...


class ReportPartial(Protocol):
    """Receives the completed share of a piece of work, and its partial result."""

    def __call__(self, share: float, result: Any, /) -> None: ...


WorkFunction = Callable[[str, ReportPartial], Any]
"""Runs a piece of work, given by its name, and returns the result."""


class Budget:
    """Selects the pieces of work to start. All times are in seconds since the start of the work."""

    def __init__(
        self,
        costs: Mapping[str, float],
        seconds: float = inf,
        processes: int = 1,
        divisible: Collection[str] = (),
    ) -> None:
        """Create a budget.

        Args:
            costs: The estimated seconds of each piece, in the order in which they should run.
            seconds: The time budget.
            processes: The number of pieces that run at the same time.
            divisible: The pieces whose partial results are useful. They start after all pieces that fit.
        """
        self.seconds, self._costs, self._processes = seconds, dict(costs), processes
        self._divisible = divisible
        self._waiting = list(costs)
        self._starts = dict[str, float]()
        self._shares = dict[str, float]()
        """The completed shares of running pieces that report them."""
        self._completed, self._estimated, self._spent = 0, PRIOR_SECONDS, PRIOR_SECONDS

    def estimate_cost(self, name: str, now: float) -> float:
        """Estimate the seconds of a piece from its completed share, or else from its corrected initial estimate.

        Completed pieces, completed shares, and pieces that take longer than estimated correct the estimates.
        """
        if name in self._shares:
            return (now - self._starts[name]) / self._shares[name]
        estimated, spent = self._estimated, self._spent
        for running, start in self._starts.items():
            share = self._shares.get(running, 0.0)
            if share or now - start > self._costs[running]:
                estimated, spent = estimated + self._costs[running] * (share or 1.0), spent + now - start
        return self._costs[name] * spent / estimated

    def record_progress(self, name: str, share: float) -> None:
        """Record the completed share of a running piece."""
        if share > 0:
            self._shares[name] = share

    def start_next(self, now: float) -> str | None:
        """Start the first piece that fits, or else the first divisible piece, and return its name; None if none is."""
        fitting = (name for name in self._waiting if now + self.estimate_cost(name, now) <= self.seconds)
        divisible = (name for name in self._waiting if name in self._divisible and now < self.seconds)
        name = next(chain(fitting, divisible), None)
        if name is not None:
            self._waiting.remove(name)
            self._starts[name] = now
        return name

    def complete(self, name: str, now: float) -> None:
        """Record that a piece is complete."""
        self._completed += 1
        self._estimated += self._costs[name]
        self._spent += now - self._starts.pop(name)
        self._shares.pop(name, None)

    def estimate_remaining(self, now: float) -> float:
        """Estimate the seconds until all pieces that fit are complete, at most until the end of the budget."""
        running = [
            max(0.0, start + self.estimate_cost(name, now) - now) for name, start in self._starts.items()
        ]
        free = sorted([*running, *[0.0] * (self._processes - len(running))])
        for name in self._waiting:
            cost = self.estimate_cost(name, now)
            if now + free[0] + cost <= self.seconds or name in self._divisible:
                free = sorted([*free[1:], free[0] + cost])
        return min(free[-1], max(0.0, self.seconds - now))

    def list_unfinished(self, now: float) -> dict[str, float]:
        """Return the pieces that are not complete, with their estimated seconds."""
        running = {
            name: max(self.estimate_cost(name, now), now - start) for name, start in self._starts.items()
        }
        return running | {name: self.estimate_cost(name, now) for name in self._waiting}

    def report(self, now: float, report: ReportRemaining) -> None:
        """Report the progress, if a piece is running."""
        if self._starts:
            report(
                self._completed,
                len(self._costs),
                f"predicting {', '.join(self._starts)}",
                self.estimate_remaining(now),
            )


class Outcomes(NamedTuple):
    """The outcomes of all pieces of work."""

    results: dict[str, Any]
    partial: dict[str, Any]
    """The partial results of pieces that were not completed in time."""
    lost: dict[str, str]
    """The pieces whose process died, with the reason."""
    left_out: dict[str, float]
    """The pieces that were not completed, with their estimated seconds."""


def run_within_budget(
    budget: Budget,
    work: WorkFunction,
    processes: int = 0,
    report: ReportRemaining = ignore_step,
    clock: Callable[[], float] = monotonic,
) -> Outcomes:
    """Run the pieces of work that fit a budget.

    Args:
        budget: Selects the pieces.
        work: Runs one piece. Workers are forked, so only its results are pickled.
        processes: The number of worker processes. With 0, this process runs the pieces, and none is interrupted.
        report: Called with the progress.
        clock: Returns the seconds since the start of the work.
    """
    if processes:
        return _run_in_processes(budget, work, processes, report, clock)
    results = {}
    while (name := budget.start_next(clock())) is not None:
        budget.report(clock(), report)
        results[name] = work(name, _make_reporter(budget, name, report, clock))
        budget.complete(name, clock())
    return Outcomes(results, {}, {}, budget.list_unfinished(clock()))


def _make_reporter(
    budget: Budget, name: str, report: ReportRemaining, clock: Callable[[], float]
) -> ReportPartial:
    """Return a function that reports the progress of a piece. It drops partial results: the piece will complete."""

    def report_partial(share: float, _: Any) -> None:
        budget.record_progress(name, share)
        budget.report(clock(), report)

    return report_partial


def _run_in_processes(
    budget: Budget,
    work: WorkFunction,
    processes: int,
    report: ReportRemaining,
    clock: Callable[[], float],
) -> Outcomes:
    results, partial, lost = dict[str, Any](), dict[str, Any](), dict[str, str]()
    workers = list[_ForkedWorker]()
    try:
        while True:
            free = processes - sum(worker.current is not None for worker in workers)
            for name in _start_pieces(budget, free, clock):
                idle = next((worker for worker in workers if worker.current is None), None)
                if idle is None:
                    idle = _ForkedWorker(work)
                    workers.append(idle)
                idle.start(name)
            busy = {worker.pipe: worker for worker in workers if worker.current is not None}
            if not busy or clock() >= budget.seconds:
                break
            budget.report(clock(), report)
            for pipe in wait(list(busy), min(REPORT_INTERVAL, max(0.0, budget.seconds - clock()))):
                worker = busy[pipe]  # type: ignore[index]
                name = str(worker.current)
                try:
                    result = worker.receive()
                except EOFError:
                    lost[name] = worker.kill()
                    workers.remove(worker)
                else:
                    if isinstance(result, _PartialResult):
                        partial[name] = result.result
                        budget.record_progress(name, result.share)
                        continue
                    results[name] = result
                    partial.pop(name, None)
                budget.complete(name, clock())
    finally:
        for worker in workers:
            worker.kill()
    return Outcomes(results, partial, lost, budget.list_unfinished(clock()))


def _start_pieces(budget: Budget, free: int, clock: Callable[[], float]) -> Iterator[str]:
    for _ in range(free):
        name = budget.start_next(clock())
        if name is None:
            return
        yield name


class _PartialResult(NamedTuple):
    """A message of a worker with the completed share of its piece and the partial result."""

    share: float
    result: Any


class _ForkedWorker:
    """A forked process that runs pieces of work, one at a time."""

    def __init__(self, work: WorkFunction) -> None:
        fork = get_context("fork")
        self.pipe, child_end = fork.Pipe()
        self.current: str | None = None
        self._process = fork.Process(target=_serve_pieces, args=(work, child_end, os.getpid()), daemon=True)
        self._process.start()
        child_end.close()

    def start(self, name: str) -> None:
        """Start a piece of work."""
        self.current = name
        self.pipe.send(name)

    def receive(self) -> Any:
        """Receive a partial result, or the result of the piece. Raises the exception that the piece raised."""
        result, error = self.pipe.recv()
        if isinstance(result, _PartialResult):
            return result
        self.current = None
        if error is not None:
            raise error
        return result

    def kill(self) -> str:
        """Kill the process, and return how it ended, for the case that it had already died."""
        self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        self.pipe.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        return f"its process ended with {how}; the machine may have too little memory."


def _serve_pieces(work: WorkFunction, pipe: Connection, parent: int) -> None:
    die_with_parent(parent)()
    freeze()  # the collector need not visit what the parent loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also receives it, and kills this process
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent

    def report_partial(share: float, result: Any) -> None:
        pipe.send((_PartialResult(share, result), None))

    with suppress(EOFError):
        while True:
            name = pipe.recv()
            reply: tuple[Any, Exception | None]
            try:
                reply = work(name, report_partial), None
            except Exception as error:  # the parent raises it
                reply = None, error
            pipe.send(reply)
