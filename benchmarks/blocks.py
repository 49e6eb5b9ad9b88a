"""What the blocks of a partition cost: CPU time next to serial training, with one rank computing at a time.

All ratios are of times taken in turns, so that other work on the machine reaches both. One thread a rank.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.epoch import CPU, EpochCase
from benchmarks.registry import Results, Table, benchmark
from harness.base.locks import TurnLock
from harness.comm.grid import Grid
from harness.ledger import COMPUTING, AxisName, Direction, HostClock, Op
from harness.ledger.tape import Event, Tape
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec

PATIENCE = 1800.0
WARM = 2
SERIAL, PARALLEL = "serial", "parallel"
EXTRA = "not in serial"
"""Products with A that serial training lacks: S = A^T G of the first layer, whose input needs no gradient."""
PARTS = ("products with A", EXTRA, "dense products", "elementwise", "copies")
OF_OP = {Op.SPMM: PARTS[0], Op.GEMM: PARTS[2], Op.ELEMENTWISE: PARTS[3], Op.COPY: PARTS[4]}


@benchmark
def kernels(*competitors: str, dataset: str = "rmat-17", hidden: int = 16, turns: int = 9) -> Results:
    """Compare the kernels of all ranks with serial training, part by part, one rank computing at a time.

    In each turn, the ranks train one epoch, and rank 0 one serial epoch. A rank computes while the others wait, as for
    a tape (measure.tape), so that ranks do not share caches and memory bandwidth. Numbers are medians of ratios to the
    serial epoch of the same turn.

    Args:
        competitors: strategies, as NAME@GRID; a name may have parameters
    """
    yield Table(
        *("strategy", "to serial:.2f", "25 % of turns below:.2f", "75 %:.2f"),
        *(f"{part}:.2f" for part in PARTS),
    )
    with Pool(patience=PATIENCE) as pool, TemporaryDirectory() as folder:
        for number, name in enumerate(competitors):
            strategy, _, grid = name.partition("@")
            ranks = prod(map(int, grid.split("x")))
            case = EpochCase(strategy, dataset, ranks, grid if "x" in grid else None, hidden)
            by_rank = pool.run(ranks, epochs_in_turns, case, turns, f"{folder}/turn-{number}")
            serial = by_rank[0][SERIAL]
            totals = [sum(epoch.values()) for epoch in serial]
            if number == 0:
                yield SERIAL, *compare(serial, totals)
            yield name, *compare(sum_ranks([rank[PARALLEL] for rank in by_rank]), totals)


Epoch = Mapping[str, float]
"""The CPU seconds of an epoch's kernels, by part."""


def sum_ranks(by_rank: Sequence[Sequence[Epoch]]) -> list[Epoch]:
    """Return the sum over ranks for each turn."""
    return [{part: sum(rank[part] for rank in turn) for part in PARTS} for turn in zip(*by_rank, strict=True)]


def compare(epochs: Sequence[Epoch], totals: Sequence[float]) -> Iterator[float]:
    """Yield the median ratio of all kernels to the totals, its quartiles, and the median ratio of each part."""
    ratios = [sum(epoch.values()) / total for epoch, total in zip(epochs, totals, strict=True)]
    low, middle, high = quantiles(ratios) if len(ratios) > 1 else ratios * 3
    yield from (middle, low, high)
    for part in PARTS:
        yield median(epoch[part] / total for epoch, total in zip(epochs, totals, strict=True))


class TapedTrainer(NamedTuple):
    """A trainer whose tape charges CPU time to events, and is switched on for the epochs that count."""

    trainer: Trainer
    tape: Tape

    def train(self, *, counts: bool) -> Epoch:
        """Train one epoch; return the CPU seconds of its kernels."""
        self.tape.is_taping = counts
        self.trainer.epoch()
        self.tape.is_taping = False
        return sum_parts(self.tape.events)


def epochs_in_turns(case: EpochCase, turns: int, lock: str) -> dict[str, list[Epoch]]:
    """Train in turns with all ranks, and serially on rank 0. Return the epochs of one rank, by competitor."""
    turn = TurnLock(Path(lock))
    try:
        competitors = {PARALLEL: open_trainer(case.spec(), turn)}
        world = competitors[PARALLEL].trainer.ctx.grid.world
        if world.index == 0:
            alone = case._replace(strategy=SERIAL, ranks=1, grid=None)
            competitors[SERIAL] = open_trainer(alone.spec(), turn, is_alone=True)
        epochs = defaultdict[str, list[Epoch]](list)
        for number in range(-WARM, turns):
            for key in (PARALLEL, SERIAL)[:: -1 if number % 2 else 1]:
                if key in competitors:
                    epochs[key].append(competitors[key].train(counts=number >= 0))
                    turn.release()
                world.barrier()
    finally:
        turn.close()
    return {key: each[WARM:] for key, each in epochs.items()}


def open_trainer(spec: Spec, turn: TurnLock, *, is_alone: bool = False) -> TapedTrainer:
    """Open a trainer of the world, or of a world of one rank inside of it."""
    strategy, blocks = open_run(find_root(), spec)
    tape = Tape(HostClock(), timed=True, turn=turn)
    tape.is_taping = False
    if is_alone:
        grid = Grid({AxisName.P: 1}, 0, {AxisName.P: 0}, tape, CPU, None, None, None)
    else:
        grid = Grid.build(strategy.grid, tape, None, spec.machine.composed_from, strategy.wire)
    return TapedTrainer(Trainer(strategy, grid, blocks), tape)


def sum_parts(events: Sequence[Event]) -> Epoch:
    """Return the CPU seconds of kernels by part."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for event in events:
        key = event.key
        if key.op in COMPUTING:
            is_extra = key.op is Op.SPMM and key.layer == 0 and key.direction is Direction.BACKWARD
            seconds[EXTRA if is_extra else OF_OP[key.op]] += event.cpu_seconds
    return seconds
