"""Time of a training epoch: `serial` against PyTorch Geometric, a parallel strategy against plain torch, parallel
strategies against each other, and one strategy with recording against the same strategy without. `kernels` says where
the CPU time of strategies goes, the kernels of all ranks beside those of serial training.

    python benchmarks/epoch.py serial --dataset rmat-17
    python benchmarks/epoch.py parallel --dataset sbm-4096 --ranks 2
    python benchmarks/epoch.py parallel --dataset rmat-17 --ranks 4 --strategy cagnet-2d --grid 2x2
    python benchmarks/epoch.py against --dataset rmat-17 --ranks 8 --hidden 128 plexus@2x2x2 cagnet-3d@2x2x2
    python benchmarks/epoch.py kernels --dataset rmat-17 --ranks 4 cagnet-1d cagnet-2d@2x2 plexus@2x2x1
    python benchmarks/epoch.py recording --dataset rmat-17 --ranks 2

Competitors take turns epoch by epoch in one process, so that a drift of the machine's speed reaches all of them.
Ratios are of medians over the same turns. One thread a rank.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from statistics import median
from time import process_time, thread_time
from typing import NamedTuple

import torch
import yaml
from measuring import Gcn, Table, alternate, argument_parser, one_thread, spec_of, trainer_of
from torch import Tensor

from harness.kernels.csr import row_indices, to_device
from harness.launch.worker_pool import Pool
from harness.ledger import COMPUTING, MOVING, HostClock, Op, Phase
from harness.run.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.store.datasets import open_dataset

HIDDEN, ROUNDS, WARM = 16, 3, 3
PYG = ("pyg csr", "pyg edge_index")
CPU = torch.device("cpu")


class Case(NamedTuple):
    """A strategy on a graph. The name may carry parameters, as in cagnet-2d:weight_gradient=S,overlap=true."""

    strategy: str
    dataset: str
    ranks: int
    grid: str | None = None
    hidden: int = HIDDEN
    order: str = "aggregate_first"

    def spec(self) -> Spec:
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
        return trainer_of(self.spec())


def reference_models(spec: Spec, device: torch.device = CPU) -> dict[str, Gcn]:
    """PyTorch Geometric's GCNConv on a normalised graph, by a CSR tensor or an edge_index, and plain torch."""
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


def compare_serial(options: argparse.Namespace) -> None:
    case = Case("serial", options.dataset, 1, order="combine_first")
    models = reference_models(case.spec())
    competitors = {"serial": case.trainer().epoch, **{name: models[name].epoch for name in PYG}}
    show(alternate(competitors, options.turns, warm=WARM), base="serial")


def compare_parallel(options: argparse.Namespace) -> None:
    """The parallel epochs run between two rounds of the serial ones, and on the same cores."""
    alone = Case("serial", options.dataset, 1)
    serial, turns = alone.trainer(), options.turns
    epochs = {"plain torch": reference_models(alone.spec())["plain torch"].epoch, "serial": serial.epoch}
    case = Case(options.strategy, options.dataset, options.ranks, options.grid)
    with Pool() as pool:
        pool.run(case.ranks, rank_epochs, case, WARM)
        before = alternate(epochs, turns, warm=WARM)
        measured = pool.run(case.ranks, rank_epochs, case, turns)
        after = alternate(epochs, turns, warm=WARM)
    walls, cpus, _ = zip(*measured, strict=True)
    name = f"{case.strategy} {case.grid or case.ranks}"
    seconds = {key: before[key] + after[key] for key in before}
    seconds[name] = [max(epoch) for epoch in zip(*walls, strict=True)]
    show(seconds, base="plain torch")
    cpu = sum(cpus) / turns
    print(f"CPU seconds of {name} an epoch, summed over ranks: {cpu:.4f}")
    base = median(alternate({"serial": serial.epoch}, turns, warm=WARM, clock=process_time)["serial"])
    print(f"CPU seconds of a serial epoch: {base:.4f}; ratio {cpu / base:.2f}")


def compare_strategies(options: argparse.Namespace) -> None:
    """Each strategy trains some epochs in turn on the same cores, in several rounds."""
    competitors: list[str] = options.competitors
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    cpus: dict[str, list[float]] = {name: [] for name in competitors}
    words: dict[str, float] = {}
    with Pool() as pool:
        for name in competitors * ROUNDS:
            strategy, _, grid = name.partition("@")
            case = Case(strategy, options.dataset, options.ranks, grid or None, options.hidden)
            walls, used, moved = zip(*pool.run(case.ranks, rank_epochs, case, options.turns), strict=True)
            seconds[name] += [max(epoch) for epoch in zip(*walls, strict=True)]
            cpus[name].append(sum(used) / options.turns)
            words[name] = max(moved)
    show(seconds, base=competitors[0])
    print(f"{'':20}{'CPU s an epoch':>16}{'to first':>10}{'words of a rank':>20}{'to first':>10}")
    first = competitors[0]
    for name in competitors:
        cpu, base = median(cpus[name]), median(cpus[first])
        sent = f"{words[name]:20,.0f}{words[name] / words[first]:10.2f}"
        print(f"{name:20}{cpu:16.4f}{cpu / base:10.2f}{sent}")


def rank_epochs(case: Case, turns: int) -> tuple[list[float], float, float]:
    """Seconds of each epoch on one rank, the CPU seconds of all epochs, and the words of one epoch."""
    trainer = case.trainer()
    for _ in range(WARM):
        trainer.epoch()
    begun = process_time()
    epochs = [trainer.epoch() for _ in range(turns)]
    cpu, entries = process_time() - begun, epochs[-1].entries.values()
    return [epoch.seconds for epoch in epochs], cpu, sum(amounts.words_payload for amounts in entries)


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


def rank_cpu(case: Case, turns: int) -> CpuSeconds:
    """The mean over epochs of one rank."""
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


def compare_kernels(options: argparse.Namespace) -> None:
    """The CPU seconds of all ranks. Serial training is measured before and after each strategy, alone and on all cores.

    Kernels on all cores at once share caches and the way to memory, in any strategy.
    """
    table = Table(
        "strategy",
        "kernels, ms",
        "to serial",
        "to serial on all cores",
        "collectives",
        "their threads",
        "rest",
        "ms, all ranks",
    )
    with Pool() as pool:
        for name in options.competitors:
            strategy, _, grid = name.partition("@")
            case = Case(strategy, options.dataset, options.ranks, grid or None, options.hidden)
            alone = case._replace(strategy="serial", ranks=1, grid=None)
            before = serial_kernels(alone, options.turns)
            ranks = pool.run(case.ranks, rank_cpu, case, options.turns)
            after = serial_kernels(alone, options.turns)
            total = CpuSeconds(*map(sum, zip(*ranks, strict=True)))
            serial = [f"{2 * total.kernels / (a + b):.2f}" for a, b in zip(before, after, strict=True)]
            cells = [f"{1e3 * seconds:.1f}" for seconds in (*total[1:], sum(total))]
            table.row(name, f"{1e3 * total.kernels:.1f}", *serial, *cells)


def serial_kernels(case: Case, turns: int) -> tuple[float, float]:
    """The kernels of serial training: alone, and of the mean training if there is one on each core."""
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


def compare_recording(options: argparse.Namespace) -> None:
    """The same trainer with its ledger on and off in turns, and the share of time that the ledger cannot place."""
    case = Case(options.strategy, options.dataset, options.ranks)
    with Pool() as pool:
        ranks = pool.run(case.ranks, rank_recording, case, options.turns)
    on, off = (
        [max(turn) for turn in zip(*walls, strict=True)]
        for walls in zip(*(r[:2] for r in ranks), strict=True)
    )
    show({"off": off, "on": on}, base="off")
    cost = 100 * (median(a / b for a, b in zip(on, off, strict=True)) - 1)
    run = f"{case.strategy} P={case.ranks}"
    print(f"{run}: recording costs {cost:+.2f} % of an epoch (median of {options.turns} pairs)")
    unclaimed = 100 * max(rank.unclaimed for rank in ranks)
    print(f"entries of an epoch: {ranks[0].entries}; phase other and op glue: {unclaimed:.2f} % of it")


def rank_recording(case: Case, turns: int) -> Recorded:
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


def show(seconds: dict[str, list[float]], base: str) -> None:
    reference = median(seconds[base])
    print(f"{'':20}{'median ms':>12}{'min ms':>10}{'to ' + base:>20}")
    for name, taken in seconds.items():
        middle = median(taken)
        print(f"{name:20}{middle * 1e3:12.2f}{min(taken) * 1e3:10.2f}{middle / reference:20.2f}")


QUESTIONS = {
    "serial": compare_serial,
    "parallel": compare_parallel,
    "against": compare_strategies,
    "kernels": compare_kernels,
    "recording": compare_recording,
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=QUESTIONS)
    names = "for against and kernels; a name may have parameters"
    parser.add_argument("competitors", nargs="*", metavar="NAME@GRID", help=names)
    parser.add_argument(
        "--hidden", type=int, default=HIDDEN, help="for against and kernels (default: %(default)s)"
    )
    parser.add_argument("--dataset", default="sbm-4096")
    parser.add_argument("--strategy", default="cagnet-1d")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--grid", help="as 2x2 (default: the strategy's first guess)")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_intermixed_args()
    one_thread()
    print(f"{options.what} {options.dataset}, {torch.get_num_threads()} thread a rank")
    QUESTIONS[options.what](options)


if __name__ == "__main__":
    main()
