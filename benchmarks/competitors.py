"""Compares our products, epochs and mini-batches with MKL and DGL, which the harness does not depend on.

MKL_RT names a `libmkl_rt.so` and DGL_PYTHON the Python of an environment that has DGL; what is missing is skipped, with
a line that says how to install it. MKL runs in this process, and DGL in another process (`workers`) with the same
settings of the allocator. Graphs and weights are the same, results are compared before they are timed, and competitors
take turns. On a machine with other work, set OMP_WAIT_POLICY=passive: threads that wait then leave the core to others.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.bench import GRAPHS, WIDTHS, Ratio
from benchmarks.measuring import spec_of, trainer_of
from benchmarks.mkl import INSTALL, Mkl, load_mkl
from benchmarks.registry import Results, Table, benchmark
from benchmarks.spmm import make_graphs
from benchmarks.turns import Time, TimeCalls, take_turns, time_here
from benchmarks.worker import Worker
from harness.graph.blocks import Blocks
from harness.graph.store.datasets import open_dataset
from harness.kernels.csr import Csr, cast, from_coo, row_indices, to_scipy
from harness.kernels.spmm import spmm as multiply_sparse
from harness.runtime.trainer import Trainer
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategies.sampling.composition import SampledOperators
from harness.strategy import MiniBatch

OURS = "ours"
DGL = "dgl_worker.py"
INSTALL_DGL = (
    "DGL is not shown: `make dgl` installs it in a separate environment, build/dgl. Name its Python, "
    "DGL_PYTHON=build/dgl/bin/python."
)
COLUMNS = (
    *("competitor", "our ms:.2f", "our CPU ms:.2f", "its ms:.2f", "its CPU ms:.2f"),
    *("ratio:.2f", "interval", "CPU ratio:.2f", "interval of CPU ratio"),
)
TOLERANCE = 1e-5
"""The relative difference of products to float64, and of the losses of the first epochs."""
LOSSES = 3
SPREAD = 0.03
"""The relative difference of the numbers of vertices that two samplers draw in an epoch."""
MODELS = ("gcn", "sage", "gat")


def python_of_dgl() -> str | None:
    """Return the Python of the environment that has DGL."""
    return os.environ.get("DGL_PYTHON") or None


def show(times: Mapping[str, list[Time]]) -> Iterator[tuple[object, ...]]:
    """Yield the cells of each competitor in `COLUMNS`. Ratios are its times over ours, pair by pair."""
    ours = times[OURS]
    for name, theirs in times.items():
        if name == OURS:
            continue
        cells: list[object] = [name]
        for each in (ours, theirs):
            cells += [1e3 * median(seconds) for seconds in zip(*each, strict=True)]
        for mine, its in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
            ratio = Ratio.of(pd.Series(its) / pd.Series(mine))
            ends = ratio.interval
            cells += [ratio.value, f"{ends.low:.2f} to {ends.high:.2f}" if ends else ""]
        yield tuple(cells)


def run_with_dgl(compare: Callable[[Worker, Path], Results]) -> Results:
    """Yield what a comparison with a worker of DGL yields; without DGL, how to install it."""
    if not (python := python_of_dgl()):
        yield INSTALL_DGL
        return
    with Worker(python, DGL) as worker, TemporaryDirectory() as folder:
        yield worker.ask("versions")
        yield from compare(worker, Path(folder))


# Products.


@benchmark
def products(
    turns: int = 9,
    graphs: tuple[str, ...] = GRAPHS,
    widths: tuple[int, ...] = WIDTHS,
    threads: tuple[int, ...] = (1, 2),
) -> Results:
    """Compare our product of a sparse and a dense matrix with MKL's and DGL's.

    A ratio is the competitor's time over ours: above 1, ours is faster. MKL writes to an output that was allocated
    before, without and after `mkl_sparse_set_mm_hint` and `mkl_sparse_optimize`, whose time does not count; ours and
    DGL's allocate theirs. DGL's `copy_u_sum` adds rows without weights, as its GraphConv does.

    Args:
        threads: numbers of threads
        widths: columns of the dense matrix
    """
    mkl, python = load_mkl(), python_of_dgl()
    yield "\n".join([mkl.version if mkl else INSTALL, *([] if python else [INSTALL_DGL])])
    if not mkl and not python:
        return
    known = dict(make_graphs(quick=set(graphs) <= {"R-MAT 2^14"}))
    for count in threads:
        torch.set_num_threads(count)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            worker = stack.enter_context(Worker(python, DGL, count)) if python else None
            yield worker.ask("versions") if worker else ""
            yield Table("graph", "columns", *COLUMNS, title=f"Threads: {count}")
            for name, width in product(graphs, widths):
                A = known[name]
                H = torch.rand(A.cols, width)
                competitors = {OURS: time_here(partial(multiply_sparse, A, H))}
                competitors |= prepare_mkl_products(mkl, A, H, count) if mkl else {}
                competitors |= prepare_dgl_products(worker, folder, A, H) if worker else {}
                for cells in show(take_turns(competitors, turns)):
                    yield name, width, *cells
    torch.set_num_threads(1)


def prepare_mkl_products(mkl: Mkl, A: Csr, H: Tensor, threads: int) -> dict[str, TimeCalls]:
    """Return MKL's products, after a comparison of their results."""
    competitors = {}
    for name, optimise in (("MKL", False), ("MKL, optimised", True)):
        Z = torch.empty(A.rows, H.shape[1])
        multiply = mkl.prepare_product(A, H, Z, threads, optimise=optimise)
        multiply()
        check_product(name, A, H, Z)
        competitors[name] = time_here(multiply)
    return competitors


def prepare_dgl_products(worker: Worker, folder: Path, A: Csr, H: Tensor) -> dict[str, TimeCalls]:
    """Return DGL's products, after a comparison of their results."""
    file = write(folder, matrix_arrays(A) | {"H": H})
    names = worker.ask("products", file=file)
    for name, matrix in zip(names, (A, A._replace(val=torch.ones_like(A.val))), strict=True):
        check_product(name, matrix, H, torch.from_numpy(worker.result(name, folder)))
    return {name: partial(worker.time, name) for name in names}


def check_product(name: str, A: Csr, H: Tensor, Z: Tensor) -> None:
    """Compare a product with scipy's in float64; elements are positive."""
    expected = torch.from_numpy(to_scipy(A._replace(val=A.val.double())) @ H.double().numpy())

    def describe(text: str) -> str:
        return f"{name}: {text}"

    assert_close(Z.double(), expected, rtol=TOLERANCE, atol=TOLERANCE, msg=describe)


def matrix_arrays(A: Csr) -> dict[str, Tensor]:
    """Return the arrays of a matrix."""
    return {"rowptr": A.rowptr, "col": A.col, "val": A.val}


def write(folder: Path, arrays: Mapping[str, Tensor | float]) -> str:
    """Write arrays for a worker; return the path of the file."""
    file = folder / "arrays.npz"
    numbers = {
        name: each.detach().numpy() if isinstance(each, Tensor) else np.array(each)
        for name, each in arrays.items()
    }
    np.savez(file, allow_pickle=False, **numbers)
    return str(file)


# Epochs.


@benchmark
def epochs(
    turns: int = 9, graphs: tuple[str, ...] = ("sbm-4096", "rmat-17"), models: tuple[str, ...] = MODELS
) -> Results:
    """Compare a serial epoch with DGL's GraphConv, SAGEConv and GATConv, from the same weights, on one thread.

    A ratio is DGL's time over ours. The losses of the first epochs must be equal.

    Args:
        models: kinds of models
    """

    def compare(worker: Worker, folder: Path) -> Results:
        yield Table("graph", "model", *COLUMNS)
        for name, kind in product(graphs, models):
            spec = spec_of(
                {
                    "strategy": {"name": "serial"},
                    "dataset": name,
                    "ranks": 1,
                    "model": {
                        "kind": kind,
                        "layers": 2,
                        "order": "aggregate_first" if kind == "gat" else "best",
                    },
                }
            )
            trainer = trainer_of(spec)
            worker.ask("epochs", file=write(folder, model_arrays(spec, trainer)), kind=kind)
            check_losses(f"{kind} on {name}", trainer, partial(worker.result, "epoch", folder))
            competitors: dict[str, TimeCalls] = {
                OURS: time_here(trainer.epoch),
                f"DGL {kind}": partial(worker.time, "epoch"),
            }
            for cells in show(take_turns(competitors, turns)):
                yield name, kind, *cells

    yield from run_with_dgl(compare)


def check_losses(name: str, trainer: Trainer, epoch: Callable[[], Any]) -> None:
    """Compare the losses of the first epochs."""
    pairs = [(float(trainer.epoch().loss), float(epoch())) for _ in range(LOSSES)]
    ours, theirs = (torch.tensor(each) for each in zip(*pairs, strict=True))
    assert_close(theirs, ours, rtol=TOLERANCE, atol=0, msg=lambda text: f"losses of {name}: {text}")


def model_arrays(spec: Spec, trainer: Trainer) -> dict[str, Tensor | float]:
    """Return the graph, the features, the labels and the weights of a trainer on one rank."""
    blocks, A = open_graph(spec)
    everyone = range(blocks.n)
    weights = zip(trainer.strategy.weights, trainer.weights, strict=True)
    return {
        **matrix_arrays(drop_loops(A) if spec.model.kind == "sage" else A),
        "X": blocks.feature_block(everyone, range(blocks.features)),
        "y": blocks.labels(everyone),
        "counted": blocks.split(everyone) == 1,
        "lr": spec.training.lr,
        "heads": spec.model.heads,
        **{f"{weight.part}{weight.layer}": W.detach().clone() for weight, W in weights},
    }


def open_graph(spec: Spec) -> tuple[Blocks, Csr]:
    """Return the graph of a spec, and its whole matrix in float32."""
    blocks = open_dataset(find_root(), spec.dataset)
    everyone = range(blocks.n)
    return blocks, cast(blocks.adjacency(everyone, everyone), torch.float32)


def drop_loops(A: Csr) -> Csr:
    """Return a matrix without its diagonal."""
    row = row_indices(A)
    kept = row != A.col
    return from_coo(row[kept], A.col[kept].long(), A.val[kept], A.shape)


# Mini-batches.


@benchmark
def mini_batches(
    turns: int = 9, graphs: tuple[str, ...] = ("sbm-100k", "rmat-17"), fanout: int = 10, batch: int = 1000
) -> Results:
    """Compare GraphSAGE's mini-batches with DGL's NeighborSampler, on one thread.

    A ratio is DGL's time over ours. `draws` are all draws of an epoch, for two layers; `draws and inputs` also has the
    rows of the features, and the matrices in the orders that training needs: the first layer's by rows only, because
    features have no gradients, and the second layer's in both; an `epoch` trains on them.
    Both draw for the same targets without replacement, so the entries next to the output are equally many, and the
    inputs about as many, which is checked. Our draws are functions of the seed and the vertex, with rescaled values.

    Args:
        fanout: neighbours of a vertex in each layer
    """

    def compare(worker: Worker, folder: Path) -> Results:
        yield Table("graph", "call", *COLUMNS)
        for name in graphs:
            spec = spec_of(
                {
                    "strategy": {"name": "graphsage", "params": {"fanout": fanout}},
                    "dataset": name,
                    "ranks": 1,
                    "model": {"kind": "sage", "layers": 2},
                    "training": {"batch": batch},
                }
            )
            draws = OurDraws(trainer_of(spec))
            arrays = model_arrays(spec, draws.trainer)
            order = torch.cat([each.vertices[-1] for each in draws.draw()])
            file = write(folder, arrays | {"order": order, "steps": draws.trainer.steps})
            worker.ask("mini_batches", file=file, fanout=fanout)
            check_draws(name, draws.count(), worker.result("counts", folder))
            for call, ours in draws.calls().items():
                competitors: dict[str, TimeCalls] = {OURS: time_here(ours), "DGL": partial(worker.time, call)}
                for cells in show(take_turns(competitors, turns)):
                    yield name, call, *cells

    yield from run_with_dgl(compare)


class OurDraws:
    """The mini-batches of the first epoch of a trainer."""

    def __init__(self, trainer: Trainer) -> None:
        assert isinstance(trainer.operators, SampledOperators)
        self.trainer, self.source = trainer, trainer.operators.source

    def draw(self) -> list[MiniBatch]:
        """Draw all mini-batches."""
        source = self.source
        return [
            source.sampler.mini_batch(step, source.everyone.index, source.graph, source.targets)
            for step in range(self.trainer.steps)
        ]

    def draw_with_inputs(self) -> None:
        """Draw all mini-batches, with transposed matrices and rows of features."""
        for step in range(self.trainer.steps):
            self.source.take_step(step)

    def count(self) -> Tensor:
        """Return the entries next to the output, without loops, and the inputs, of each mini-batch."""
        return torch.tensor(
            [[each.A[-1].nnz - each.A[-1].rows, len(each.vertices[0])] for each in self.draw()]
        )

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return what is timed."""
        return {
            "draws": self.draw,
            "draws and inputs": self.draw_with_inputs,
            "epoch": self.trainer.epoch,
        }


def check_draws(name: str, ours: Tensor, theirs: Any) -> None:
    """Compare the numbers of entries next to the output and, on average, of inputs."""
    entries, inputs = torch.from_numpy(theirs).unbind(1)
    assert torch.equal(entries, ours[:, 0]), f"{name}: {entries} and {ours[:, 0]} entries"
    ratio = float(inputs.sum() / ours[:, 1].sum())
    assert abs(ratio - 1) < SPREAD, f"{name}: DGL has {ratio:.3f} times as many inputs"
