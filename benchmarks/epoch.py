"""Time of a training epoch: of `serial`, of parallel strategies, and of recording.

Competitors take turns epoch by epoch in one process, so that a drift of the machine's speed reaches all of them. Ratios
are of medians over the same turns. One thread a rank.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
import yaml
from torch import Tensor
from torch.distributed import Work

from benchmarks.measuring import Gcn, Ways, alternate, median_ratio, spec_of, trainer_of
from benchmarks.registry import Results, Table, benchmark
from harness.comm import collectives
from harness.comm.collectives import Group, Works
from harness.graph.store.datasets import open_dataset
from harness.kernels.csr import row_indices, to_device
from harness.ledger import COMPUTING, MOVING, HostClock, Op, Phase
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec

HIDDEN, ROUNDS, WARM = 16, 3, 3
PYG = ("pyg csr", "pyg edge_index")
CPU = torch.device("cpu")


class EpochCase(NamedTuple):
    """A strategy on a graph. The name may carry parameters, as in cagnet-2d:weight_gradient=S,overlap=true."""

    strategy: str
    dataset: str
    ranks: int
    grid: str | None = None
    hidden: int = HIDDEN
    order: str = "aggregate_first"

    def spec(self) -> Spec:
        """Return the spec; the dataset is built."""
        name, _, settings = self.strategy.partition(":")
        pairs = [part.split("=") for part in settings.split(",") if settings]
        params = {key: yaml.safe_load(value) for key, value in pairs}
        layers = 2 if self.dataset.startswith("sbm") else 3
        return spec_of(
            {
                "strategy": {"name": name, "params": params},
                "dataset": self.dataset,
                "ranks": self.ranks,
                "grid": self.grid,
                "model": {"hidden": self.hidden, "layers": layers, "order": self.order},
            }
        )

    def trainer(self) -> Trainer:
        """Return this rank's trainer."""
        return trainer_of(self.spec())


def reference_models(spec: Spec, device: torch.device = CPU) -> dict[str, Gcn]:
    """Return PyTorch Geometric's GCNConv on a normalised graph, by a CSR tensor or an edge_index, and plain torch."""
    from torch_geometric.nn import GCNConv

    blocks = open_dataset(find_root(), spec.dataset)
    everyone = range(blocks.n)
    A = to_device(blocks.adjacency(everyone, everyone), device)
    val, col = A.val.float(), A.col.long()
    csr = torch.sparse_csr_tensor(A.rowptr, col, val, size=A.shape)
    edges = torch.stack([col, row_indices(A)])
    X = blocks.feature_block(everyone, range(blocks.features)).to(device)
    lr = spec.training.lr
    data = X, blocks.labels(everyone).to(device), (blocks.split(everyone) == 1).to(device)
    sizes = [blocks.features, *[spec.model.hidden] * (spec.model.layers - 1), blocks.classes]

    shapes = list(pairwise(sizes))

    def pyg(*graph: Tensor) -> Gcn:
        layers = [GCNConv(*shape, normalize=False, bias=False).to(device) for shape in shapes]
        trained = [weight for layer in layers for weight in layer.parameters()]
        return Gcn(lambda i, H: layers[i](H, *graph), len(layers), trained, data, lr)

    def plain() -> Gcn:
        weights = [
            torch.nn.init.xavier_uniform_(torch.empty(shape, device=device)).requires_grad_()
            for shape in shapes
        ]
        return Gcn(lambda i, H: (csr @ H) @ weights[i], len(weights), weights, data, lr)

    return {PYG[0]: pyg(csr), PYG[1]: pyg(edges, val), "plain torch": plain()}


@benchmark
def serial(dataset: str = "sbm-4096", turns: int = 20) -> Results:
    """Compare an epoch of `serial` with PyTorch Geometric's GCNConv."""
    case = EpochCase("serial", dataset, 1, order="combine_first")
    models = reference_models(case.spec())
    competitors: Ways = {"serial": case.trainer().epoch, **{name: models[name].epoch for name in PYG}}
    yield from show_times(alternate(competitors, turns, warm=WARM), base="serial")


@benchmark
def parallel(
    dataset: str = "sbm-4096",
    strategy: str = "cagnet-1d",
    ranks: int = 2,
    grid: str | None = None,
    turns: int = 20,
) -> Results:
    """Compare an epoch of a parallel strategy with plain torch and with `serial`.

    The parallel epochs run between two rounds of the serial ones, and on the same cores.

    Args:
        strategy: a name, which may have parameters, as in cagnet-2d:weight_gradient=S,overlap=true
        grid: sizes of the axes, as in 2x2 (default: the strategy's first guess)
    """
    alone = EpochCase("serial", dataset, 1)
    one_rank = alone.trainer()
    epochs: Ways = {
        "plain torch": reference_models(alone.spec())["plain torch"].epoch,
        "serial": one_rank.epoch,
    }
    case = EpochCase(strategy, dataset, ranks, grid)
    with Pool() as pool:
        pool.run(case.ranks, rank_epochs, case, WARM)
        before = alternate(epochs, turns, warm=WARM)
        measured = pool.run(case.ranks, rank_epochs, case, turns)
        after = alternate(epochs, turns, warm=WARM)
    walls, cpus, _ = zip(*measured, strict=True)
    name = f"{case.strategy} {case.grid or case.ranks}"
    seconds = {key: before[key] + after[key] for key in before}
    seconds[name] = [max(epoch) for epoch in zip(*walls, strict=True)]
    yield from show_times(seconds, base="plain torch")
    cpu = sum(cpus) / turns
    base = median(alternate({"serial": one_rank.epoch}, turns, warm=WARM, clock=process_time)["serial"])
    yield Table("strategy", "CPU s an epoch, all ranks:.4f", "to serial:.2f")
    yield name, cpu, cpu / base
    yield "serial", base, 1.0


@benchmark
def kernels(
    *competitors: str, dataset: str = "sbm-4096", ranks: int = 2, hidden: int = HIDDEN, turns: int = 20
) -> Results:
    """Measure where the CPU time of strategies goes: the kernels of all ranks, next to those of serial training.

    Serial training is measured before and after each strategy, alone and on all cores at once. Kernels on all cores
    share caches and the way to memory, in any strategy.

    Args:
        competitors: strategies, as NAME@GRID; a name may have parameters
    """
    yield Table(
        *("strategy", "kernels, ms:.1f", "to serial:.2f", "to serial on all cores:.2f"),
        *("collectives:.1f", "their threads:.1f", "rest:.1f", "ms, all ranks:.1f"),
    )
    with Pool() as pool:
        for name in competitors:
            strategy, _, grid = name.partition("@")
            case = EpochCase(strategy, dataset, ranks, grid or None, hidden)
            alone = case._replace(strategy="serial", ranks=1, grid=None)
            before = serial_kernels(alone, turns)
            by_rank = pool.run(case.ranks, rank_cpu, case, turns)
            after = serial_kernels(alone, turns)
            total = CpuSeconds(*map(sum, zip(*by_rank, strict=True)))
            ratios = (2 * total.kernels / (a + b) for a, b in zip(before, after, strict=True))
            yield name, 1e3 * total.kernels, *ratios, *(1e3 * each for each in (*total[1:], sum(total)))


@benchmark
def calls(
    *competitors: str, dataset: str = "sbm-4096", ranks: int = 4, hidden: int = HIDDEN, turns: int = 100
) -> Results:
    """Compare an epoch with its bare calls to the library, issued again in the same order without any computation.

    The calls alone are the least that an epoch takes with this library. CPU times are sums over ranks, of the thread
    that trains and of the library's threads; `kernels` are sparse and dense products, elementwise functions and copies.
    Plain torch is measured before and after each strategy.

    Args:
        competitors: strategies, as NAME@GRID; a name may have parameters
    """
    yield Table(
        *(
            "strategy",
            "calls a rank",
            "epoch ms:.2f",
            "to plain torch:.2f",
            "calls alone ms:.2f",
            "to plain torch:.2f",
        ),
        *("CPU ms, all ranks:.1f", "kernels:.1f", "calls:.1f", "calls alone:.1f", "their threads:.1f"),
        *("with calls alone:.1f", "rest:.1f"),
    )
    plain = reference_models(EpochCase("serial", dataset, 1, hidden=hidden).spec())["plain torch"].epoch
    with Pool() as pool:
        for name in competitors:
            strategy, _, grid = name.partition("@")
            case = EpochCase(strategy, dataset, ranks, grid or None, hidden)
            before = alternate({"": plain}, turns, warm=WARM)[""]
            by_rank = pool.run(case.ranks, rank_calls, case, turns)
            base = median(before + alternate({"": plain}, turns, warm=WARM)[""])
            epoch, alone = (max(getattr(rank, part) for rank in by_rank) for part in ("epoch", "alone"))
            cpu = CpuSeconds(*map(sum, zip(*(rank.cpu for rank in by_rank), strict=True)))
            issuing, library = (
                sum(getattr(rank, part) for rank in by_rank) for part in ("issuing", "library")
            )
            spent = (sum(cpu), cpu.kernels, cpu.collectives, issuing, cpu.library, library, cpu.rest)
            yield (
                *(name, by_rank[0].calls, 1e3 * epoch, epoch / base, 1e3 * alone, alone / base),
                *(1e3 * seconds for seconds in spent),
            )


@benchmark
def recording(
    dataset: str = "sbm-4096", strategy: str = "cagnet-1d", ranks: int = 2, turns: int = 20
) -> Results:
    """Compare epochs with the ledger on and off, in turns; and say which share of time the ledger cannot place.

    Args:
        strategy: a name, which may have parameters
    """
    case = EpochCase(strategy, dataset, ranks)
    with Pool() as pool:
        by_rank = pool.run(case.ranks, rank_recording, case, turns)
    on, off = (
        [max(turn) for turn in zip(*walls, strict=True)]
        for walls in zip(*(rank[:2] for rank in by_rank), strict=True)
    )
    yield from show_times({"off": off, "on": on}, base="off")
    cost = 100 * (median_ratio({"off": off, "on": on}) - 1)
    unclaimed = 100 * max(rank.unclaimed for rank in by_rank)
    yield (
        f"{case.strategy} P={case.ranks}: recording costs {cost:+.2f} % of an epoch (median of {turns} pairs)\n"
        f"entries of an epoch: {by_rank[0].entries}; phase other and op glue: {unclaimed:.2f} % of it"
    )


def show_times(seconds: dict[str, list[float]], base: str) -> Results:
    """Show the median of each competitor, next to that of the base."""
    yield Table("", "median ms:.2f", "min ms:.2f", f"to {base}:.2f")
    for name, taken in seconds.items():
        yield name, 1e3 * median(taken), 1e3 * min(taken), median(taken) / median(seconds[base])


def rank_epochs(case: EpochCase, turns: int) -> tuple[list[float], float, float]:
    """Return the seconds of each epoch on one rank, the CPU seconds of all epochs, and the words of one epoch."""
    trainer = case.trainer()
    for _ in range(WARM):
        trainer.epoch()
    begun = process_time()
    epochs = [trainer.epoch() for _ in range(turns)]
    cpu, entries = process_time() - begun, epochs[-1].entries.values()
    return [epoch.seconds for epoch in epochs], cpu, sum(amounts.elements_payload for amounts in entries)


class CpuClock(HostClock):
    """The CPU time of the thread that trains: a kernel does not count while another process has the core."""

    mark = staticmethod(thread_time)


class CpuSeconds(NamedTuple):
    """Where the CPU time of a rank's epoch goes, in seconds."""

    kernels: float
    """Sparse and dense products, elementwise functions and copies."""
    collectives: float
    """The calls of collectives and messages, on the thread that trains."""
    library: float
    """All other threads of the process: with gloo those that send and receive."""
    rest: float
    """The thread that trains, elsewhere: autograd and Python."""


def rank_cpu(case: EpochCase, turns: int) -> CpuSeconds:
    """Return the mean over epochs of one rank."""
    trainer = trainer_of(case.spec(), clock=CpuClock())
    for _ in range(WARM):
        trainer.epoch()
    process, thread = process_time(), thread_time()
    epochs = [trainer.epoch() for _ in range(turns)]
    process, thread = process_time() - process, thread_time() - thread
    kernels, collectives = (
        sum(amounts.seconds for epoch in epochs for key, amounts in epoch.entries.items() if key.op in ops)
        for ops in (COMPUTING, MOVING)
    )
    parts = kernels, collectives, process - thread, thread - kernels - collectives
    return CpuSeconds(*(seconds / turns for seconds in parts))


class RankCalls(NamedTuple):
    """An epoch of a rank, and its calls alone: medians, and means of CPU seconds."""

    calls: int
    epoch: float
    alone: float
    cpu: CpuSeconds
    issuing: float
    """CPU seconds of the thread that issues the calls alone."""
    library: float
    """CPU seconds of the library's threads during the calls alone."""


def rank_calls(case: EpochCase, turns: int) -> RankCalls:
    """Time epochs of a rank, then the calls of an epoch alone."""
    trainer = case.trainer()
    for _ in range(WARM):
        trainer.epoch()
    world, calls = trainer.ctx.grid.world, record_calls(trainer)
    epochs = []
    for _ in range(turns):
        world.barrier()
        epochs.append(trainer.epoch().seconds)
    cpu, alone = rank_cpu(case, turns), []
    process, thread = process_time(), thread_time()
    with torch.no_grad():
        for _ in range(turns):
            begun = perf_counter()
            for call in calls:
                call()
            alone.append(perf_counter() - begun)
    process, thread = process_time() - process, thread_time() - thread
    return RankCalls(
        len(calls), median(epochs), median(alone), cpu, thread / turns, (process - thread) / turns
    )


def record_calls(trainer: Trainer) -> list[Callable[[], object]]:
    """Train an epoch; return functions that issue each of its calls to the library again, on the same buffers."""
    calls: list[Callable[[], object]] = []
    issue, exchange = collectives._issue, dist.batch_isend_irecv

    def record(buffer: Tensor, call: Callable[..., Work | None], group: Group, *, later: bool) -> Works:
        calls.append(partial(call, group=group, async_op=False))
        return issue(buffer, call, group, later=later)

    def record_messages(messages: list[dist.P2POp]) -> list[Work]:
        calls.append(lambda: [work.wait() for work in exchange(messages)])
        return exchange(messages)

    with (
        mock.patch.object(collectives, "_issue", record),
        mock.patch.object(dist, "batch_isend_irecv", record_messages),
    ):
        trainer.epoch()
    return calls


def serial_kernels(case: EpochCase, turns: int) -> tuple[float, float]:
    """Return the seconds of kernels in serial training: alone, and the mean with one training on each core."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as everywhere:
        list(everywhere.map(rank_cpu, [case] * cores, [1] * cores))
        at_once = everywhere.map(rank_cpu, [case] * cores, [3 * turns] * cores)
        together = sum(seconds.kernels for seconds in at_once) / cores
    return rank_cpu(case, turns).kernels, together


class Recorded(NamedTuple):
    """One rank's epochs with its ledger on and off."""

    on: list[float]
    off: list[float]
    entries: int
    unclaimed: float
    """The share of an epoch in phase other or op glue."""


def rank_recording(case: EpochCase, turns: int) -> Recorded:
    """Train epochs with the ledger on and off."""
    trainer = case.trainer()
    ledger = trainer.ctx.ledger
    for _ in range(WARM):
        trainer.epoch()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    unclaimed, entries = [], 0
    for turn in range(2 * turns):
        ledger.recording = turn % 4 in (0, 3)  # on off off on: a drift favours neither
        epoch = trainer.epoch()
        seconds[ledger.recording].append(epoch.seconds)
        if ledger.recording:
            lost = [a for key, a in epoch.entries.items() if key.phase is Phase.OTHER or key.op is Op.GLUE]
            unclaimed.append(sum(amounts.seconds for amounts in lost) / epoch.seconds)
            entries = len(epoch.entries)
    return Recorded(seconds[True], seconds[False], entries, median(unclaimed))
