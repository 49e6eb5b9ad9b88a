"""Work within a budget of wall-clock time, in this process or in several.

Each piece of work has an estimated cost. The pieces that are done correct the estimates of the others, so a slow or
busy machine is taken into account. A piece may say what share of it is done, and what it has found so far. A piece that
no longer fits into the time that is left is not begun, and a process that still works when the time is over is ended.
What is found by then is kept.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, NamedTuple, Protocol

import torch

from harness.children import die_with_parent
from harness.progress import ignore_step

TRUSTED = 2.0
"""The seconds of work that have to be done until the estimates are corrected by half."""
EVERY = 1.0
"""The seconds between two reports."""


class ReportLeft(Protocol):
    """Is told the pieces that are done, the number of all, what is being done, and the seconds that are left."""

    def __call__(self, done: int, of: int, doing: str, left: float, /) -> None: ...


class Keep(Protocol):
    """Takes the share of a piece of work that is done, and what it has found so far."""

    def __call__(self, share: float, found: Any, /) -> None: ...


Work = Callable[[str, Keep], Any]
"""Does a piece of work, and returns its result."""


class Budget:
    """Which piece of work to begin next. Times are seconds since the work began."""

    def __init__(
        self,
        costs: Mapping[str, float],
        seconds: float = inf,
        processes: int = 1,
        divisible: Collection[str] = (),
    ) -> None:
        """`costs` are the estimated seconds of each piece, in the order in which the pieces should be done.

        `divisible` are the pieces of which a part is of use. They are begun after all that fit, if there is time.
        """
        self.seconds, self._costs, self._processes = seconds, dict(costs), processes
        self._divisible = divisible
        self._waiting = list(costs)
        self._began = dict[str, float]()
        self._shares = dict[str, float]()
        """The share that is done of pieces that say it."""
        self._done, self._estimated, self._spent = 0, TRUSTED, TRUSTED

    def cost(self, name: str, now: float) -> float:
        """The estimated seconds of a piece: by the share of it that is done, else by its estimate.

        Estimates are corrected by the pieces that are done, by the shares of others, and by pieces that take longer
        than estimated.
        """
        if name in self._shares:
            return (now - self._began[name]) / self._shares[name]
        estimated, spent = self._estimated, self._spent
        for running, began in self._began.items():
            share = self._shares.get(running, 0.0)
            if share or now - began > self._costs[running]:
                estimated, spent = estimated + self._costs[running] * (share or 1.0), spent + now - began
        return self._costs[name] * spent / estimated

    def progress(self, name: str, share: float) -> None:
        """Takes notice of the share of a running piece that is done."""
        if share > 0:
            self._shares[name] = share

    def begin(self, now: float) -> str | None:
        """Returns the first piece that fits, or else the first that is divisible, which begins now; None if none is."""
        fitting = (name for name in self._waiting if now + self.cost(name, now) <= self.seconds)
        divisible = (name for name in self._waiting if name in self._divisible and now < self.seconds)
        name = next(chain(fitting, divisible), None)
        if name is not None:
            self._waiting.remove(name)
            self._began[name] = now
        return name

    def end(self, name: str, now: float) -> None:
        """Takes notice that a piece is done."""
        self._done += 1
        self._estimated += self._costs[name]
        self._spent += now - self._began.pop(name)
        self._shares.pop(name, None)

    def left(self, now: float) -> float:
        """The seconds until all pieces are done that fit, and at most until the budget is used up."""
        running = [max(0.0, began + self.cost(name, now) - now) for name, began in self._began.items()]
        free = sorted([*running, *[0.0] * (self._processes - len(running))])
        for name in self._waiting:
            cost = self.cost(name, now)
            if now + free[0] + cost <= self.seconds or name in self._divisible:
                free = sorted([*free[1:], free[0] + cost])
        return min(free[-1], max(0.0, self.seconds - now))

    def left_out(self, now: float) -> dict[str, float]:
        """The pieces that are not done, with the seconds that each is estimated to take: at least those spent on it."""
        running = {name: max(self.cost(name, now), now - began) for name, began in self._began.items()}
        return running | {name: self.cost(name, now) for name in self._waiting}

    def report(self, now: float, report: ReportLeft) -> None:
        """Reports what is being done."""
        if self._began:
            report(self._done, len(self._costs), f"predicting {', '.join(self._began)}", self.left(now))


class Outcomes(NamedTuple):
    """What was done in time."""

    results: dict[str, Any]
    partial: dict[str, Any]
    """What was found by pieces that were not done in time."""
    lost: dict[str, str]
    """The pieces whose process died, with the reason."""
    left_out: dict[str, float]
    """The pieces that did not fit, with their estimated seconds."""


def work_through(
    budget: Budget,
    work: Work,
    processes: int = 0,
    report: ReportLeft = ignore_step,
    clock: Callable[[], float] = monotonic,
) -> Outcomes:
    """Does the pieces of work that fit into a budget; without processes, in this one, which nothing ends early.

    Processes are forked, so `work` need not be pickled; its results are. `clock` has the seconds since the work began.
    """
    if processes:
        return _in_processes(budget, work, processes, report, clock)
    results = {}
    while (name := budget.begin(clock())) is not None:
        budget.report(clock(), report)
        results[name] = work(name, _reporting(budget, name, report, clock))
        budget.end(name, clock())
    return Outcomes(results, {}, {}, budget.left_out(clock()))


def _reporting(budget: Budget, name: str, report: ReportLeft, clock: Callable[[], float]) -> Keep:
    """Reports the shares of a piece. What it has found is not kept, because nothing ends it."""

    def keep(share: float, _: Any) -> None:
        budget.progress(name, share)
        budget.report(clock(), report)

    return keep


def _in_processes(
    budget: Budget,
    work: Work,
    processes: int,
    report: ReportLeft,
    clock: Callable[[], float],
) -> Outcomes:
    results, partial, lost = dict[str, Any](), dict[str, Any](), dict[str, str]()
    workers = list[_ForkedWorker]()
    try:
        while True:
            for name in _startable(
                budget, processes - sum(worker.doing is not None for worker in workers), clock
            ):
                idle = next((worker for worker in workers if worker.doing is None), None)
                if idle is None:
                    idle = _ForkedWorker(work)
                    workers.append(idle)
                idle.begin(name)
            busy = {worker.pipe: worker for worker in workers if worker.doing is not None}
            if not busy or clock() >= budget.seconds:
                break
            budget.report(clock(), report)
            for pipe in wait(list(busy), min(EVERY, max(0.0, budget.seconds - clock()))):
                worker = busy[pipe]  # type: ignore[index]
                name = str(worker.doing)
                try:
                    answer = worker.answer()
                except EOFError:
                    lost[name] = worker.end()
                    workers.remove(worker)
                else:
                    if isinstance(answer, _Part):
                        partial[name] = answer.found
                        budget.progress(name, answer.share)
                        continue
                    results[name] = answer
                    partial.pop(name, None)
                budget.end(name, clock())
    finally:
        for worker in workers:
            worker.end()
    return Outcomes(results, partial, lost, budget.left_out(clock()))


def _startable(budget: Budget, free: int, clock: Callable[[], float]) -> Iterator[str]:
    for _ in range(free):
        name = budget.begin(clock())
        if name is None:
            return
        yield name


class _Part(NamedTuple):
    """A message of a worker about the piece that it works on."""

    share: float
    found: Any


class _ForkedWorker:
    """A forked process that does one piece of work after the other."""

    def __init__(self, work: Work) -> None:
        fork = get_context("fork")
        self.pipe, there = fork.Pipe()
        self.doing: str | None = None
        self._process = fork.Process(target=_serve, args=(work, there, os.getpid()), daemon=True)
        self._process.start()
        there.close()

    def begin(self, name: str) -> None:
        self.doing = name
        self.pipe.send(name)

    def answer(self) -> Any:
        """A part of what the worker is doing; or the result of it, or the error that it raised."""
        result, error = self.pipe.recv()
        if isinstance(result, _Part):
            return result
        self.doing = None
        if error is not None:
            raise error
        return result

    def end(self) -> str:
        """Ends the process; says how it ended if it was dead already."""
        self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        self.pipe.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        return f"its process ended with {how}; the machine may have too little memory."


def _serve(work: Work, pipe: Connection, parent: int) -> None:
    die_with_parent(parent)()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent

    def keep(share: float, found: Any) -> None:
        pipe.send((_Part(share, found), None))

    with suppress(EOFError):
        while True:
            name = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = work(name, keep), None
            except Exception as error:  # the parent raises it
                answer = None, error
            pipe.send(answer)
