"""Predicted epochs beside measured ones, here; and the model of sparse products beside published kernel times.

    python benchmarks/prediction.py loopback --ranks 4
    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/prediction.py links --rate 200
    python benchmarks/testbed down
    python benchmarks/prediction.py products
    python benchmarks/prediction.py memory

`loopback` and `links` train every strategy on every grid that admits the graph, three layers of hidden 64, and predict
the same epochs by the cards local.yaml and ethernet.yaml, as `harness doctor --calibrate` measured them. They also
emulate an epoch on the same links, with the kernels as a tape has them (`harness emulate`). All ranks share the cores
of this machine. An observed time is the slowest rank's, the median of epochs. Rank correlations and median errors are
those of one graph, world and link rate; nothing is pooled.

`products` fits the five terms of a sparse product to the 40 scaling points that Plexus' authors publish
(benchmarks/data/plexus_spmm_points.csv) and predicts their 28 grids of 64 devices, which the fit has not seen.

`memory` sets what a replay predicts for a rank beside what the rank's process came to hold: between two epochs, and at
the peak of three, each of the rank that grew most. The same strategy has trained on a small graph before, so imports,
compiled loops and gloo's buffers are no growth. What the set-up takes for a while is a column of its own, because a
prediction is about epochs. Pages of mapped files do not count. Each strategy is on its first grid. The allocator gives
freed memory back at once, or a peak would keep what was freed.
"""

import csv
import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from measuring import (
    Table,
    argument_parser,
    card_of_hosts,
    in_a_process,
    on_hosts,
    spec_of,
    train_in_turns,
    trainer_of,
)
from numpy.typing import NDArray
from scipy.stats import spearmanr

from harness.comm.grid import Grid
from harness.doctor.term_fit import fit_terms
from harness.errors import UserError
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName
from harness.ledger.tape import Event, ProductShape, Tape
from harness.locks import TurnLock
from harness.parallel.roles import get_layer_share, get_roles
from harness.parallel.rotating_layout import FIRST
from harness.predict.prediction import (
    PredictedSeconds,
    RankEpoch,
    compute_peak_bytes,
    price_epochs,
    replay_ranks,
)
from harness.predict.pricing import MICRO, NANO, compute_spmm_factors
from harness.registry import load_strategy, registered_strategies
from harness.replay import ReplayedRank
from harness.run.open_run import open_run
from harness.run.rank import record_tape
from harness.run.rank_tables import gather_tables
from harness.run.trainer import Trainer
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


def requests(dataset: str, ranks: int, machine: str, only: Sequence[str]) -> list[dict[str, Any]]:
    """Every strategy, or some, on every grid of so many ranks that admits the graph."""
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


def observed(specs: list[Spec], epochs: int) -> list[Observed]:
    """An epoch of every spec; on rank 0."""
    torch.set_num_threads(1)
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
        tapes = gather_tables(grid.world, record_tape(trainer, tape))
        grid.drain()
        in_turns.close()
        seconds += [Observed(each, tapes) for each in timed]
        leave_groups()
    return seconds


def leave_groups() -> None:
    """Ends all groups but the world's: the threads of hundreds of groups would slow the epochs that come last."""
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def predicted(
    specs: list[Spec], card: MachineCard, tapes: list[list[list[Event]]]
) -> list[tuple[PredictedSeconds, float]]:
    """The predicted and the emulated epochs of ranks that share the cores of this machine."""
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


def compared(specs: list[Spec], card: MachineCard, times: list[Observed]) -> Iterator[Timed]:
    tapes = [time.tapes for time in times]
    told = in_a_process(predicted, specs, card, tapes)  # a rank of a world cannot replay another
    for spec, (between, emulated), time in zip(specs, told, times, strict=True):
        name, grid = spec.strategy.name, format_grid(spec.grid, " ")
        yield Timed(name, grid, between.value, between.low, between.high, emulated, time.seconds)


def show(timed: list[Timed], what: str) -> None:
    """A row for each grid, and what the group says as a whole."""
    titles = ("strategy", "grid", "observed ms", "predicted ms", "between", "over observed", "emulated ms")
    table = Table(*titles, "over observed")
    for each in timed:
        between = f"{1e3 * each.low:.3g} - {1e3 * each.high:.3g}"
        ratios = (f"{number / each.observed:.2f}" for number in (each.predicted, each.emulated))
        observed, predicted, emulated = (
            f"{1e3 * number:.3g}" for number in (each.observed, each.predicted, each.emulated)
        )
        first, second = ratios
        table.row(each.strategy, each.grid, observed, predicted, between, first, emulated, second)
    predictions, emulations, observations = np.array(
        [[each.predicted, each.emulated, each.observed] for each in timed]
    ).T
    inside = sum(each.low <= each.observed <= each.high for each in timed)
    first = observations[predictions.argmin()] / observations.min()
    print(
        f"\n{what}: {judged('predicted', predictions, observations)}; {inside} of {len(timed)} inside their "
        f"intervals, the first choice takes {first:.2f} times the fastest; "
        f"{judged('emulated', emulations, observations)}"
    )


def judged(what: str, ours: Numbers, theirs: Numbers) -> str:
    """The rank correlation and the errors of predictions."""
    most = np.quantile(np.maximum(ours / theirs, theirs / ours), 0.8)
    return (
        f"{what}: rank correlation {spearmanr(ours, theirs).statistic:.3f}, median error "
        f"{100 * np.median(abs(ours / theirs - 1)):.0f} %, four of five within a factor of {most:.2f}"
    )


def on_loopback(dataset: str, ranks: int, epochs: int, only: Sequence[str]) -> None:
    specs = [spec_of(request) for request in requests(dataset, ranks, "local", only)]
    with Pool() as pool:
        times = pool.run(ranks, observed, specs, epochs, patience=1800)[0]
    card = load_machine_card(find_root(), "local")
    show(list(compared(specs, card, times)), f"{dataset}, {ranks} ranks, loopback")


def on_links(dataset: str, rate: float, epochs: int, only: Sequence[str]) -> None:
    with on_hosts() as place:
        specs = [spec_of(request) for request in requests(dataset, place.world, "ethernet", only)]
        times = observed(specs, epochs)
    if place.rank == 0 and times:
        what = f"{dataset}, {place.world} ranks, links of {rate:g} Mbit/s"
        show(list(compared(specs, card_of_hosts(rate), times)), what)


# Memory.

MEMORY_GRAPH, SMALL_BATCH = "ogbn-products@1/8", 32
MIB = 1 << 20


class Grown(NamedTuple):
    """The growth of a rank's process, in bytes, once its libraries, loops and gloo's buffers are in place."""

    set_up: int
    """The most while the rank read its blocks and made its schedules."""
    held: int
    """The part that stays between two epochs."""
    peak: int
    """The most during epochs."""


def grown(small: Spec, spec: Spec) -> list[Grown]:
    """The growth of each rank, on rank 0. The same strategy has trained on a small graph before."""
    torch.set_num_threads(1)
    trainer_of(small).epoch()
    gc.collect()
    before, resident = _status("RssAnon"), _begin_peak()
    trainer = trainer_of(spec)
    set_up = _status("VmHWM") - resident
    trainer.epoch()
    gc.collect()
    held, resident = _status("RssAnon") - before, _begin_peak()
    for _ in range(3):
        trainer.epoch()
    peak = held + _status("VmHWM") - resident
    trainer.ctx.grid.drain()
    return gather_tables(trainer.ctx.grid.world, Grown(set_up, held, peak))


def _begin_peak() -> int:
    """Begins to look for the peak anew; returns the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    """The bytes of a line of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def predicted_memory(spec: Spec) -> tuple[int, int]:
    """The largest bytes of any rank by replay, on the blocks of the graph: those held all the time, and the peak."""
    ready = Ready(*open_run(find_root(), spec))
    epochs = replay_ranks(ready, range(spec.ranks))
    return max(sum(each.replayed.persistent_bytes.values()) for each in epochs), compute_peak_bytes(epochs)


def memory(dataset: str, ranks: int, only: Sequence[str]) -> None:
    os.environ |= {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
    first: dict[str, dict[str, Any]] = {}
    for request in requests(dataset, ranks, "local", only):
        first.setdefault(request["strategy"], request)
    titles = ("strategy", "grid", "held MiB, predicted", "grown", "peak MiB, predicted", "grown", "ratio")
    table, ratios = Table(*titles, "set-up MiB"), []
    for name, request in first.items():
        batch = {"batch": SMALL_BATCH if request["training"]["batch"] else 0}
        small = spec_of({**request, "dataset": "tiny-sbm", "training": batch})
        spec = spec_of(request)
        with Pool() as pool:
            ranks_grown = pool.run(ranks, grown, small, spec, patience=1800)[0]
        set_up, held, peak = (max(sizes) for sizes in zip(*ranks_grown, strict=True))
        told_held, told_peak = in_a_process(predicted_memory, spec)
        ratios.append(told_peak / peak)
        numbers = [f"{size / MIB:.1f}" for size in (told_held, held, told_peak, peak)]
        table.row(name, format_grid(spec.grid, " "), *numbers, f"{ratios[-1]:.2f}", f"{set_up / MIB:.1f}")
    print(
        f"\n{dataset}, {ranks} ranks: median ratio {np.median(ratios):.2f}, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}"
    )


# The published kernels.

POINTS = Path(__file__).parent / "data" / "plexus_spmm_points.csv"


def terms_of_epoch(point: dict[str, str]) -> np.ndarray[Any, Any]:
    """The sums of the five terms over the products of an epoch of the rank at the origin."""
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


def products() -> None:
    points = list(csv.DictReader(POINTS.open()))
    terms = np.array([terms_of_epoch(point) for point in points])
    seconds = np.array([float(point["spmm_ms_per_epoch"]) for point in points]) * 1e3 * MICRO
    fitted = np.array([point["set"] == "scaling" for point in points])
    coefficients = fit_terms(terms[fitted], seconds[fitted])
    names = ("entry_column", "entry", "row_column", "row", "call")
    print(
        "nanoseconds: "
        + ", ".join(f"{name} {c / NANO:.3g}" for name, c in zip(names, coefficients, strict=True))
    )
    table = Table("points", "count", "rank correlation", "median error", "largest", "within 1.35")
    for name, some in (("fitted: scaling", fitted), ("held out: 28 grids of 64", ~fitted)):
        ratio = terms[some] @ coefficients / seconds[some]
        error = abs(ratio - 1)
        table.row(
            name,
            str(some.sum()),
            f"{spearmanr(ratio * seconds[some], seconds[some]).statistic:.3f}",
            f"{100 * np.median(error):.1f} %",
            f"{100 * error.max():.0f} %",
            f"{100 * np.mean(np.maximum(ratio, 1 / ratio) <= 1.35):.0f} %",
        )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("loopback", "links", "products", "memory"))
    parser.add_argument("--dataset", help=f"default: {DATASET}; for memory {MEMORY_GRAPH}")
    parser.add_argument("--ranks", type=int, default=4, help="for loopback and memory")
    parser.add_argument("--rate", type=float, default=200, help="for links: Mbit/s")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], metavar="STRATEGY")
    options = parser.parse_args()
    match options.what:
        case "loopback":
            on_loopback(options.dataset or DATASET, options.ranks, options.epochs, options.only)
        case "links":
            on_links(options.dataset or DATASET, options.rate, options.epochs, options.only)
        case "products":
            products()
        case "memory":
            memory(options.dataset or MEMORY_GRAPH, options.ranks, options.only)


if __name__ == "__main__":
    main()
