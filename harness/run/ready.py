"""Kernels that are ready before the first epoch that counts: compiled, loaded and measured, on the shapes of the run.

A trainer that is thrown away takes the first steps. Whatever steps change (weights, optimizers, stale rows, caches,
counters) is its own, and random numbers go by index, so a run has the same bits with it and without.
"""

import gc

import torch

from harness.comm.grid import Grid
from harness.graph.blocks import Blocks
from harness.run.trainer import Trainer
from harness.spec.spec import Training
from harness.strategy import Strategy

STEPS = 2
"""The second has what the first leaves behind: stale rows, prefetched batches, other shapes."""


def make_ready(strategy: Strategy, grid: Grid, blocks: Blocks) -> None:
    """Every rank calls this at the same point. Nothing is left of it but compiled code."""
    if not needs(strategy.spec.training):
        return
    recording, grid.ledger.recording = grid.ledger.recording, False
    trainer = Trainer(strategy, grid, blocks)
    for _ in range(STEPS):
        trainer.step()
    trainer.evaluate()
    grid.settle()
    del trainer
    gc.collect()
    if grid.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(grid.device)
    grid.ledger.recording = recording


def needs(training: Training) -> bool:
    """Whether the first epoch counts: it is timed, or its time is part of the time to an accuracy.

    Elsewhere warm-up epochs do the same, without opening the graph twice.
    """
    return training.warmup == 0 or training.evaluate_every > 0
