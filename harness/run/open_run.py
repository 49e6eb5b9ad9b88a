"""The steps before the first epoch: the graph is opened, the strategy admitted to it, and its kernels made ready."""

import gc
from pathlib import Path

import torch

from harness.comm.grid import Grid
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
