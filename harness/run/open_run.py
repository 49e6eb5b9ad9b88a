"""The steps before the first epoch: the graph is opened, the strategy admitted to it, and its kernels made ready."""

import gc
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from harness.comm.grid import Grid
from harness.comm.meeting import LAUNCHED, STAGED, STARTED
from harness.device import forget_memory
from harness.graph.blocks import Blocks
from harness.registry import load_strategy
from harness.run.trainer import Trainer
from harness.spec.spec import Spec, Training
from harness.store.build import open_dataset
from harness.strategy import Strategy, admit, facts_of

READY_STEPS = 2
"""The second step has what the first leaves behind: stale rows, prefetched batches, other shapes."""


def open_run(root: Path, spec: Spec) -> tuple[Strategy, Blocks]:
    """The strategy and the graph; an error with the reason where the strategy cannot train on the graph."""
    blocks = open_dataset(root, spec.dataset, getattr(torch, spec.precision))
    return admit(load_strategy(spec.strategy.name), spec, facts_of(blocks)), blocks


def make_ready(strategy: Strategy, grid: Grid, blocks: Blocks) -> None:
    """Compiles, loads and measures kernels on the shapes of the run. Every rank calls this at the same point.

    A trainer that is thrown away takes the first steps. Whatever steps change (weights, optimizers, stale rows, caches,
    counters) is its own, and random numbers go by index, so a run has the same bits with these steps and without.
    """
    if not first_epoch_counts(strategy.spec.training):
        return
    recording, grid.ledger.recording = grid.ledger.recording, False
    trainer = Trainer(strategy, grid, blocks)
    for _ in range(READY_STEPS):
        trainer.step()
    trainer.evaluate()
    grid.settle()
    del trainer
    gc.collect()
    forget_memory(grid.device)
    grid.ledger.recording = recording


def first_epoch_counts(training: Training) -> bool:
    """True if the first epoch is timed, or its time is part of the time to an accuracy.

    In other runs warm-up epochs make kernels ready, without opening the graph twice.
    """
    return training.warmup == 0 or training.evaluate_every > 0


class Stages:
    """The seconds of each stage of a start, on one rank.

    stage: archives come to the nodes; spawn: the launcher starts the process, or the task that stands for it; import:
    Python and its packages, in this process or in the fork server of its node; fork: from that server; then the stages
    that the rank ends: `open` the graph, `meet` the other ranks, build the `grid`, and make kernels `ready`.
    """

    def __init__(self) -> None:
        """Begins when all packages are imported. Later times are those of a clock that nobody sets."""
        begun, self._from = time.time(), time.monotonic()
        born = begun - age_of_this_process()
        launched = float(os.environ.get(LAUNCHED, born))
        task = float(os.environ.get(STARTED, born))
        self.seconds = {"spawn": max(task - launched, 0.0), "import": begun - max(task, launched)}
        if STAGED in os.environ:
            self.seconds = {"stage": float(os.environ[STAGED]), **self.seconds}
        if STARTED in os.environ:
            self.seconds |= {"import": max(born - task, 0.0), "fork": begun - max(born, task)}
        self.begun = self._last = begun

    def end(self, stage: str) -> float:
        """Ends a stage, and begins the next one; returns the time of day."""
        now = self.now()
        self.seconds[stage], self._last = now - self._last, now
        return now

    def now(self) -> float:
        """The time of day, if the clock of the machine was not set since the beginning."""
        return self.begun + time.monotonic() - self._from


def age_of_this_process() -> float:
    """The seconds since this process was forked."""
    ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def slowest(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The seconds of each stage on the rank that took longest."""
    longest: dict[str, float] = {}
    for stages in ranks:
        longest = {stage: max(seconds, longest.get(stage, 0.0)) for stage, seconds in stages.items()}
    return longest
