"""What the blocks of a partition cost: CPU time next to serial training, with one rank computing at a time.

All ratios are of times taken in turns, so that other work on the machine reaches both. One thread a rank.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.epoch import CPU, EpochCase
from benchmarks.measuring import alternate, spec_of
from benchmarks.registry import Results, Table, benchmark
from harness.comm.grid import Grid
from harness.kernels import Csr, cast, sorted_rows
from harness.kernels.parts import extract_block
from harness.kernels.sorted_rows import SHORT_ROWS, SHORT_ROWS_IF_NARROW, SortedRows, sort_rows
from harness.kernels.spmm import multiply
from harness.launch.worker_pool import Pool
from harness.ledger import COMPUTING, AxisName, Direction, HostClock, Op
from harness.ledger.tape import Event, Tape
from harness.locks import TurnLock
from harness.ranges import split_part
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.store.datasets import open_dataset

PATIENCE = 1800.0
WARM = 2
SERIAL = "serial"
FORMATS = {"csr": (0, 0), "sorted": (SHORT_ROWS, SHORT_ROWS_IF_NARROW)}
"""The mean row lengths up to which a rank's blocks have sorted rows, by the name of a competitor."""
EXTRA = "not in serial"
"""Products with A that serial training lacks: S = A^T G of the first layer, whose input needs no gradient."""
PARTS = ("products with A", EXTRA, "dense products", "elementwise", "copies")
OF_OP = {Op.SPMM: PARTS[0], Op.GEMM: PARTS[2], Op.ELEMENTWISE: PARTS[3], Op.COPY: PARTS[4]}


@benchmark
def kernels(*competitors: str, dataset: str = "rmat-17", hidden: int = 16, turns: int = 9) -> Results:
    """Compare the kernels of all ranks with serial training, part by part, one rank computing at a time.

    In each turn, the ranks train one epoch with all blocks in CSR, one with the short rows of blocks sorted, and rank 0
    one serial epoch. A rank computes while the others wait, as for a tape (measure.tape), so that ranks do not share
    caches and memory bandwidth. Numbers are medians of ratios to the serial epoch of the same turn. Where no block has
    short rows, both epochs are the same, and their difference is noise.

    Args:
        competitors: strategies, as NAME@GRID; a name may have parameters
    """
    yield Table(
        *("strategy", "blocks", "to serial:.2f", "25 % of turns below:.2f", "75 %:.2f"),
        *(f"{part}:.2f" for part in PARTS),
    )
    with Pool(patience=PATIENCE) as pool, TemporaryDirectory() as folder:
        for number, name in enumerate(competitors):
            strategy, _, grid = name.partition("@")
            ranks = prod(map(int, grid.split("x")))
            case = EpochCase(strategy, dataset, ranks, grid if "x" in grid else None, hidden)
            by_rank = pool.run(ranks, epochs_in_turns, case, turns, f"{folder}/turn-{number}")
            seconds = {
                key: sum_ranks([rank[key] for rank in by_rank if key in rank]) for key in (SERIAL, *FORMATS)
            }
            totals = [sum(epoch.values()) for epoch in seconds[SERIAL]]
            if number == 0:
                yield SERIAL, "", *compare(seconds[SERIAL], totals)
            for key in FORMATS:
                yield name, key, *compare(seconds[key], totals)


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
    """Train in turns with each format; on rank 0 also serially. Return the epochs of one rank, by competitor."""
    turn, competitors = TurnLock(Path(lock)), dict[str, TapedTrainer]()
    try:
        for key, lengths in FORMATS.items():
            sorted_rows.SHORT_ROWS, sorted_rows.SHORT_ROWS_IF_NARROW = lengths
            competitors[key] = open_trainer(case.spec(), turn)
        world = competitors["csr"].trainer.ctx.grid.world
        if world.index == 0:
            alone = case._replace(strategy=SERIAL, ranks=1, grid=None)
            competitors[SERIAL] = open_trainer(alone.spec(), turn, is_alone=True)
        epochs = defaultdict[str, list[Epoch]](list)
        for number in range(-WARM, turns):
            for key in [*FORMATS, SERIAL][:: -1 if number % 2 else 1]:
                if key in competitors:
                    epochs[key].append(competitors[key].train(counts=number >= 0))
                    turn.release()
                world.barrier()
    finally:
        sorted_rows.SHORT_ROWS, sorted_rows.SHORT_ROWS_IF_NARROW = FORMATS["sorted"]
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


# The products alone, in one process.

Competitor = Callable[[], object]


@benchmark
def products(
    dataset: str = "rmat-17",
    grids: tuple[str, ...] = ("1x2", "2x2", "4x4", "8x8", "16x16", "64x64"),
    widths: tuple[int, ...] = (2, 8, 16, 64),
    turns: int = 9,
) -> Results:
    """Compare the products of all blocks of a grid with the product of the whole matrix, for three formats.

    "without" is CSR from which the rows without entries were taken out, which a doubly compressed format cannot beat.
    Numbers are medians of ratios to the whole product of the same turn. The blocks of a row are added one by one.

    Args:
        grids: block rows and block columns, as in 4x4
        widths: columns of the dense matrix
    """
    blocks = open_dataset(
        find_root(), spec_of({"strategy": {"name": SERIAL}, "dataset": dataset, "ranks": 1}).dataset
    )
    A = cast(blocks.adjacency(range(blocks.n), range(blocks.n)), torch.float32)
    torch.set_num_threads(1)
    yield Table(
        *("blocks", "entries a row:.1f", "empty rows:.0%"),
        *(f"f = {width} {form}:.2f" for width in widths for form in ("csr", "without", "sorted")),
        title=f"{dataset}, {A.rows:,} rows",
    )
    dense = {width: torch.rand(A.cols, width) for width in widths}
    for grid in grids:
        down, across = map(int, grid.split("x"))
        rows, cols = ([split_part(A.rows, parts, i) for i in range(parts)] for parts in (down, across))
        cut = [[extract_block(A, each, part) for part in cols] for each in rows]
        formats: list[list[list[Csr | SortedRows]]] = [
            [[convert(block) for block in row] for row in cut]
            for convert in (lambda block: block, drop_empty_rows, sort_rows)
        ]
        empty = sum(int((block.rowptr.diff() == 0).sum()) for row in cut for block in row)
        ratios = list[float]()
        for width, H in dense.items():
            Z = torch.empty(A.rows, width)
            competitors: dict[str, Competitor] = {"whole": lambda H=H: multiply(A, H, None)}  # type: ignore[misc]
            for number, form in enumerate(formats):
                competitors[str(number)] = make_product(
                    form, [H[part.start : part.stop] for part in cols], Z, rows
                )
            seconds = alternate(competitors, turns, clock=thread_time)
            ratios += [
                median(one / whole for one, whole in zip(seconds[name], seconds["whole"], strict=True))
                for name in map(str, range(len(formats)))
            ]
        yield grid, A.nnz / (A.rows * across), empty / (A.rows * across), *ratios


def drop_empty_rows(A: Csr) -> Csr:
    """Return the rows that have entries."""
    filled = A.rowptr.diff().nonzero()[:, 0]
    return A._replace(rowptr=torch.cat([A.rowptr[:-1][filled], A.rowptr[-1:]]))


def make_product(
    blocks: Sequence[Sequence[Any]], H: Sequence[Tensor], Z: Tensor, rows: Sequence[range]
) -> Competitor:
    """Return a function that multiplies the blocks, block row by block row."""

    def run() -> None:
        for part, row in zip(rows, blocks, strict=True):
            for A, X in zip(row, H, strict=True):
                multiply(A, X, Z[part.start : part.start + A.rows])

    return run
