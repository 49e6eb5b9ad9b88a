"""What benchmarks train on, made if it is not there by whichever rank comes first; and trainers that take turns."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol, TypeVar

from harness.comm import engine
from harness.comm.grid import Grid
from harness.experiment.request import make_spec
from harness.graph.blocks import Blocks
from harness.ledger import Ledger
from harness.run import opening
from harness.run.replicas import gather
from harness.run.trainer import Trainer
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.store.build import build
from harness.strategy import Strategy

WARM = 1


def opened(spec: Spec) -> tuple[Strategy, Blocks]:
    build(project_root(), spec.dataset)
    return opening.opened(project_root(), spec)


def trainer_on_links(asked: dict[str, Any], name: str) -> Trainer:
    """Over all ranks that there are, on the machine whose links are slow: large calls are composed there."""
    asked = {**asked, "ranks": engine.world_size(), "machine": "ethernet"}
    spec = make_spec(project_root(), asked, name)
    strategy, blocks = opened(spec)
    grid = Grid.build(strategy.grid, Ledger(), composed_from=spec.machine.composed_from)
    return Trainer(strategy, grid, blocks)


class Timed(Protocol):
    @property
    def seconds(self) -> float: ...


T = TypeVar("T", bound=Timed)


def in_turns(trainers: Sequence[Trainer], turn: Callable[[Trainer], T], rounds: int) -> list[list[list[T]]]:
    """By rank, round and trainer, what a turn said, on rank 0. In every round each trainer has one turn."""
    turns = [[turn(trainer) for trainer in trainers] for _ in range(WARM + rounds)]
    return gather(trainers[0].ctx.grid.world, turns[WARM:])


def slowest(everyone: list[list[list[T]]], number: int) -> list[float]:
    """Seconds of a trainer's slowest rank, round by round."""
    return [max(rank[number].seconds for rank in ranks) for ranks in zip(*everyone, strict=True)]


def times_as_slow(first: list[float], other: list[float]) -> float:
    """The median of the rounds' ratios: of turns that stood side by side."""
    return median(one / two for one, two in zip(first, other, strict=True))
