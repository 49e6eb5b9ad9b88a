"""Predicted epochs and memory compared with measured ones."""

import csv
import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.measuring import (
    card_of_hosts,
    gather,
    in_a_process,
    read_status,
    spec_of,
    train_in_turns,
    trainer_of,
)
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from harness.comm.grid import Grid
from harness.doctor.term_fit import fit_terms
from harness.errors import UserError
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName
from harness.ledger.tape import Event, ProductShape, Tape
from harness.locks import TurnLock
from harness.parallel.roles import get_layer_share, get_roles
from harness.parallel.rotating_layout import FIRST
from harness.prediction.epoch import (
    PredictedSeconds,
    RankEpoch,
    compute_peak_bytes,
    price_epochs,
    replay_ranks,
)
from harness.prediction.pricing import MICRO, NANO, compute_spmm_factors
from harness.registry import load_strategy, registered_strategies
from harness.replay import ReplayedRank
from harness.runtime.open_run import open_run
from harness.runtime.rank import record_tape
from harness.runtime.trainer import Trainer
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.strategy import Ready

DATASET, HIDDEN, BATCH = "sbm-4096", 64, 256
WARM = 3
CORES = len(os.sched_getaffinity(0))
Numbers = NDArray[np.float64]
LEFT_OUT = {
    "pyg": "it samples by a library that is not among the packages",
    "serial": "it has one rank",
}


@benchmark
def loopback(dataset: str = DATASET, ranks: int = 4, epochs: int = 5, only: tuple[str, ...] = ()) -> Results:
    """Compare predicted epochs of every strategy with measured ones on this machine.

    Every strategy trains on every grid that admits the graph, three layers of hidden 64; the same epochs are predicted
    by the card local.yaml, as `harness doctor --calibrate` measured it. An epoch is also emulated on the same links,
    with the kernels as a tape has them (`harness emulate`). All ranks share the cores of this machine. An observed time
    is the slowest rank's, the median of epochs. Rank correlations and median errors are those of one graph, world and
    link rate; nothing is pooled.
    """
    specs = [spec_of(request) for request in make_requests(dataset, ranks, "local", only)]
    with Pool() as pool:
        times = pool.run(ranks, observe, specs, epochs, patience=1800)[0]
    card = load_machine_card(find_root(), "local")
    yield from show_epochs(list(compare(specs, card, times)), f"{dataset}, {ranks} ranks, loopback")


@benchmark
def links(
    hosts: Hosts = FOUR_HOSTS, dataset: str = DATASET, epochs: int = 5, only: tuple[str, ...] = ()
) -> Results:
    """Compare predicted epochs of every strategy with measured ones on slow links.

    As prediction.loopback, by the card ethernet.yaml with the rate of the links.
    """
    specs = [spec_of(request) for request in make_requests(dataset, hosts.count, "ethernet", only)]
    times = observe(specs, epochs)
    if times:
        what = f"{dataset}, {hosts.count} ranks, links of {hosts.mbits:g} Mbit/s"
        yield from show_epochs(list(compare(specs, card_of_hosts(hosts.mbits), times)), what)


class Observed(NamedTuple):
    """An epoch of the slowest rank; and another one on tape, rank by rank."""

    seconds: float
    tapes: list[list[Event]]


class Timed(NamedTuple):
    """An epoch of a strategy on a grid: predicted, with the ends of the interval, emulated, and observed."""

    strategy: str
    grid: str
    predicted: float
    low: float
    high: float
    emulated: float
    observed: float


def make_requests(dataset: str, ranks: int, machine: str, only: Sequence[str]) -> list[dict[str, Any]]:
    """Return every strategy, or some, on every grid of a number of ranks that admits the graph."""
    found = []
    for name in only or [point.name for point in registered_strategies() if point.name not in LEFT_OUT]:
        strategy = load_strategy(name)
        for grid in strategy.grids(ranks):
            request = {
                "strategy": name,
                "dataset": dataset,
                "ranks": ranks,
                "grid": grid,
                "model": {"hidden": HIDDEN},
                "training": {"batch": BATCH if strategy.mini_batches else 0},
                "machine": machine,
            }
            try:
                open_run(find_root(), spec_of(request))
            except UserError:
                continue
            found.append(request)
    return found


def observe(specs: list[Spec], epochs: int) -> list[Observed]:
    """Measure an epoch of every spec; return them on rank 0."""
    seconds = []
    for spec in specs:
        trainer = trainer_of(spec)
        timed = [turns.median() for turns in train_in_turns([trainer], epochs)]
        trainer.ctx.grid.drain()
        in_turns = TurnLock(Path(tempfile.gettempdir()) / "prediction-turn")
        tape = Tape(timed=True, turn=in_turns)
        strategy, blocks = open_run(find_root(), spec)
        grid = Grid.build(strategy.grid, tape, None, spec.machine.composed_from, strategy.wire)
        tape.recording = tape.is_taping = False
        trainer = Trainer(strategy, grid, blocks)
        for _ in range(WARM):
            trainer.epoch()
        tapes = gather(grid.world, record_tape(trainer, tape))
        grid.drain()
        in_turns.close()
        seconds += [Observed(each, tapes) for each in timed]
        leave_groups()
    return seconds


def leave_groups() -> None:
    """End all groups but the world's: the threads of hundreds of groups would slow the epochs that come last."""
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def predict_epochs(
    specs: list[Spec], card: MachineCard, tapes: list[list[list[Event]]]
) -> list[tuple[PredictedSeconds, float]]:
    """Return the predicted and the emulated epochs of ranks that share the cores of this machine."""
    seconds = []
    for spec, by_rank in zip(specs, tapes, strict=True):
        ready = Ready(*open_run(find_root(), spec))
        everyone = frozenset(range(spec.ranks))
        emulated = [
            RankEpoch(ready.strategy, ReplayedRank(rank, events, [0], {}, {}, 0), everyone, is_measured=True)
            for rank, events in enumerate(by_rank)
        ]
        epochs = replay_ranks(ready, range(spec.ranks))
        told, played = (price_epochs(each, card, CORES).seconds for each in (epochs, emulated))
        seconds.append((told, played.value))
    return seconds


def compare(specs: list[Spec], card: MachineCard, times: list[Observed]) -> Iterator[Timed]:
    """Predict and emulate the observed epochs."""
    tapes = [time.tapes for time in times]
    told = in_a_process(predict_epochs, specs, card, tapes)  # a rank of a world cannot replay another
    for spec, (between, emulated), time in zip(specs, told, times, strict=True):
        name, grid = spec.strategy.name, format_grid(spec.grid)
        yield Timed(name, grid, between.value, between.low, between.high, emulated, time.seconds)


def show_epochs(timed: list[Timed], what: str) -> Results:
    """Show a row for each grid, and how good the predictions of the group are."""
    yield Table(
        *("strategy", "grid", "observed ms:.3g", "predicted ms:.3g", "between", "over observed:.2f"),
        *("emulated ms:.3g", "over observed:.2f"),
    )
    for each in timed:
        between = f"{1e3 * each.low:.3g} - {1e3 * each.high:.3g}"
        predicted, emulated = (
            (1e3 * seconds, seconds / each.observed) for seconds in (each.predicted, each.emulated)
        )
        yield each.strategy, each.grid, 1e3 * each.observed, predicted[0], between, predicted[1], *emulated
    predictions, emulations, observations = np.array(
        [[each.predicted, each.emulated, each.observed] for each in timed]
    ).T
    inside = sum(each.low <= each.observed <= each.high for each in timed)
    first = observations[predictions.argmin()] / observations.min()
    yield (
        f"{what}: {judge('predicted', predictions, observations)}; {inside} of {len(timed)} inside their "
        f"intervals, the first choice takes {first:.2f} times the fastest; "
        f"{judge('emulated', emulations, observations)}"
    )


def judge(what: str, ours: Numbers, theirs: Numbers) -> str:
    """Return the rank correlation and the errors of predictions."""
    most = np.quantile(np.maximum(ours / theirs, theirs / ours), 0.8)
    return (
        f"{what}: rank correlation {spearmanr(ours, theirs).statistic:.3f}, median error "
        f"{100 * np.median(abs(ours / theirs - 1)):.0f} %, four of five within a factor of {most:.2f}"
    )


# Memory.

SMALL_BATCH, MIB = 32, 1 << 20


@benchmark
def memory(dataset: str = "ogbn-products@1/8", ranks: int = 4, only: tuple[str, ...] = ()) -> Results:
    """Compare the memory that a replay predicts for a rank with what the rank's process came to hold.

    Held between two epochs, and at the peak of three, each of the rank that grew most. The same strategy has trained on
    a small graph before, so that imports, compiled loops and gloo's buffers do not count as growth. What the set-up
    takes for a while has its own column, because a prediction is about epochs. Pages of mapped files do not count.
    Each strategy is on its first grid. The allocator gives freed memory back at once, or a peak would keep what was
    freed.
    """
    os.environ |= {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
    first: dict[str, dict[str, Any]] = {}
    for request in make_requests(dataset, ranks, "local", only):
        first.setdefault(request["strategy"], request)
    yield Table(
        *("strategy", "grid", "held MiB, predicted:.1f", "grown:.1f", "peak MiB, predicted:.1f", "grown:.1f"),
        *("ratio:.2f", "set-up MiB:.1f"),
    )
    ratios = []
    for name, request in first.items():
        batch = {"batch": SMALL_BATCH if request["training"]["batch"] else 0}
        small, spec = spec_of({**request, "dataset": "tiny-sbm", "training": batch}), spec_of(request)
        with Pool() as pool:
            by_rank = pool.run(ranks, measure_growth, small, spec, patience=1800)[0]
        set_up, held, peak = (max(sizes) for sizes in zip(*by_rank, strict=True))
        predicted_held, predicted_peak = in_a_process(predict_memory, spec)
        ratios.append(predicted_peak / peak)
        sizes = [size / MIB for size in (predicted_held, held, predicted_peak, peak)]
        yield name, format_grid(spec.grid), *sizes, ratios[-1], set_up / MIB
    yield (
        f"{dataset}, {ranks} ranks: median ratio {np.median(ratios):.2f}, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}"
    )


class Grown(NamedTuple):
    """The growth of a rank's process, in bytes, once its libraries, loops and gloo's buffers are in place."""

    set_up: int
    """The most while the rank read its blocks and made its schedules."""
    held: int
    """The part that stays between two epochs."""
    peak: int
    """The most during epochs."""


def measure_growth(small: Spec, spec: Spec) -> list[Grown]:
    """Return the growth of each rank, on rank 0. The same strategy has trained on a small graph before."""
    trainer_of(small).epoch()
    gc.collect()
    before, resident = read_status("RssAnon"), begin_peak()
    trainer = trainer_of(spec)
    set_up = read_status("VmHWM") - resident
    trainer.epoch()
    gc.collect()
    held, resident = read_status("RssAnon") - before, begin_peak()
    for _ in range(3):
        trainer.epoch()
    peak = held + read_status("VmHWM") - resident
    trainer.ctx.grid.drain()
    return gather(trainer.ctx.grid.world, Grown(set_up, held, peak))


def begin_peak() -> int:
    """Begin to look for the peak anew; return the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return read_status("VmRSS")


def predict_memory(spec: Spec) -> tuple[int, int]:
    """Return the largest bytes of any rank by replay, on the graph's blocks: those held all the time, and the peak."""
    ready = Ready(*open_run(find_root(), spec))
    epochs = replay_ranks(ready, range(spec.ranks))
    return max(sum(each.replayed.persistent_bytes.values()) for each in epochs), compute_peak_bytes(epochs)


# The published kernels.

POINTS = Path(__file__).parent / "data" / "plexus_spmm_points.csv"


def terms_of_epoch(point: dict[str, str]) -> np.ndarray[Any, Any]:
    """Return the sums of the five terms over the products of an epoch of the rank at the origin."""
    n, nonzeros = int(point["n"]), int(point["nnz"])
    grid = {axis: int(point[axis.value]) for axis in (AxisName.X, AxisName.Y, AxisName.Z)}
    origin, total = dict.fromkeys(grid, 0), np.zeros(5)
    for layer, d in enumerate((int(point["d0"]), int(point["d1"]), int(point["d2"]))):
        share = get_layer_share(get_roles(layer, FIRST), grid, origin, n, (d, d))
        for rows, inner in ((share.N, share.K), (share.K, share.N)):
            entries = round(nonzeros * len(rows) * len(inner) / n**2)
            product = ProductShape(len(rows), len(inner), len(share.F), entries, "float32", "int32")
            total += compute_spmm_factors(product)
    return total


@benchmark
def products() -> Results:
    """Fit the five terms of a sparse product to published kernel times, and predict grids that the fit has not seen.

    Fitted are the 40 scaling points that Plexus' authors publish (benchmarks/data/plexus_spmm_points.csv), predicted
    their 28 grids of 64 devices.
    """
    points = list(csv.DictReader(POINTS.open()))
    terms = np.array([terms_of_epoch(point) for point in points])
    seconds = np.array([float(point["spmm_ms_per_epoch"]) for point in points]) * 1e3 * MICRO
    fitted = np.array([point["set"] == "scaling" for point in points])
    coefficients = fit_terms(terms[fitted], seconds[fitted])
    names = ("entry_column", "entry", "row_column", "row", "call")
    pairs = zip(names, coefficients, strict=True)
    yield "nanoseconds: " + ", ".join(f"{name} {each / NANO:.3g}" for name, each in pairs)
    yield Table(
        *("points", "count", "rank correlation:.3f", "median error:.1%", "largest:.0%", "within 1.35:.0%")
    )
    for name, some in (("fitted: scaling", fitted), ("held out: 28 grids of 64", ~fitted)):
        ratio = terms[some] @ coefficients / seconds[some]
        error, rank = abs(ratio - 1), spearmanr(ratio * seconds[some], seconds[some]).statistic
        within = np.mean(np.maximum(ratio, 1 / ratio) <= 1.35)
        yield name, int(some.sum()), float(rank), float(np.median(error)), float(error.max()), float(within)
