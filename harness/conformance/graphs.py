"""Training with a CUDA graph and without: whether both compute the same, and the seconds of an epoch.

Both trainings use the same kernels, and deterministic ones where torch has them: otherwise their bits could differ even
without a graph. `compare_graph` runs on every rank of a world of GPUs. Tests call it on fake GPUs.
"""

import gc
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from harness.base.device import prefer_determinism, reset_memory
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.conformance.case import Case
from harness.ledger import Amounts, Key, Ledger, clock_for
from harness.runtime.trainer import Epoch, Trainer
from harness.strategy.admit import ORDINARY_EPOCHS


@dataclass(frozen=True)
class GraphComparison:
    """A rank's training with a CUDA graph, compared with the same training without."""

    unordered: Set[str]
    """The operations that have no deterministic implementation, so that bits may differ."""
    difference: float
    """The largest difference of a loss, relative to it; NaN if one is NaN."""
    same_losses: bool
    """Whether the losses of all epochs have the same bits."""
    same_parameters: bool
    """Whether everything trained has the same bits after the last epoch, and so has the output."""
    same_amounts: bool
    """Whether every epoch has the same rows of the ledger, with the same amounts except for times."""
    seconds: float
    """The median epoch without a graph."""
    graph_seconds: float
    """The median epoch that was replayed."""
    unaccounted: float
    """The most seconds of a replayed epoch that are in no row of its ledger."""

    @property
    def same(self) -> bool:
        """True if the graph changes nothing but times."""
        return self.same_losses and self.same_parameters and self.same_amounts


def compare_graph(case: Case, epochs: int = 6) -> GraphComparison:
    """Train one rank of the case without a CUDA graph and with one; called on every rank of a world."""
    with prefer_determinism() as unordered:
        plain = _train(case, epochs, graph=False)
        graph = _train(case, epochs, graph=True, chosen=plain.chosen)
    pairs = list(zip(plain.epochs, graph.epochs, strict=True))
    replayed = graph.epochs[ORDINARY_EPOCHS:]
    return GraphComparison(
        unordered=unordered,
        difference=float(
            torch.stack([(one.losses - other.losses) / one.losses for one, other in pairs]).abs().max()
        ),
        same_losses=all(torch.equal(one.losses, other.losses) for one, other in pairs),
        same_parameters=all(map(torch.equal, plain.tensors, graph.tensors)),
        same_amounts=all(
            _without_times(one.entries) == _without_times(other.entries) for one, other in pairs
        ),
        seconds=median(epoch.seconds for epoch in plain.epochs[ORDINARY_EPOCHS:]),
        graph_seconds=median(epoch.seconds for epoch in replayed),
        unaccounted=max(
            abs(epoch.seconds - sum(row.seconds for row in epoch.entries.values())) for epoch in replayed
        ),
    )


@dataclass(frozen=True)
class _Trained:
    epochs: Sequence[Epoch]
    tensors: Sequence[Tensor]
    """Everything trained, and the output."""
    chosen: Mapping[str, str]
    """The kernels that were measured to be fastest."""


def _train(case: Case, epochs: int, *, graph: bool, chosen: Mapping[str, str] | None = None) -> _Trained:
    training = case.spec.training.model_copy(update={"cuda_graph": graph})
    case = replace(case, spec=case.spec.model_copy(update={"training": training}))
    strategy = case.strategy()
    device = engine.select_device(Engine(case.spec.machine.engine), engine.rank())
    grid = Grid.build(strategy.grid, Ledger(clock_for(device)), device, wire=strategy.wire)
    trainer = Trainer(strategy, grid, case.store(), chosen)
    done = []
    for number in range(epochs):
        done.append(trainer.epoch())
        if number % 2:
            trainer.evaluate()  # other work on the device, between replays
    grid.ledger.recording = False
    tensors = [each.detach().cpu() for each in (*trainer.parameters, trainer.output())]
    grid.drain()
    measured = dict(trainer.ctx.measured.chosen)
    del trainer
    gc.collect()
    reset_memory(device)
    return _Trained(done, tensors, measured)


def _without_times(entries: Mapping[Key, Amounts]) -> dict[Key, Amounts]:
    return {key: replace(amounts, seconds=0.0, in_flight_seconds=0.0) for key, amounts in entries.items()}
