"""One epoch of one rank of a world of any size, in this process, in a moment.

The strategy, the training loop, the axes and the ledger are those of a run. Tensors are shapes (torch's device
`meta`), and the process group sends nothing (torch's backend `fake`).
"""

from dataclasses import dataclass

import torch.distributed as dist

from harness.comm import engine
from harness.comm.engine import Engine, Place
from harness.comm.grid import Grid
from harness.errors import UserError
from harness.ledger import Amounts, Key, TensorName
from harness.replay.meter import Meter
from harness.replay.tape import Event, Tape
from harness.run.trainer import Trainer
from harness.store.blocks import Blocks
from harness.strategy import Strategy
from harness.strategy.shapes import ShapeBlocks


@dataclass(frozen=True)
class Replayed:
    """What one rank would do in an epoch, and hold all the time."""

    rank: int
    events: list[Event]
    """Every kernel and every call, in the order in which they are issued."""
    entries: dict[Key, Amounts]
    persistent_bytes: dict[TensorName, int]


def replay(strategy: Strategy, rank: int = 0, blocks: Blocks | None = None) -> Replayed:
    """With `blocks` the sizes are exact; without, they are what the facts of the graph let expect."""
    world = strategy.spec.ranks
    if not 0 <= rank < world:
        raise UserError(f"rank = {rank}: the ranks of this world are 0 to {world - 1}.")
    assert not dist.is_initialized(), "a rank of a real world cannot replay another"
    tape = Tape()
    device = engine.start(Engine.REPLAY, Place(rank, world))
    try:
        grid = Grid.build(strategy.grid, tape, device)
        shapes = blocks or ShapeBlocks(strategy.facts, strategy.spec.dataset.permutation)
        trainer = Trainer(strategy, grid, shapes)
        with Meter(tape):
            entries = trainer.epoch().entries
    finally:
        engine.stop()
    return Replayed(rank, tape.events, entries, trainer.ctx.persistent_bytes())
