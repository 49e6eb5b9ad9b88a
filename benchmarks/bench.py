"""Our speed compared with named competitors, and with our own speed at the last landing."""

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pandas as pd
import torch

from benchmarks.epoch import PYG, EpochCase, rank_epochs, reference_models
from benchmarks.measuring import Ways, alternate
from benchmarks.registry import SPEED_LOST, Results, Table, benchmark
from benchmarks.spmm import make_competitors, make_graphs, measure_copy
from harness.kernels.recorded import matmul
from harness.results.launch_intervals import Interval, compute_median_interval, judge_ratio
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.provenance import cpu_name
from harness.spec.root import find_root

LOST = 0.8
"""The part of a landed ratio below which speed was lost."""
ATTEMPTS = 3
TURNS = 15
GRAPHS, WIDTHS = ("R-MAT 2^14", "R-MAT 2^17", "uniform 2^17"), (16, 64, 128)
OURS = "ours"


class Ratio(NamedTuple):
    """The median of ratios over turns, and an interval that covers it; old landings have none."""

    value: float
    interval: Interval | None = None

    @classmethod
    def of(cls, ratios: "pd.Series[float]") -> "Ratio":
        return cls(float(ratios.median()), compute_median_interval(ratios))

    def against(self, landed: "Ratio | None") -> str:
        """Say whether our call is slower or faster than when it landed, by the turns of one process each."""
        now = self._times_landed(landed)
        return f"{judge_ratio(now)} ({now.low:.2f} to {now.high:.2f})" if now else ""

    def is_lost(self, landed: "Ratio | None") -> bool:
        """Return True if the ratio fell by a fifth since it landed, and by more than noise."""
        fell = landed is not None and self.value < LOST * landed.value
        return fell and judge_ratio(self._times_landed(landed)) != "within noise"

    def _times_landed(self, landed: "Ratio | None") -> Interval | None:
        """Return the interval of our time over that at the landing; None if an interval is missing."""
        if landed is None or landed.interval is None or self.interval is None:
            return None
        return landed.interval.divide(self.interval)


class Measured(NamedTuple):
    """Seconds of one call of ours and of its competitors, turn by turn."""

    what: str
    seconds: Mapping[str, list[float]]
    bytes: float = 0
    """The bytes that the call must move; 0 if unknown."""

    def ratios(self) -> dict[str, Ratio]:
        """Return each competitor's time over ours."""
        ours = pd.Series(self.seconds[OURS])
        return {
            name: Ratio.of(pd.Series(taken) / ours) for name, taken in self.seconds.items() if name != OURS
        }


Measure = Callable[[], Measured]


def time_in_turns(what: str, every: Ways, moved: float = 0, warm: int = 1) -> Measured:
    """Measure ours and the competitors, each first in every other turn."""
    return Measured(what, alternate(every, TURNS, warm=warm, swap=True), moved)


def products() -> Iterator[Measure]:
    """Yield products of a sparse and a dense matrix."""
    for name, A in make_graphs(quick=False):
        for width in WIDTHS if name in GRAPHS else ():
            H = torch.rand(A.cols, width)
            moved = A.nnz * (H.itemsize * width + 8) + A.rows * (H.itemsize * width + 8)
            yield partial(time_in_turns, f"A H, {name}, {width} columns", make_competitors(A, H), moved)


def dense_products() -> Iterator[Measure]:
    """Yield dense products of tall matrices: T W and T^T G."""
    for rows, width, columns in ((1 << 16, 32, 8), (1 << 16, 128, 7)):
        T, W = torch.rand(rows, width), torch.rand(width, columns)
        every = {OURS: partial(matmul, T, W), "torch": partial(torch.mm, T, W)}
        yield partial(time_in_turns, f"T W, {rows:,} rows of {width} and {columns}", every)
    for rows, width, columns in ((1 << 17, 64, 16), (1 << 16, 32, 8), (1 << 16, 8, 16)):
        T, G = torch.rand(rows, width), torch.rand(rows, columns)
        every = {OURS: partial(matmul, T.T, G), "torch": partial(torch.mm, T.T, G)}
        yield partial(time_in_turns, f"T^T G, {rows:,} rows of {width} and {columns}", every)


def serial_epochs() -> Iterator[Measure]:
    """Yield epochs on one rank."""
    for dataset in ("sbm-4096", "rmat-17"):
        case = EpochCase("serial", dataset, 1, order="combine_first")
        models = reference_models(case.spec())
        every: Ways = {OURS: case.trainer().epoch, **{name: models[name].epoch for name in PYG}}
        yield partial(time_in_turns, f"a serial epoch, {dataset}", every, warm=3)


def parallel_epochs() -> Iterator[Measure]:
    """Yield epochs on four ranks, between two rounds of plain torch on one."""
    for case in (
        EpochCase("cagnet-1d", "sbm-4096", 4),
        EpochCase("cagnet-2d:weight_gradient=T", "sbm-4096", 4, "2x2"),
        EpochCase("plexus", "sbm-4096", 4, "2x2x1"),
        EpochCase("plexus", "rmat-17", 4, "2x2x1"),
    ):
        yield partial(time_four_ranks, case)


def time_four_ranks(case: EpochCase) -> Measured:
    """Measure epochs of four ranks, between two rounds of plain torch."""
    plain = reference_models(EpochCase("serial", case.dataset, 1).spec())["plain torch"].epoch
    with Pool() as pool:
        pool.run(case.ranks, rank_epochs, case, 1)
        before = alternate({"plain torch": plain}, TURNS, warm=3)["plain torch"]
        walls, _, _ = zip(*pool.run(case.ranks, rank_epochs, case, TURNS), strict=True)
        after = alternate({"plain torch": plain}, TURNS, warm=3)["plain torch"]
    slowest = [max(epoch) for epoch in zip(*walls, strict=True)]
    theirs = [(a + b) / 2 for a, b in zip(before, after, strict=True)]
    what = f"an epoch of {case.strategy} on 4 ranks, {case.dataset}"
    return Measured(what, {OURS: slowest, "plain torch": theirs})


Landed = dict[tuple[str, str, str], Ratio]
"""The ratios of the last landing by processor, call and competitor."""


@benchmark
def bench(land: bool = False) -> Results:
    """Compare our speed with competitors; fail if a ratio certainly fell by a fifth since the last landing.

    A ratio is the competitor's time over ours: the median over turns in which both run side by side in one process, so
    that the load of the machine reaches both. A ratio that fell is measured up to three times, and the best one
    counts. Ratios of another processor are not compared. The intervals of both ratios say whether a call is slower than
    when it landed. They are over the turns of one process and leave out what differs between processes, so only a fifth
    counts as lost. `bound` is the time that copying as many bytes
    takes as the call must move, over our time: a call whose data stay in cache exceeds 1.

    Args:
        land: keep the ratios as those of a landing, in benchmarks/results/bench.csv
    """
    file, cpu, speed = find_root() / "benchmarks" / "results" / "bench.csv", cpu_name(), measure_copy()
    landed = read_landed(file)
    known = {key[1:]: ratio for key, ratio in landed.items() if key[0] == cpu}
    lost = []
    yield Table(
        *("call", "ms:.2f", "bound:.2f", "competitor", "ratio:.2f", "landed:.2f", "time against the landed")
    )
    for measure in chain(products(), dense_products(), serial_epochs(), parallel_epochs()):
        measured, ratios = measure_best(measure, known)
        own = median(measured.seconds[OURS])
        bound = measured.bytes / speed / own if measured.bytes else None
        for name, ratio in ratios.items():
            before = known.get((measured.what, name))
            landed_value = before.value if before else None
            yield measured.what, 1e3 * own, bound, name, ratio.value, landed_value, ratio.against(before)
            landed[cpu, measured.what, name] = ratio
            if before and ratio.is_lost(before):
                lost.append(f"{measured.what}, {name}: {ratio.value:.2f}, landed {before.value:.2f}")
    if land:
        write_landed(file, landed)
    elif lost:
        yield "\n- ".join(["Speed was lost:", *lost])
        sys.exit(SPEED_LOST)


def measure_best(
    measure: Measure, known: Mapping[tuple[str, str], Ratio]
) -> tuple[Measured, dict[str, Ratio]]:
    """Measure until no ratio is lost, at most ATTEMPTS times; return the last measurement and the best ratios."""
    measured = measure()
    ratios = measured.ratios()
    for _ in range(ATTEMPTS - 1):
        if not any(ratio.is_lost(known.get((measured.what, name))) for name, ratio in ratios.items()):
            break
        measured = measure()
        again = measured.ratios()
        ratios = {name: max(again[name], ratio, key=lambda one: one.value) for name, ratio in ratios.items()}
    return measured, ratios


def read_landed(file: Path) -> Landed:
    """Read the ratios of the last landing."""
    if not file.exists():
        return {}
    with file.open() as lines:
        rows = list(csv.reader(lines))
    return {
        (cpu, what, name): Ratio(float(ratio), Interval(*map(float, ends)) if ends else None)
        for cpu, what, name, ratio, *ends in rows
    }


def write_landed(file: Path, landed: Landed) -> None:
    """Write ratios as those of a landing."""
    rows = [
        [*key, *(f"{number:.4g}" for number in (ratio.value, *(ratio.interval or ())))]
        for key, ratio in sorted(landed.items())
    ]
    with file.open("w") as lines:
        csv.writer(lines).writerows(rows)
