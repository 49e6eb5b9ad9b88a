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

from benchmarks import message_fit
from benchmarks.measuring import (
    Growth,
    card_of_hosts,
    gather,
    in_a_process,
    measure_growth,
    spec_of,
    train_in_turns,
    trainer_of,
)
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from harness.base.errors import UserError
from harness.base.formatting import MB
from harness.ledger import AxisName, Op
from harness.ledger.tape import Event, ProductShape
from harness.prediction.calibration.spmm_rates import (
    ProductTime,
    SpmmForm,
    fit_spmm,
    hold_out_products,
    list_gpu_forms,
)
from harness.prediction.epoch import (
    PredictedSeconds,
    RankEpoch,
    compute_peak_bytes,
    price_epochs,
    replay_ranks,
)
from harness.prediction.pricing import MICRO, SPMM_TERMS, price_spmm
from harness.prediction.replay import ReplayedRank
from harness.registry import load_strategy, registered_strategies
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.open_run import open_run
from harness.runtime.rank import record_turns
from harness.spec.machine_card import MachineCard, SpmmTerms, load_machine_card
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.strategy import Ready
from harness.strategy.parallel.roles import get_layer_share, get_roles
from harness.strategy.parallel.rotating_layout import FIRST

DATASET, HIDDEN, BATCH = "sbm-4096", 64, 256
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
    with the kernels as a tape has them (`harness runs emulate`). All ranks share the cores of this machine. An observed
    time is the slowest rank's, the median of epochs. Rank correlations and median errors are those of one graph, world
    and link rate; nothing is pooled.
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
                "model": {"hidden": HIDDEN, "order": "aggregate_first"},
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
        grid = trainer.ctx.grid
        grid.drain()
        lock = Path(tempfile.gettempdir()) / "prediction-turn"
        tapes = gather(grid.world, record_turns(*open_run(find_root(), spec), lock))
        seconds += [Observed(each, tapes) for each in timed]
        leave_groups()
    return seconds


class EndedGroup:
    """Counts as a group that this process has."""

    def shutdown(self) -> None:
        pass


def leave_groups() -> None:
    """End all groups but the world's: the threads of hundreds of groups would slow the epochs that come last.

    Torch names a group of some ranks after the number of groups that there are. They must not become fewer: under the
    same name, a later group would find the addresses of an earlier one.
    """
    world = dist.distributed_c10d._world
    for group in list(world.pg_map):
        if group is not dist.group.WORLD:
            name = world.pg_names[group]
            dist.destroy_process_group(group)
            world.pg_names[EndedGroup()] = name  # type: ignore[index]


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
            by_rank = pool.run(ranks, measure_warm_growth, small, spec, patience=1800)[0]
        set_up, held, peak = (
            max(sizes)
            for sizes in zip(*((each.set_up, each.held, each.peak) for each in by_rank), strict=True)
        )
        predicted_held, predicted_peak = in_a_process(predict_memory, spec)
        ratios.append(predicted_peak / peak)
        sizes = [size / MIB for size in (predicted_held, held, predicted_peak, peak)]
        yield name, format_grid(spec.grid), *sizes, ratios[-1], set_up / MIB
    yield (
        f"{dataset}, {ranks} ranks: median ratio {np.median(ratios):.2f}, "
        f"from {min(ratios):.2f} to {max(ratios):.2f}"
    )


def measure_warm_growth(small: Spec, spec: Spec) -> list[Growth]:
    """Return the growth of each rank, on rank 0. The same strategy has trained on a small graph before."""
    trainer_of(small).epoch()
    gc.collect()
    return measure_growth(spec, 3)


def predict_memory(spec: Spec) -> tuple[int, int]:
    """Return the largest bytes of any rank by replay, on the graph's blocks: those held all the time, and the peak."""
    ready = Ready(*open_run(find_root(), spec))
    epochs = replay_ranks(ready, range(spec.ranks))
    return max(sum(each.replayed.persistent_bytes.values()) for each in epochs), compute_peak_bytes(epochs)


# Published times of messages.


@benchmark
def messages() -> Results:
    """Fit the constants of links to published times of collectives, and predict what the fit has not seen.

    Fitted are 96 calls of NCCL on Perlmutter (benchmarks/data/perlmutter_collectives.csv). Each size and each number of
    ranks is held out in turn. The first table has the mean ratios of predicted to measured times, the lines below it
    are for its card. Then come the bandwidths of axes in training and the all-to-alls that others report.
    """
    card, points = load_machine_card(find_root(), "perlmutter"), message_fit.read_points()
    values, held = message_fit.fit_constants(card, points), message_fit.HeldOut.compute(card, points)
    fitted = message_fit.change_links(card, values)
    ratios = {
        "by the card": message_fit.compute_ratios(card, points),
        "fitted": message_fit.compute_ratios(fitted, points),
        "its size held out": held.by_size,
        "its ranks held out": held.by_span,
    }
    yield Table("calls", "ranks", "MB", *(f"{name}:.2f" for name in ratios))
    kinds = [
        ("all-to-all" if p.op is Op.ALL_TO_ALL else "ring", p.ranks, f"to {message_fit.SMALL:g}")
        if p.megabytes <= message_fit.SMALL
        else ("all-to-all" if p.op is Op.ALL_TO_ALL else "ring", p.ranks, f"from {message_fit.LARGE:g}")
        for p in points
    ]
    for kind in sorted(set(kinds), reverse=True):
        some = [number for number, each in enumerate(kinds) if each == kind]
        yield *kind, *(float(np.exp(np.log(each[some]).mean())) for each in ratios.values())
    for name, each in ratios.items():
        half, most = np.quantile(np.exp(abs(np.log(each))), (0.5, 0.9))
        yield f"{name}: half within a factor of {half:.2f}, nine of ten within {most:.2f}"
    within = message_fit.find_intervals(card, held)
    lines = [f"{name}: {{ value: {values[name]:.4g}, within: {within[name]} }}" for name in within]
    noise = message_fit.measure_noise(card, points)
    yield "\n".join([*lines, f"noise: {{ deviation: {noise:.2g} }}"])
    yield Table("members", "ranks apart", "reported GB/s", "predicted GB/s:.1f")
    for (before, size), (low, high) in message_fit.REPORTED_AXES.items():
        bandwidth = message_fit.predict_axis_bandwidth(fitted, before, size)
        yield size, before, f"{low:g} to {high:g}", bandwidth / 1e9
    yield Table("ranks", "bytes of an all-to-all", "reported s", "predicted s:.3f")
    for (ranks, size), (low, high) in message_fit.REPORTED_EXCHANGES.items():
        yield ranks, size, f"{low:g} to {high:g}", message_fit.predict_exchange(fitted, ranks, size)


# Published times of sparse products.

DATA = Path(__file__).parent / "data"
PRODUCTS, POINTS = DATA / "a100_products.csv", DATA / "plexus_spmm_points.csv"
A100_CACHE_MB, A100_LAUNCH = 40, 6 * MICRO
"""The second-level cache of an A100, and the `launch_us` of the cards with one, which each product takes besides."""
SIMPLER_FORMS = {
    "five terms, one pass": SpmmForm(),
    "and missed_column, a cache of 40 MB": SpmmForm(40, None, SPMM_TERMS[:-1]),
    "and passes of 128 columns": SpmmForm(40, 128, SPMM_TERMS[:-1]),
    "and a cache of 20 MB": SpmmForm(20, 128, SPMM_TERMS[:-1]),
    "and missed_entry": SpmmForm(20, 128),
    "passes of 64 columns": SpmmForm(20, 64),
    "passes of 256 columns": SpmmForm(20, 256),
    "a cache of 40 MB": SpmmForm(40, 128),
    "without entry_column": SpmmForm(20, 128, SPMM_TERMS[1:]),
    "without row": SpmmForm(20, 128, tuple(name for name in SPMM_TERMS if name != "row")),
}
"""Forms of the time of a product, up to the one that the cards have; then others that differ from it in one choice."""


def read_products() -> list[ProductTime]:
    """Return the published products. Blocks of one matrix have the same size."""
    with PRODUCTS.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found = []
    for row in rows:
        m, k, n, nonzeros = (int(row[name]) for name in ("rows", "inner", "columns", "nonzeros"))
        product = ProductShape(m, k, n, nonzeros, "float32", "int64")
        found.append(ProductTime(int(row["vertices"]), product, float(row["milliseconds"]) * 1e3 * MICRO))
    return found


def fit_a100() -> dict[str, Any]:
    """Return the terms of a product on an A100, as the cards have them, fitted to published products."""
    several = [each for each in read_products() if each.product.columns > 1]
    return fit_spmm(several, list_gpu_forms(A100_CACHE_MB), A100_LAUNCH)


def predict_point(point: dict[str, str], terms: SpmmTerms) -> float:
    """Return the seconds of the sparse products in an epoch of the rank at the origin."""
    n, nonzeros = int(point["n"]), int(point["nnz"])
    grid = {axis: int(point[axis.value]) for axis in (AxisName.X, AxisName.Y, AxisName.Z)}
    origin, total = dict.fromkeys(grid, 0), 0.0
    for layer, d in enumerate((int(point["d0"]), int(point["d1"]), int(point["d2"]))):
        share = get_layer_share(get_roles(layer, FIRST), grid, origin, n, (d, d))
        for rows, inner in ((share.N, share.K), (share.K, share.N)):
            entries = round(nonzeros * len(rows) * len(inner) / n**2)
            product = ProductShape(len(rows), len(inner), len(share.F), entries, "float32", "int32")
            total += price_spmm(product, terms) + A100_LAUNCH
    return total


def list_regimes(measured: Sequence[ProductTime]) -> dict[str, NDArray[np.bool_]]:
    """Return which of the products belong to each regime. A product may belong to several."""
    shapes = [each.product for each in measured]
    columns = np.array([each.columns for each in shapes])
    pass_mb = np.array([each.inner * min(each.columns, 128) * 4 / MB for each in shapes])
    return {
        "all": columns > 0,
        "2 to 32 columns": columns <= 32,
        "64 and 128 columns": (columns > 32) & (columns <= 128),
        "256 and 512 columns": columns > 128,
        "a pass over H reads at most 20 MB": pass_mb <= 20,
        "20 to 400 MB": (pass_mb > 20) & (pass_mb <= 400),
        "more than 400 MB": pass_mb > 400,
        "more rows than nonzeros": np.array([each.rows > each.nonzeros for each in shapes]),
        "less than 0.5 ms": np.array([each.seconds < 0.5e-3 for each in measured]),
    }


def list_quantiles(ratios: Numbers) -> tuple[float, float, float]:
    """Return the median, the 90th percentile and the largest of the factors between prediction and measurement."""
    off = np.maximum(ratios, 1 / ratios)
    return float(np.median(off)), float(np.quantile(off, 0.9)), float(off.max())


@benchmark
def products() -> Results:
    """Fit the terms of a sparse product on an A100 to published times, and predict products that the fit has not seen.

    Fitted are 1,109 products with two to 512 columns (benchmarks/data/a100_products.csv). Each is predicted by a fit to
    products of matrices of other sizes with other widths. A ratio is predicted over measured seconds, a factor the
    larger of it and its inverse. Then the sparse products of 68 epochs of Plexus, which no fit has seen, are predicted
    (benchmarks/data/plexus_spmm_points.csv).
    """
    everything, found = read_products(), fit_a100()
    measured = [each for each in everything if each.product.columns > 1]
    yield "nanoseconds: " + ", ".join(f"{name} {value:g}" for name, value in found.items())
    factors = ("median factor:.2f", "nine of ten:.2f", "largest:.2f")
    yield Table("terms, for held-out products", *factors)
    for name, form in SIMPLER_FORMS.items():
        yield name, *list_quantiles(hold_out_products(measured, form, A100_LAUNCH))
    terms = SpmmTerms(**found, source="fitted")
    ratios = hold_out_products(measured, SpmmForm(terms.cache_mb, terms.pass_columns), A100_LAUNCH)
    yield Table("held-out products", "count", "median ratio:.2f", *factors)
    for name, some in list_regimes(measured).items():
        yield name, int(some.sum()), float(np.median(ratios[some])), *list_quantiles(ratios[some])
    single = [each for each in everything if each.product.columns == 1]
    alone = np.array([(price_spmm(each.product, terms) + A100_LAUNCH) / each.seconds for each in single])
    yield "1 column, another kernel, not fitted", len(alone), float(np.median(alone)), *list_quantiles(alone)
    points = list(csv.DictReader(POINTS.open()))
    seconds = np.array([float(point["spmm_ms_per_epoch"]) for point in points]) * 1e3 * MICRO
    predicted = np.array([predict_point(point, terms) for point in points])
    scaling = np.array([point["set"] == "scaling" for point in points])
    yield Table(
        *("epochs of Plexus, not fitted", "count", "rank correlation:.3f", "median ratio:.2f"),
        *(*factors, f"within {terms.within:g}:.0%"),
    )
    for name, some in (("40 points of scaling", scaling), ("28 grids of 64 devices", ~scaling)):
        ratio, rank = predicted[some] / seconds[some], spearmanr(predicted[some], seconds[some]).statistic
        inside = np.mean(np.maximum(ratio, 1 / ratio) <= terms.within)
        yield (
            name,
            int(some.sum()),
            float(rank),
            float(np.median(ratio)),
            *list_quantiles(ratio),
            float(inside),
        )
