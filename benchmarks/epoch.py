"""Time of a training epoch: `serial` against PyTorch Geometric, a parallel strategy against plain torch, parallel
strategies against each other, and a strategy that records against itself when it does not.

    python benchmarks/epoch.py serial --dataset rmat-17
    python benchmarks/epoch.py parallel --dataset sbm-4096 --ranks 2
    python benchmarks/epoch.py parallel --dataset rmat-17 --ranks 4 --strategy cagnet-2d --grid 2x2
    python benchmarks/epoch.py against --dataset rmat-17 --ranks 8 --hidden 128 plexus@2x2x2 cagnet-3d@2x2x2
    python benchmarks/epoch.py recording --dataset rmat-17 --ranks 2

Competitors take turns epoch by epoch in one process, so that a machine whose speed drifts drifts for all of them.
Ratios are of medians over the same turns. One thread a rank.
"""

import argparse
import os
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

import torch
import yaml
from ready import opened
from torch import Tensor
from torch.nn.functional import cross_entropy

from harness.comm.grid import Grid
from harness.graph.blocks import Blocks
from harness.launch.worker_pool import Pool
from harness.ledger import Ledger, Op, Phase
from harness.registry import load_strategy
from harness.run.trainer import Trainer
from harness.spec.root import project_root
from harness.spec.spec import Spec
from harness.store.build import open_dataset
from harness.strategy.admit import parse_grid

HIDDEN, ROUNDS = 16, 3


def spec_of(
    strategy: str, dataset: str, ranks: int, order: str, grid: str | None = None, hidden: int = HIDDEN
) -> Spec:
    """`strategy` may carry parameters, as cagnet-2d:weight_gradient=S,overlap=true."""
    name, _, text = strategy.partition(":")
    params = {
        key: yaml.safe_load(value) for key, value in (part.split("=") for part in text.split(",") if text)
    }
    model = {"hidden": hidden, "layers": 2 if dataset.startswith("sbm") else 3, "order": order}
    shape = parse_grid(load_strategy(name), grid, ranks)
    chosen = {"strategy": {"name": name, "params": params}, "dataset": dataset, "ranks": ranks, "grid": shape}
    given = {**chosen, "model": model}
    return Spec.model_validate({**given, "machine": {"name": "benchmark"}})


def trainer_of(spec: Spec, *, recording: bool = True) -> Trainer:
    strategy, blocks = opened(spec)
    return Trainer(strategy, Grid.build(strategy.grid, Ledger(recording=recording)), blocks)


class Pyg:
    """PyTorch Geometric's GCNConv on a normalised graph, as a CSR tensor or as an edge_index."""

    def __init__(self, spec: Spec, blocks: Blocks, *, csr: bool) -> None:
        from torch_geometric.nn import GCNConv

        everyone = range(blocks.n)
        A = blocks.adjacency(everyone, everyone)
        self.X = blocks.feature_block(everyone, range(blocks.features))
        self.y, self.trains = blocks.labels(everyone), blocks.split(everyone) == 1
        row = torch.repeat_interleave(torch.arange(blocks.n), A.rowptr.diff())
        self.weight = A.val.float()
        self.edges = torch.stack([A.col.long(), row])
        if csr:
            self.edges = torch.sparse_csr_tensor(A.rowptr, A.col.long(), self.weight, size=A.shape)
        sizes = [blocks.features, *[spec.model.hidden] * (spec.model.layers - 1), blocks.classes]
        self.layers = torch.nn.ModuleList(
            GCNConv(f_in, f_out, normalize=False, bias=False) for f_in, f_out in pairwise(sizes)
        )
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=spec.training.lr)
        self.csr = csr

    def epoch(self) -> None:
        H: Tensor = self.X
        for number, layer in enumerate(self.layers):
            H = layer(H, self.edges) if self.csr else layer(H, self.edges, self.weight)
            H = H.relu() if number + 1 < len(self.layers) else H
        loss = cross_entropy(H[self.trains], self.y[self.trains])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


class PlainTorch:
    """The papers' model in plain torch on a CSR tensor, aggregation first, nothing recorded."""

    def __init__(self, spec: Spec, blocks: Blocks) -> None:
        pyg = Pyg(spec, blocks, csr=True)
        self.A, self.X, self.y, self.trains = pyg.edges, pyg.X, pyg.y, pyg.trains
        self.weights = [layer.lin.weight.detach().T.clone().requires_grad_() for layer in pyg.layers]
        self.optimizer = torch.optim.Adam(self.weights, lr=spec.training.lr)

    def epoch(self) -> None:
        H = self.X
        for number, W in enumerate(self.weights):
            H = (self.A @ H) @ W
            H = H.relu() if number + 1 < len(self.weights) else H
        loss = cross_entropy(H[self.trains], self.y[self.trains])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


def in_turn(
    competitors: dict[str, Any], turns: int, clock: Callable[[], float] = perf_counter, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of every competitor's epochs, A B C A B C ..."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for turn in range(-warmup, turns):
        for name, competitor in competitors.items():
            begun = clock()
            competitor.epoch()
            if turn >= 0:
                seconds[name].append(clock() - begun)
    return seconds


def compare_serial(dataset: str, turns: int) -> None:
    spec = spec_of("serial", dataset, 1, "combine_first")
    blocks = open_dataset(project_root(), spec.dataset)
    competitors = {
        "serial": trainer_of(spec),
        "pyg csr": Pyg(spec, blocks, csr=True),
        "pyg edge_index": Pyg(spec, blocks, csr=False),
    }
    show(in_turn(competitors, turns), base="serial")


def compare_parallel(strategy: str, dataset: str, ranks: int, turns: int, grid: str | None) -> None:
    """The parallel epochs run between two rounds of the serial ones, and on the same cores."""
    spec = spec_of("serial", dataset, 1, "aggregate_first")
    blocks = open_dataset(project_root(), spec.dataset)
    serial, plain = trainer_of(spec), PlainTorch(spec, blocks)
    with Pool() as pool:
        pool.run(ranks, rank_epochs, strategy, dataset, ranks, 3, grid)
        before = in_turn({"plain torch": plain, "serial": serial}, turns)
        measured = pool.run(ranks, rank_epochs, strategy, dataset, ranks, turns, grid)
        after = in_turn({"plain torch": plain, "serial": serial}, turns)
    walls, cpus, _ = zip(*measured, strict=True)
    name = f"{strategy} {grid or ranks}"
    seconds = {key: before[key] + after[key] for key in before}
    seconds[name] = [max(epoch) for epoch in zip(*walls, strict=True)]
    show(seconds, base="plain torch")
    cpu = sum(cpus) / turns
    print(f"CPU seconds of {name} an epoch, summed over ranks: {cpu:.4f}")
    alone = median(in_turn({"serial": serial}, turns, clock=process_time)["serial"])
    print(f"CPU seconds of a serial epoch: {alone:.4f}; ratio {cpu / alone:.2f}")


def compare_strategies(competitors: list[str], dataset: str, ranks: int, turns: int, hidden: int) -> None:
    """In rounds, each strategy some epochs in turn on the same cores."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    cpus: dict[str, list[float]] = {name: [] for name in competitors}
    words: dict[str, float] = {}
    with Pool() as pool:
        for name in competitors * ROUNDS:
            strategy, _, grid = name.partition("@")
            found = pool.run(ranks, rank_epochs, strategy, dataset, ranks, turns, grid or None, hidden)
            walls, cpu, moved = zip(*found, strict=True)
            seconds[name] += [max(epoch) for epoch in zip(*walls, strict=True)]
            cpus[name].append(sum(cpu) / turns)
            words[name] = max(moved)
    show(seconds, base=competitors[0])
    print(f"{'':20}{'CPU s an epoch':>16}{'to first':>10}{'words of a rank':>20}{'to first':>10}")
    first = competitors[0]
    for name in competitors:
        cpu, base = median(cpus[name]), median(cpus[first])
        moved = f"{words[name]:20,.0f}{words[name] / words[first]:10.2f}"
        print(f"{name:20}{cpu:16.4f}{cpu / base:10.2f}{moved}")


def rank_epochs(
    strategy: str, dataset: str, ranks: int, turns: int, grid: str | None, hidden: int = HIDDEN
) -> tuple[list[float], float, float]:
    """Seconds of each epoch on one rank, the CPU seconds of all of them, and the words of one."""
    trainer = trainer_of(spec_of(strategy, dataset, ranks, "aggregate_first", grid, hidden))
    for _ in range(3):
        trainer.epoch()
    begun = process_time()
    epochs = [trainer.epoch() for _ in range(turns)]
    cpu, entries = process_time() - begun, epochs[-1].entries.values()
    return [epoch.seconds for epoch in epochs], cpu, sum(amounts.words_payload for amounts in entries)


def compare_recording(strategy: str, dataset: str, ranks: int, turns: int) -> None:
    """The same trainer with its ledger on and off in turns; and what the ledger cannot say of where time went."""
    with Pool() as pool:
        found = pool.run(ranks, rank_recording, strategy, dataset, ranks, turns)
    on, off = (
        [max(turn) for turn in zip(*walls, strict=True)]
        for walls in zip(*(f[:2] for f in found), strict=True)
    )
    show({"off": off, "on": on}, base="off")
    paired = median(a / b for a, b in zip(on, off, strict=True))
    print(
        f"{strategy} P={ranks}: recording costs {100 * (paired - 1):+.2f} % of an epoch (median of {turns} pairs)"
    )
    print(
        f"entries of an epoch: {found[0][2]}; phase other and op glue: {100 * max(f[3] for f in found):.2f} % of it"
    )


def rank_recording(
    strategy: str, dataset: str, ranks: int, turns: int
) -> tuple[list[float], list[float], int, float]:
    trainer = trainer_of(spec_of(strategy, dataset, ranks, "aggregate_first"))
    ledger = trainer.ctx.ledger
    for _ in range(3):
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
            entries = sum(1 for _ in epoch.entries)
    return seconds[True], seconds[False], entries, median(unclaimed)


def show(seconds: dict[str, list[float]], base: str) -> None:
    reference = median(seconds[base])
    print(f"{'':20}{'median ms':>12}{'min ms':>10}{'to ' + base:>20}")
    for name, taken in seconds.items():
        middle = median(taken)
        print(f"{name:20}{middle * 1e3:12.2f}{min(taken) * 1e3:10.2f}{middle / reference:20.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("serial", "parallel", "against", "recording"))
    parser.add_argument(
        "competitors", nargs="*", metavar="NAME@GRID", help="for against; a name may have parameters"
    )
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="for against (default: %(default)s)")
    parser.add_argument("--dataset", default="sbm-4096")
    parser.add_argument("--strategy", default="cagnet-1d")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--grid", help="as 2x2 (default: the strategy's first guess)")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_intermixed_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(f"{options.what} {options.dataset}, {torch.get_num_threads()} thread a rank")
    if options.what == "serial":
        compare_serial(options.dataset, options.turns)
    elif options.what == "against":
        compare_strategies(options.competitors, options.dataset, options.ranks, options.turns, options.hidden)
    elif options.what == "recording":
        compare_recording(options.strategy, options.dataset, options.ranks, options.turns)
    else:
        compare_parallel(options.strategy, options.dataset, options.ranks, options.turns, options.grid)
