"""Tests the GPUs of this machine; measures its rates and the links between its ranks, for predictions, in its card.

A test compares every GPU's kernels, the sums over all GPUs and a small training with float64 on the host. Measured are:

sparse products   graphs of two kinds and several sizes, at widths from 1 to 256; five terms that are not negative
                  are fitted to relative errors
dense products    the median rate of the products of a layer
memory            the median rate of an elementwise kernel on tensors of several sizes
launch            a step on a tiny graph, over the number of its kernels: the share of the host is included
links             all-reduces between ranks (`harness.doctor.links`)
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from harness.check.case import check_graph
from harness.check.kit import ON_GPUS, smallest
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.device import is_gpu, settle
from harness.doctor.links import GB, constant, links, measure
from harness.errors import RunError
from harness.files import write_text
from harness.kernels import Csr, cast, from_coo, on_device, to_scipy, transpose
from harness.kernels.random import Purpose, mask, rectangle
from harness.kernels.spmm import aggregate, by_library_in_blocks, spmm
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName, Ledger, TensorName
from harness.ledger.tape import Product, Tape
from harness.predict.pricing import MICRO, NANO, spmm_terms
from harness.progress import OnStep, silent, steps
from harness.registry import load_strategy
from harness.replay import Meter
from harness.run.trainer import Trainer
from harness.sources.rmat import Rmat
from harness.spec.machine_card import MACHINES, Machine, load_machine
from harness.spec.spec import Spec
from harness.store.memory_store import MemoryStore
from harness.strategy import Facts, facts_of

SCALES, WIDTHS, DEGREES, KINDS = (11, 14, 17), (1, 4, 16, 41, 128, 256), (4, 24), 2
"""The graphs of sparse products, and the widths: a power law and a uniform graph are the kinds."""
LAYERS = ((1 << 12, 64, 64), (1 << 15, 128, 128), (1 << 17, 128, 16), (128, 1 << 15, 128))
STREAMED = (1 << 14, 1 << 18, 1 << 22)
"""Rows by columns by columns of dense products, and elements of an elementwise kernel."""
BATCH = 2048
"""Vertices of the mini-batch."""
TURNS, MOST_TURNS, SECONDS = 7, 50, 1.0
INSIDE = 0.9
"""The share of the measured times that lie inside an interval."""

TESTED, PATIENCE = 1009, 60.0
"""The vertices of the graph that GPUs are tested with, and the seconds that they have for each part of the test."""
ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-10}
"""The largest deviation of a kernel's result, relative to the largest number."""


def wrong_with_gpus(gpus: int) -> list[str]:
    """What is wrong with the GPUs of this machine, in words. The test takes about a minute."""
    with Pool(engine=Engine.NCCL, patience=PATIENCE) as pool:
        try:
            wrong = [words for words_of_rank in pool.run(gpus, wrong_here) for words in words_of_rank]
            if not wrong:  # otherwise a training says nothing new
                findings = smallest("cagnet-1d", pool.run, gpus, ON_GPUS)
                wrong = [
                    f"a small training: {each.law}: {each.detail}" for each in findings if not each.holds
                ]
        except RunError as error:
            wrong = [str(error).partition("\n")[0]]
    return wrong


def wrong_here() -> list[str]:
    """What is wrong with the kernels of this rank's GPU, and with the sums over the GPUs of all ranks."""
    device, ranks = engine.device_of(Engine.NCCL, engine.rank()), engine.world_size()
    axis = Grid.build({AxisName.P: ranks}, Ledger(recording=False), device)[AxisName.P]
    A, rows = check_graph(TESTED).A, torch.arange(TESTED)
    H, G = (rectangle(seed, Purpose.TEST, range(TESTED), range(80), 80) - 0.5 for seed in (0, 1))
    wrong = []
    for dtype, allowed in ALLOWED.items():
        mine, A_here = H.to(dtype), cast(A, dtype)
        on_gpu = mine.to(device).requires_grad_()
        A_on_gpu = on_device(A_here, device)
        Z = aggregate(A_on_gpu, on_device(transpose(A_here), device), on_gpu)
        Z.backward(G.to(device, dtype))
        summed = on_gpu.detach() * (engine.rank() + 1)
        summed = axis.all_reduce(summed, tensor=TensorName.H)
        dense, exact = torch.from_numpy(to_scipy(cast(A_here, torch.float64)).toarray()), mine.double()
        pairs = {
            "sparse product": (Z, dense @ exact),
            "sparse product in blocks": (
                by_library_in_blocks(A_on_gpu, on_gpu.detach(), None),
                dense @ exact,
            ),
            "gradient of a sparse product": (on_gpu.grad, dense.T @ G.to(dtype).double()),
            "dense product": (on_gpu.T @ on_gpu, exact.T @ exact),
            f"sum over {ranks} GPUs": (summed, exact * (ranks * (ranks + 1) // 2)),
        }
        for what, (result, expected) in pairs.items():
            assert result is not None
            error = float((result.detach().cpu().double() - expected).abs().max() / expected.abs().max())
            if not error <= allowed:
                off = f"{error:.1e} of the largest number from that of float64, allowed are {allowed:.0e}"
                wrong.append(f"{what} in {str(dtype).removeprefix('torch.')}: {off}")
    masks = [mask(0, Purpose.DROPOUT, x, range(3, 40), 1 << 15) for x in (rows, rows.to(device))]
    if not torch.equal(masks[0], masks[1].cpu()):
        wrong.append("dropout mask: its bits are not the host's")
    return [f"GPU {engine.rank()}: {words}" for words in wrong]


def calibrated(
    root: Path, machine: str, ranks: int, tell: Callable[[str], None], on_step: OnStep = silent
) -> dict[str, Any]:
    """The sections `rates` and `links` of a card, as measured here and now."""
    card = load_machine(root, machine)
    device = engine.device_of(Engine(card.engine), 0)
    torch.set_num_threads(card.threads_per_rank)
    rates, on_cores = _rates(card, device, on_step), card.engine == "gloo"
    return {"rates": rates, "links": links(measure(root, machine, ranks, tell), ranks, on_cores=on_cores)}


def write_sections(root: Path, machine: str, sections: dict[str, Any]) -> Path:
    """Replaces sections of a card, and leaves all others as they are, their comments included."""
    path = root / MACHINES / f"{machine}.yaml"
    text = path.read_text()
    for name in sections:
        text = re.sub(rf"(?m)^{name}:.*\n(?:[ #].*\n|\n(?= ))*", "", text)
    write_text(path, text.rstrip() + "\n\n" + yaml.safe_dump(sections, sort_keys=False, width=120))
    return path


def _median(values: list[float]) -> dict[str, Any]:
    """The median and the interval of most of the values."""
    return constant(median(values), _within([value / median(values) for value in values]))


def _within(ratios: list[float]) -> float:
    """The factor that holds most of these ratios on both sides of 1; rounded up."""
    return round(float(np.quantile([max(ratio, 1 / ratio) for ratio in ratios], INSIDE)) + 0.005, 2)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The lower quartile of the times of some calls, after one that is not timed: others may use the machine too."""
    work()
    taken: list[float] = []
    while len(taken) < TURNS or (sum(taken) < SECONDS / 10 and len(taken) < MOST_TURNS):
        settle(device)
        begun = time.perf_counter()
        work()
        settle(device)
        taken.append(time.perf_counter() - begun)
        if sum(taken) > SECONDS:
            break
    return float(np.quantile(taken, 0.25))


# Kernels.


def _rates(machine: Machine, device: torch.device, on_step: OnStep) -> dict[str, Any]:
    launch = _launch_seconds(machine, device)
    dense, streamed = [], []
    for m, k, n in steps(LAYERS, lambda sizes: "a dense product of {} x {} x {}".format(*sizes), on_step):
        X, Y = torch.rand(m, k, device=device), torch.rand(k, n, device=device)
        dense.append(2 * m * k * n / _seconds(lambda X=X, Y=Y: X @ Y, device))  # type: ignore[misc]
    for size in STREAMED:
        x, y = torch.rand(size, device=device), torch.rand(size, device=device)
        streamed.append(3 * x.nbytes / _seconds(lambda x=x, y=y: x + y, device))  # type: ignore[misc]
    return {
        "tflops": _median([rate / 1e12 for rate in dense]),
        "memory_gbs": _median([rate / GB for rate in streamed]),
        "efficiency": constant(1.0, 1.0, "measured rates are reached"),
        "launch_us": constant(launch / MICRO, 1.5),
        "sample_ns": constant(_sample_seconds(machine) / NANO, 1.5),
        "spmm": _spmm(device, on_step),
        **({} if is_gpu(device) else {"cores_per_node": len(os.sched_getaffinity(0))}),
    }


def _launch_seconds(machine: Machine, device: torch.device) -> float:
    """The seconds of a step on a tiny graph, over the number of its kernels."""
    graph = MemoryStore(check_graph(50))
    spec = _spec(machine, "serial", {"p": 1}, 0)
    strategy = load_strategy("serial")(spec, facts_of(graph))

    def trainer(ledger: Ledger) -> Trainer:
        return Trainer(strategy, Grid.build({AxisName.P: 1}, ledger, device), graph)

    counted = Tape()
    with Meter(counted):
        trainer(counted).epoch()
    kernels = sum(event.kernels + len(event.products) for event in counted.events)
    timed = trainer(Ledger())
    return _seconds(lambda: [timed.epoch() for _ in range(20)], device) / 20 / kernels


def _sample_seconds(machine: Machine) -> float:
    """The seconds of a sampled entry, in a mini-batch so large that all else of it takes no time to speak of."""
    A = next(_graphs())
    facts = Facts(A.rows, A.nnz, 1, 2, directed=True, labelled=A.rows, training=A.rows)
    spec = _spec(machine, "graphsage", {"d": 1}, min(BATCH, A.rows))
    sampled = partial(load_strategy("graphsage")(spec, facts).mini_batch, 0, 0, A, torch.arange(A.rows))
    return _seconds(sampled, torch.device("cpu")) / sum(each.nnz for each in sampled().A)


def _spec(machine: Machine, strategy: str, grid: dict[str, int], batch: int) -> Spec:
    return Spec.model_validate(
        {
            "strategy": strategy,
            "dataset": "check",
            "ranks": 1,
            "grid": grid,
            "training": {"batch": batch},
            "machine": machine.model_dump(),
        }
    )


def _spmm(device: torch.device, on_step: OnStep) -> dict[str, Any]:
    """The five terms, fitted to relative errors, and the interval of most products."""
    terms, taken = [], list[float]()
    of = len(SCALES) * len(DEGREES) * KINDS * len(WIDTHS)
    for A in _graphs():
        for width in WIDTHS:
            on_step(len(taken), of, f"a sparse product of {A.nnz:,} entries x {width}")
            H = torch.rand(A.cols, width, device=device)
            A_here = on_device(A, device)
            taken.append(_seconds(lambda A=A_here, H=H: spmm(A, H), device))  # type: ignore[misc]
            terms.append(spmm_terms(Product(A.rows, A.cols, width, A.nnz, "float32", "int32")))
    fitted = fit_terms(np.array(terms, dtype=np.float64), np.array(taken))
    ratios = (np.array(terms) @ fitted / np.array(taken)).tolist()
    names = ("entry_column", "entry", "row_column", "row", "call")
    values = {name: float(f"{each / NANO:.4g}") for name, each in zip(names, fitted.tolist(), strict=True)}
    return {**values, "within": _within(ratios), "source": constant(1.0, 1.0)["source"]}


def fit_terms(terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients of terms, none negative, with the least squares of relative errors."""
    from scipy.optimize import nnls

    relative = terms / seconds[:, None]
    largest = relative.max(axis=0)
    coefficients, _ = nnls(relative / largest, np.ones(len(seconds)))
    return np.asarray(coefficients / largest)


def _graphs() -> Iterator[Csr]:
    """Graphs with a power law and uniform ones, of few and of many entries in a row."""
    for scale in SCALES:
        for degree in DEGREES:
            generator = Rmat(scale, degree, seed=0)
            ends = generator.edges(range(generator.draws))
            n = generator.n
            uniform = torch.randint(n, (2, generator.draws), generator=torch.Generator().manual_seed(0))
            for source, target in (ends, uniform):  # KINDS of graphs
                yield from_coo(target, source, torch.ones(len(source)), (n, n), sum_duplicates=True)
