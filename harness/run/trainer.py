"""Trains one rank's share of a model: the loop that every strategy goes through, in a run, a test and a replay.

It knows nothing of files, launchers or tables.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from harness.comm.grid import Grid
from harness.ledger import Amounts, Key, Op, Phase, TensorName
from harness.models import Hits, gcn
from harness.spec.spec import Training
from harness.store.blocks import Blocks
from harness.strategy import Context, Strategy


@dataclass(frozen=True)
class Epoch:
    """What one epoch was on this rank."""

    seconds: float
    loss: Tensor
    entries: dict[Key, Amounts]


class Trainer:
    """A strategy at work on one rank."""

    def __init__(self, strategy: Strategy, grid: Grid, blocks: Blocks) -> None:
        self.ctx = ctx = Context(strategy.spec, strategy.facts, grid, blocks)
        pieces = strategy.weights_of(ctx.grid.rank)
        self.weights = [
            ctx.weight(layer, shape, piece)
            for layer, (shape, piece) in enumerate(zip(strategy.shapes, pieces, strict=True))
        ]
        self.operators = strategy.operators(ctx)
        features = [self.operators.inputs()] if ctx.spec.training.features else []
        self.parameters = self.weights + features
        """Everything trained, in the order of `Strategy.parameters_of`."""
        self.optimizer = _optimizer(ctx.spec.training, self.parameters)

    def epoch(self) -> Epoch:
        """One step over the full graph: forward, backward, update."""
        ledger = self.ctx.ledger
        begun = ledger.clock.mark()
        ledger.start()
        loss = self.operators.loss(self.forward())
        self.optimizer.zero_grad(set_to_none=True)
        with ledger.backward():
            loss.backward()
        with ledger.phase(Phase.OPTIMIZE), ledger.op(Op.ELEMENTWISE, tensor=TensorName.W):
            self.optimizer.step()
        done = ledger.clock.mark()
        entries = ledger.stop()
        return Epoch(ledger.clock.between(begun, done), loss.detach(), entries)

    def forward(self) -> Tensor:
        """This rank's part of the model's output."""
        return gcn(self.operators, self.operators.inputs(), self.weights)

    def evaluate(self) -> tuple[dict[str, Hits], float]:
        """Right answers by split, and the seconds it took. Nothing of it enters the ledger of an epoch."""
        ledger = self.ctx.ledger
        recording, ledger.recording = ledger.recording, False
        begun = perf_counter()
        with torch.no_grad():
            hits = self.operators.evaluate(self.forward())
        ledger.recording = recording
        return hits, perf_counter() - begun


def _optimizer(training: Training, weights: list[Tensor]) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer: torch.optim.Optimizer = kinds[training.optimizer](
        weights, lr=training.lr, weight_decay=training.weight_decay
    )
    return optimizer
