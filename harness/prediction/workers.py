"""Runs pieces of work in forked processes, or one after the other in this process."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from gc import freeze
from multiprocessing import get_context
from time import monotonic
from typing import Any, NamedTuple, Protocol

import torch

from harness.base.children import die_with_parent
from harness.base.progress import ignore_step

REPORT_INTERVAL = 1.0
"""The seconds between two reports."""
LOST = "its process ended before it had a result; the machine may have too little memory."


class ReportRemaining(Protocol):
    """Receives the numbers of completed and of all pieces, what is running, and the estimated remaining seconds."""

    def __call__(self, completed: int, total: int, running: str, remaining: float | None, /) -> None: ...


Work = Callable[[str], Any]
"""Runs a piece of work, given by its name, and returns the result."""


class Outcomes(NamedTuple):
    """The outcomes of all pieces of work."""

    results: dict[str, Any]
    lost: dict[str, str]
    """The pieces whose process died, with the reason."""


def run_pieces(
    costs: Mapping[str, float], work: Work, processes: int = 0, report: ReportRemaining = ignore_step
) -> Outcomes:
    """Run pieces of work, those with the highest costs first, so that no process has a long one at the end.

    After a process has died, the pieces without a result are run again, one at a time; those that end a process then
    are lost.

    Args:
        costs: The estimated cost of each piece.
        work: Runs one piece. Workers are forked, so only its results are pickled.
        processes: The number of worker processes. With 0, this process runs the pieces.
        report: Called with the progress.
    """
    results, progress = dict[str, Any](), _Progress(costs, report)
    order = sorted(costs, key=lambda name: -costs[name])
    if not processes:
        for name in order:
            progress.tell([name])
            results[name] = work(name)
            progress.complete(name)
        return Outcomes(results, {})
    _run_in_processes(order, work, processes, results, progress)
    for name in order:
        if name not in results:
            _run_in_processes([name], work, 1, results, progress)
    return Outcomes(results, {name: LOST for name in order if name not in results})


class _Progress:
    """Estimates the remaining time by the costs of completed pieces, and reports it."""

    def __init__(self, costs: Mapping[str, float], report: ReportRemaining) -> None:
        self._costs, self._report, self._start = costs, report, monotonic()
        self._completed = list[str]()

    def complete(self, name: str) -> None:
        self._completed.append(name)

    def tell(self, running: Sequence[str]) -> None:
        """Report what runs, and the time that is left."""
        done, all_costs = sum(self._costs[name] for name in self._completed), sum(self._costs.values())
        left = (monotonic() - self._start) * (all_costs / done - 1) if done else None
        self._report(len(self._completed), len(self._costs), f"predicting {', '.join(running)}", left)


def _run_in_processes(
    names: Sequence[str], work: Work, processes: int, results: dict[str, Any], progress: _Progress
) -> None:
    """Run pieces in forked processes, and add their results, until all are complete or a process has died."""
    with ProcessPoolExecutor(
        min(processes, len(names) or 1), get_context("fork"), _begin, (work, os.getpid())
    ) as pool:
        try:
            pending = {pool.submit(_run_piece, name): name for name in names}
            while pending:
                progress.tell(list(pending.values())[:processes])
                done, _ = wait(pending, REPORT_INTERVAL, FIRST_COMPLETED)
                for future in done:
                    name = pending.pop(future)
                    results[name] = future.result()
                    progress.complete(name)
        except BrokenProcessPool:
            pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_given: list[Work] = []
"""The work of this worker process."""


def _begin(work: Work, parent: int) -> None:
    _given.append(work)
    die_with_parent(parent)()
    freeze()  # the collector need not visit what the parent loaded
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends this process at once; the parent receives it, too
    torch.set_num_threads(1)  # a forked process cannot use the threads of its parent


def _run_piece(name: str) -> Any:
    return _given[0](name)
