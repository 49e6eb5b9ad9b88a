"""The steps before the first epoch: open the graph, check that the strategy can train on it, warm up its kernels."""

import gc
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from harness.base.device import reset_memory
from harness.base.files import process_start_ticks
from harness.comm.grid import Grid
from harness.comm.launchers import LAUNCHED, STAGED, STARTED
from harness.graph.blocks import Blocks
from harness.graph.store.datasets import open_dataset, open_prepared_dataset
from harness.registry import load_strategy
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec, Training
from harness.strategy import Strategy, admit, facts_of

WARM_UP_STEPS = 2
"""The second step uses what the first one leaves behind: stale rows, prefetched batches, other shapes."""


def open_run(root: Path, spec: Spec, *, in_rank: bool = False) -> tuple[Strategy, Blocks]:
    """Return the strategy and the graph, or raise an error with the reason why the strategy cannot train on it.

    In a rank, a partition that has not been computed is an error: otherwise, all ranks would wait for one of them.
    """
    open_graph = open_prepared_dataset if in_rank else open_dataset
    blocks = open_graph(root, spec.dataset, getattr(torch, spec.precision))
    return admit(load_strategy(spec.strategy.name), spec, facts_of(blocks)), blocks


def warm_up(strategy: Strategy, grid: Grid, blocks: Blocks) -> None:
    """Compile, load and measure kernels on the shapes of the run. All ranks must call this function.

    A temporary trainer runs the first steps. It owns everything that steps change (weights, optimizers, stale rows,
    caches, counters), and random numbers are functions of their index, so these steps do not change the bits of a run.
    """
    if not is_first_epoch_timed(strategy.spec.training):
        return
    recording, grid.ledger.recording = grid.ledger.recording, False
    trainer = Trainer(strategy, grid, blocks)
    for _ in range(WARM_UP_STEPS):
        trainer.step()
    trainer.evaluate()
    grid.drain()
    del trainer
    gc.collect()
    reset_memory(grid.device)
    grid.ledger.recording = recording


def is_first_epoch_timed(training: Training) -> bool:
    """Return True if the first epoch is timed, or counts towards the time to an accuracy.

    In all other runs, warm-up epochs warm up the kernels without opening the graph twice.
    """
    return training.warmup == 0 or training.evaluate_every > 0


class Stages:
    """The seconds of each stage of a start, on one rank.

    stage: copy archives to the nodes; spawn: start the process, or the task that represents it; import: start Python
    and import packages, in this process or in the fork server of its node; fork: fork from that server. The rank itself
    ends the other stages: `open` the graph, `meet` the other ranks, build the `grid`, and warm up the kernels
    (`ready`).
    """

    def __init__(self) -> None:
        """Start after all packages are imported. Later times come from a monotonic clock."""
        begun, self._from = time.time(), time.monotonic()
        born = begun - process_age()
        launched = float(os.environ.get(LAUNCHED, born))
        task = float(os.environ.get(STARTED, born))
        self.seconds = {"spawn": max(task - launched, 0.0), "import": begun - max(task, launched)}
        if STAGED in os.environ:
            self.seconds = {"stage": float(os.environ[STAGED]), **self.seconds}
        if STARTED in os.environ:
            self.seconds |= {"import": max(born - task, 0.0), "fork": begun - max(born, task)}
        self.begun = self._last = begun

    def end(self, stage: str) -> float:
        """End a stage, start the next one, and return the time of day."""
        now = self.now()
        self.seconds[stage], self._last = now - self._last, now
        return now

    def now(self) -> float:
        """Return the time of day, unaffected by changes of the system clock since the start."""
        return self.begun + time.monotonic() - self._from


def process_age() -> float:
    """Return the seconds since this process was forked."""
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None, "/proc shows this process"
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def take_longest_stages(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of each stage on the rank that took longest for it."""
    longest: dict[str, float] = {}
    for stages in ranks:
        longest = {stage: max(seconds, longest.get(stage, 0.0)) for stage, seconds in stages.items()}
    return longest
