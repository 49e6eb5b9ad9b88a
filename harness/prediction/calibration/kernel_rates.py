"""Measures the rates of a device, except sparse products: launches, events, elementwise and dense kernels, sampling.

The time of a kernel is the time of a launch plus the time of its work, as predictions price it. On a GPU, the host
issues a kernel while the GPU executes earlier ones, so its time has a separate constant. Elementwise kernels and
products that take the host as long to issue as the GPU to execute are left out, because their times are the host's.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from harness.base.device import DeviceGraph, gpu_properties, is_gpu
from harness.base.formatting import GB
from harness.comm.grid import Grid
from harness.graph.model import TRAIN, Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.memory_store import MemoryStore
from harness.kernels.recorded import matmul
from harness.ledger import MOVING, AxisName, Ledger
from harness.ledger.tape import ProductShape, Tape
from harness.prediction.calibration.measurements import Calibrator, KernelTime, subtract_launch
from harness.prediction.calibration.spmm_rates import SCALES, UNKNOWN_CACHE, make_graphs, make_uniform_graph
from harness.prediction.calibration.term_fit import compute_median_and_factor
from harness.prediction.epoch import replay_ranks
from harness.prediction.pricing import BYTES_PER_VALUE, MICRO, NANO
from harness.prediction.replay import Meter
from harness.registry import load_strategy
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.rank import record_turns
from harness.runtime.trainer import Trainer
from harness.spec.machine_card import Machine
from harness.spec.spec import Spec
from harness.strategy import Facts, Ready, facts_of

ASSUMED, FASTEST_WITHIN = 1.5, 2.0
"""Assumed factors of intervals: if only one size could be measured, and if all products are memory-bound."""

# Launches.

TINY, FEATURES, CLASSES = 50, 7, 5
"""The vertices, features and classes of a graph whose kernels have almost no work."""
KINDS = ("gcn", "sage", "gat")
"""The models that are trained on it."""

LAUNCHES = 500
"""The number of kernels in the CUDA graph that measures a launch."""


def measure_launch_constant(calibrator: Calibrator) -> dict[str, Any]:
    """Return the time of a kernel with almost no work: on a GPU without the time of the host, on a CPU with it."""
    if not is_gpu(calibrator.device):
        return measure_issue_constant(calibrator)
    x, graph = torch.zeros(1, device=calibrator.device), DeviceGraph()
    x.add_(1)  # loads the kernel
    graph.capture(lambda: [x.add_(1) for _ in range(LAUNCHES)])
    taken = calibrator.time_kernel(f"a CUDA graph of {LAUNCHES} kernels", graph.replay)
    return calibrator.make_constant(
        taken.seconds / LAUNCHES / MICRO, ASSUMED, "between kernels of a CUDA graph"
    )


def measure_issue_constant(calibrator: Calibrator) -> dict[str, Any]:
    """Return the time of a training step on a tiny graph, divided by its number of kernels."""
    each = [
        calibrator.try_stage(f"a step of {kind}", partial(_measure_issue, calibrator, kind)) for kind in KINDS
    ]
    value, within = compute_median_and_factor([seconds for seconds in each if seconds is not None], ASSUMED)
    return calibrator.make_constant(value / MICRO, within)


def _measure_issue(calibrator: Calibrator, kind: str) -> float:
    graph = MemoryStore(_make_tiny_graph())
    spec = _make_spec(calibrator.machine, "serial", {AxisName.P: 1}, 0, {"kind": kind})
    strategy = load_strategy("serial")(spec, facts_of(graph))

    def make_trainer(ledger: Ledger) -> Trainer:
        return Trainer(strategy, Grid.build({AxisName.P: 1}, ledger, calibrator.device), graph)

    counted = Tape()
    with Meter(counted):
        make_trainer(counted).epoch()
    kernels = sum(event.launches for event in counted.events)
    timed = make_trainer(Ledger())
    taken = calibrator.time_kernel(
        f"20 steps of {kind} with {kernels} kernels", lambda: [timed.epoch() for _ in range(20)]
    )
    return taken.seconds / 20 / kernels


# Events.

WORLD = 4
"""The ranks of the world in which events are timed."""
STRATEGIES = ("bns-gcn", "cagnet-1d", "cagnet-2d", "g3", "plexus", "rdm")
"""The strategies whose events are timed."""
PATIENCE = 120.0
"""The time limit of the measurement in seconds."""


def measure_event_constant(calibrator: Calibrator, launch: float) -> dict[str, Any]:
    """Return the time of an event besides its kernels, on ranks that wait for messages of each other.

    Between two events, a rank waits and other ranks use the caches, so this code takes several times as long as in the
    steps of a single rank.
    """
    graph = MemoryStore(_make_tiny_graph())
    specs = [
        _make_spec(calibrator.machine, name, load_strategy(name).grids(WORLD)[0], 0) for name in STRATEGIES
    ]
    with tempfile.TemporaryDirectory() as folder, Pool(patience=PATIENCE) as pool:
        taken = pool.run(WORLD, _time_events, specs, Path(folder))[0]
    each = []
    for spec, seconds in zip(specs, taken, strict=True):
        strategy = load_strategy(spec.strategy.name)(spec, facts_of(graph))
        (epoch,) = replay_ranks(Ready(strategy, graph), [0])
        events = [event for event in epoch.replayed.events if event.does_something]
        kernels = sum(event.launches for event in events)
        each.append(subtract_launch(seconds, kernels * launch) / len(events))
    value, within = compute_median_and_factor(each, ASSUMED)
    return calibrator.make_constant(value / MICRO, within)


def _time_events(specs: list[Spec], folder: Path) -> list[float]:
    """Return the processor time of this rank in an epoch of each spec, without the calls."""
    graph, found = MemoryStore(_make_tiny_graph()), list[float]()
    for spec in specs:
        strategy = load_strategy(spec.strategy.name)(spec, facts_of(graph))
        events = record_turns(strategy, graph, folder / spec.strategy.name)
        found.append(sum(event.cpu_seconds for event in events if event.key.op not in MOVING))
    return found


# The tiny graph.


def _make_tiny_graph() -> Graph:
    ends = torch.randint(TINY, (2, 4 * TINY), generator=torch.Generator().manual_seed(0)).numpy()
    A, counts = normalise_adjacency(RawGraph(TINY, *ends), directed=True)
    y, split = torch.arange(TINY) % CLASSES, torch.full((TINY,), TRAIN, dtype=torch.uint8)
    return Graph(A, torch.rand(TINY, FEATURES), y, split, CLASSES, directed=True, counts=counts)


def _make_spec(
    machine: Machine,
    strategy: str,
    grid: Mapping[AxisName, int],
    batch: int,
    model: dict[str, Any] | None = None,
) -> Spec:
    return Spec.model_validate(
        {
            "strategy": strategy,
            "dataset": "check",
            "ranks": prod(grid.values()),
            "grid": grid,
            "model": model or {},
            "training": {"batch": batch},
            "machine": machine.model_dump(),
        }
    )


# Elementwise kernels and dense products.

STREAMED = (1 << 14, 1 << 18, 1 << 22)
"""The number of elements in the elementwise kernels on a CPU."""
OF_CACHE = 1 / 4, 1, 4, 16
"""The bytes of a tensor of the elementwise kernels on a GPU, as multiples of its cache."""
LAYERS = ((1 << 12, 64, 64), (1 << 15, 128, 128), (1 << 17, 128, 16), (128, 1 << 15, 128))
"""The sizes (m, k, n) of dense products in layers, and of the gradient of a weight."""
LAYERS_ON_GPU = (
    *((1 << 17, 128, 128), (1 << 17, 256, 256), (1 << 17, 256, 48), (256, 1 << 17, 256)),
    *((1 << 15, 512, 512), (1 << 13, 1024, 1024), (4096, 4096, 4096)),
)


def measure_memory_constant(calibrator: Calibrator, launch: float) -> dict[str, Any]:
    """Return the memory bandwidth, measured by elementwise kernels with one and with two operands."""
    device, times = calibrator.device, list[KernelTime]()
    sizes: Sequence[int] = STREAMED
    if is_gpu(device):
        cache = gpu_properties(device).cache or UNKNOWN_CACHE
        sizes = [int(cache * share) // 4 for share in OF_CACHE]
    for done, size in enumerate(sizes):
        calibrator.on_step(done, len(sizes), f"elementwise kernels of {size:,} numbers")
        x, y = torch.rand(size, device=device), torch.rand(size, device=device)
        for name, work, tensors in (
            ("add", partial(torch.add, x, y), 3),
            ("relu", partial(torch.relu, x), 2),
        ):
            times.append(calibrator.time_kernel(name, work, moved=tensors * x.nbytes))
    kept = calibrator.leave_out_bound_by_host("elementwise kernels", times)
    return calibrator.make_constant(*fit_memory_rate(kept, launch))


def fit_memory_rate(times: Sequence[KernelTime], launch: float) -> tuple[float, float]:
    """Return the bandwidth of elementwise kernels in GB per second, and the factor of its interval."""
    rates = [each.bytes / subtract_launch(each.seconds, launch) / GB for each in times]
    return compute_median_and_factor(rates, ASSUMED)


def measure_dense_constants(calibrator: Calibrator, launch: float, memory: float) -> dict[str, Any]:
    """Return the rate of dense products with the current settings of torch; on a GPU also in bfloat16.

    `memory` is the bandwidth in bytes per second. Memory-bound products are left out of the rate.
    """
    if not is_gpu(calibrator.device):
        return {
            "tflops": calibrator.make_constant(
                *_measure_dense_rate(calibrator, "float32", LAYERS, launch, memory)
            )
        }
    rate = partial(_measure_dense_rate, calibrator, layers=LAYERS_ON_GPU, launch=launch, memory=memory)
    chosen = torch.get_float32_matmul_precision()
    other = "high" if chosen == "highest" else "highest"

    def measure_other_precision() -> tuple[float, float]:
        try:
            torch.set_float32_matmul_precision(other)
            return rate("float32", name=f"dense, precision {other}")
        finally:
            torch.set_float32_matmul_precision(chosen)

    value, within = rate("float32")
    differing = calibrator.try_stage(f"dense products of precision {other}", measure_other_precision)
    half = calibrator.try_stage("dense products in bfloat16", partial(rate, "bfloat16"))
    remark = f"torch's float32 matmul precision is {chosen!r}"
    remark += f", and {other!r} gives {differing[0]:.4g}" if differing else ""
    constants = {"tflops": calibrator.make_constant(value, within, remark)}
    return constants | ({"tflops_half": calibrator.make_constant(*half)} if half else {})


def _measure_dense_rate(
    calibrator: Calibrator,
    values: str,
    layers: Sequence[tuple[int, int, int]],
    launch: float,
    memory: float,
    name: str = "dense",
) -> tuple[float, float]:
    """Return the rate in 10^12 operations per second, and the factor of its interval."""
    times = list[KernelTime]()
    for done, (m, k, n) in enumerate(layers):
        calibrator.on_step(done, len(layers), f"a dense product of {m} x {k} x {n} in {values}")
        X, Y = (
            torch.rand(*sizes, device=calibrator.device).to(getattr(torch, values))
            for sizes in ((m, k), (k, n))
        )
        product = ProductShape(m, k, n, 0, values, "")
        times.append(calibrator.time_kernel(name, partial(matmul, X, Y), product))
    kept = calibrator.leave_out_bound_by_host(f"dense products in {values}", times)
    if len(select_compute_bound(kept, launch, memory)) < 2:
        calibrator.notes.append(
            f"dense products in {values} are memory-bound: the rate is that of the fastest"
        )
    return fit_dense_rate(kept, launch, memory)


def fit_dense_rate(times: Sequence[KernelTime], launch: float, memory: float) -> tuple[float, float]:
    """Return the rate of dense products in 10^12 operations per second, and the factor of its interval.

    If at most one product is compute-bound, this is the rate of the fastest product.
    """
    bound = select_compute_bound(times, launch, memory)
    if len(bound) > 1:
        return compute_median_and_factor([_compute_dense_rate(each, launch) for each in bound], ASSUMED)
    return max(_compute_dense_rate(each, launch) for each in times), FASTEST_WITHIN


def select_compute_bound(times: Sequence[KernelTime], launch: float, memory: float) -> list[KernelTime]:
    """Return the dense products whose operations take longer than their bytes, at the rate of the fastest product."""
    fastest = max((_compute_dense_rate(each, launch) for each in times), default=0.0)
    return [each for each in times if _count_operations(each) / fastest > _count_dense_bytes(each) / memory]


def _compute_dense_rate(time: KernelTime, launch: float) -> float:
    return _count_operations(time) / subtract_launch(time.seconds, launch)


def _count_operations(time: KernelTime) -> float:
    """Return the operations of a dense product in units of 10^12."""
    assert time.product
    return 2e-12 * time.product.rows * time.product.inner * time.product.columns


def _count_dense_bytes(time: KernelTime) -> int:
    assert time.product
    m, k, n = time.product.rows, time.product.inner, time.product.columns
    return BYTES_PER_VALUE[time.product.values] * (m * k + k * n + m * n)


# Sampling.

BATCHES = (512, 2048)
"""The numbers of targets in mini-batches: large enough that sampling dominates their time on the host."""
SAMPLED_SCALE, SAMPLED_DEGREE = 17, 24
"""The size of the graph that is sampled on a GPU. On a CPU it is the first graph of the sparse products."""


def measure_sampling_constant(calibrator: Calibrator) -> dict[str, Any]:
    """Return the time per sampled entry of GraphSAGE, which samples on the device of the matrix."""
    device = calibrator.device
    if is_gpu(device):
        A = make_uniform_graph(1 << SAMPLED_SCALE, SAMPLED_DEGREE << SAMPLED_SCALE, device)
    else:
        A = next(make_graphs(SCALES, device)).A
    facts = Facts(A.rows, A.nnz, 1, 2, directed=True, labelled=A.rows, training=A.rows)
    targets, each = torch.arange(A.rows, device=device), []
    batches = sorted({min(batch, A.rows) for batch in BATCHES})
    for done, batch in enumerate(batches):
        calibrator.on_step(done, len(batches), f"a mini-batch of {batch:,} targets")
        spec = _make_spec(calibrator.machine, "graphsage", {AxisName.D: 1}, batch)
        sampled = partial(load_strategy("graphsage")(spec, facts).mini_batch, 0, 0, A, targets)
        entries = sum(matrix.nnz for matrix in sampled().A)
        taken = calibrator.time_kernel(f"a mini-batch of {entries} entries", sampled)
        each.append(taken.seconds / entries)
    where = "drawn by graphsage on the GPU" if is_gpu(device) else "drawn by graphsage on the host"
    value, within = compute_median_and_factor(each, ASSUMED)
    return calibrator.make_constant(value / NANO, max(within, ASSUMED), where)


def count_cores_per_node(device: torch.device) -> dict[str, int]:
    """Return the number of cores that ranks share; an empty dictionary if each rank has its own GPU."""
    return {} if is_gpu(device) else {"cores_per_node": len(os.sched_getaffinity(0))}
