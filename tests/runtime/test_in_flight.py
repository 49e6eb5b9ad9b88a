"""Messages that a stale strategy has in flight after an epoch count in it, if work that is not timed comes next."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import measuring
from benchmarks.measuring import train_in_turns, trainer_of
from harness.comm import call
from harness.comm.call import Pending
from harness.experiment.requests import make_spec
from harness.runtime import rank
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.rank_tables import RankTables
from harness.runtime.trainer import Trainer
from harness.spec.spec import Spec

ROOT = Path(__file__).parents[2]


def asked(**training: Any) -> Spec:
    request = {"strategy": "pipegcn", "dataset": "tiny-sbm", "ranks": 2, "training": training}
    return make_spec(ROOT, request, "test")


def count_in_flight(trainer: Trainer) -> int:
    return sum(pending._ledger is trainer.ctx.ledger for pending in call._in_flight)


def count_after_epochs(spec: Spec) -> tuple[int, int, int]:
    """Return the calls in flight after an epoch, after a drained one, and the waits that only the latter has."""
    trainer = trainer_of(spec)
    trainer.epoch()
    first, waits, wait = count_in_flight(trainer), list[Pending[Any]](), Pending.wait

    def count_wait(self: Pending[Any]) -> Any:
        if self._started is not None:
            waits.append(self)
        return wait(self)

    Pending.wait = count_wait  # type: ignore[method-assign]
    trainer.epoch()
    usual = len(waits)
    trainer.epoch(drain=True)
    drained, late = count_in_flight(trainer), len(waits) - 2 * usual
    Pending.wait = wait  # type: ignore[method-assign]
    return first, drained, late


def test_drained_epoch_waits_for_its_messages(pool: Pool) -> None:
    for first, drained, late in pool.run(2, count_after_epochs, asked()):
        assert first == late > 0
        assert drained == 0


def list_drained_epochs(spec: Spec, folder: Path) -> list[bool]:
    """Return for each epoch of a run whether it waited for its messages."""
    trainer, drained, train_epoch = trainer_of(spec), list[bool](), Trainer.epoch

    def epoch(self: Trainer, *, drain: bool = False) -> Any:
        drained.append(drain)
        return train_epoch(self, drain=drain)

    Trainer.epoch = epoch  # type: ignore[method-assign]
    try:
        rank.train(trainer.strategy, trainer, folder, RankTables(trainer.ctx.grid.rank), [])
    finally:
        Trainer.epoch = train_epoch  # type: ignore[method-assign]
        trainer.ctx.grid.drain()
    return drained


@pytest.mark.parametrize(
    ("every", "expected"), [(0, [False] * 4 + [True]), (2, [False, False, True, False, True])]
)
def test_epoch_before_an_evaluation_is_drained(
    pool: Pool, tmp_path: Path, every: int, expected: list[bool]
) -> None:
    spec = asked(epochs=4, warmup=1, evaluate_every=every)
    assert pool.run(2, list_drained_epochs, spec, tmp_path) == [expected] * 2


def count_barriers(specs: list[Spec]) -> int:
    """Return the barriers of two rounds of turns."""
    trainers = [trainer_of(spec) for spec in specs]
    world, barriers = trainers[0].ctx.grid.world, list[int]()
    wait = type(world).barrier
    type(world).barrier = lambda axis: (barriers.append(1), wait(axis))[1]  # type: ignore[method-assign]
    try:
        train_in_turns(trainers, 2)
    finally:
        type(world).barrier = wait  # type: ignore[method-assign]
        for trainer in trainers:
            trainer.ctx.grid.drain()
    return len(barriers)


def test_trainer_alone_is_not_stopped_between_epochs(pool: Pool) -> None:
    """A barrier between two epochs waits for the messages of the first, outside of any epoch."""
    assert pool.run(2, count_barriers, [asked()]) == [1, 1]
    rounds = measuring.WARM + 2
    assert pool.run(2, count_barriers, [asked(), asked()]) == [1 + 2 * rounds] * 2
