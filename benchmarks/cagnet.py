"""Compares CAGNET's schemes with its authors' own program, which is not part of the harness.

AUTHORS_CAGNET names a checkout of github.com/PASSIONLab/CAGNET (c820812), which runs unchanged: `cagnet_worker` gives
it a GPU that is the host, and counts what it sends and holds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks.competitors import open_graph
from benchmarks.measuring import in_a_process, spec_of
from benchmarks.registry import Results, Table, benchmark
from benchmarks.worker import FOLDER
from harness.base.errors import UserError
from harness.base.formatting import GB
from harness.claims.arguments import StrategyOnGrid
from harness.claims.evidence import Evidence
from harness.claims.formulas.replays import divide_layer_elements
from harness.kernels.csr import row_indices
from harness.ledger import Op, TensorName
from harness.prediction.epoch import compute_peak_bytes, replay_ranks
from harness.runtime.open_run import open_run
from harness.spec.root import find_root
from harness.strategy import Ready

INSTALL = (
    "CAGNET is not shown: clone github.com/PASSIONLab/CAGNET, and name the folder, AUTHORS_CAGNET=FOLDER."
)
WIDTH, VERTICES, EDGES = 24, 1152, 6000
"""All layers of the program's model are equally wide, and the parts of the graph equally large, for words per layer."""
HIDDEN = 16
DENSE = (TensorName.H, TensorName.T, TensorName.G, TensorName.S)
PORT = "1234"
"""The port that the scripts set."""
SUMS = (Op.ALL_REDUCE, Op.REDUCE_SCATTER)


class Scheme(NamedTuple):
    """A script of CAGNET, and the same scheme here."""

    script: str
    strategy: str
    grid: str
    copies: int = 1
    """The paper's c, of 1.5D."""
    unit: str = "n f"
    share: float = 1.0
    """The unit, as a share of n f."""

    @property
    def ours(self) -> StrategyOnGrid:
        """The same scheme here."""
        return StrategyOnGrid(self.strategy, self.grid)

    def make_options(self, hidden: int) -> list[str]:
        """Return the command-line options of an epoch."""
        options = {"graphname": "Cora", "accperrank": 1, "epochs": 1, "midlayer": hidden, "timing": False}
        if self.script != "gcn_distr_3d":
            options |= {"runcount": 1, "normalization": True, "activations": True, "accuracy": False}
        if self.script == "gcn_distr_15d":
            options["replication"] = self.copies
        return [word for name, value in options.items() for word in (f"--{name}", str(value))]


SCHEMES = (
    Scheme("gcn_distr", "cagnet-1d", "4"),
    Scheme("gcn_distr", "cagnet-1d", "16"),
    Scheme("gcn_distr_15d", "cagnet-1.5d", "4x2", 2, "n f / c", 1 / 2),
    Scheme("gcn_distr_15d", "cagnet-1.5d", "4x4", 4, "n f / c", 1 / 4),
    Scheme("gcn_distr_2d", "cagnet-2d", "2x2", 1, "n f / sqrt(P)", 1 / 2),
    Scheme("gcn_distr_2d", "cagnet-2d", "4x4", 1, "n f / sqrt(P)", 1 / 4),
    Scheme("gcn_distr_3d", "cagnet-3d", "2x2x2", 1, "n f / P^(2/3)", 1 / 4),
)
HELD = (
    ("cagnet-amazon", 256, Scheme("gcn_distr", "cagnet-1d", "4"), "did not run (CAG-052)"),
    ("cagnet-amazon", 256, Scheme("gcn_distr", "cagnet-1d", "16"), "ran"),
    ("cagnet-amazon", 256, Scheme("gcn_distr_15d", "cagnet-1.5d", "4x4", 4), "out of memory (CAG-070)"),
    ("cagnet-protein", 1024, Scheme("gcn_distr", "cagnet-1d", "4"), "did not run (CAG-053)"),
    ("cagnet-protein", 1024, Scheme("gcn_distr", "cagnet-1d", "16"), "did not run (CAG-053)"),
    ("cagnet-protein", 1024, Scheme("gcn_distr", "cagnet-1d", "36"), "ran"),
    (
        "cagnet-protein",
        1024,
        Scheme("gcn_distr_15d", "cagnet-1.5d", "9x4", 4),
        "out of memory (CAG-071)",
    ),
)
"""Graphs, the divisors of their twins, schemes, and what the paper says."""


@benchmark
def words() -> Results:
    """Count what a layer of CAGNET's own program sends, per rank, in the paper's units, and what ours sends.

    The model has two layers of equal widths; the counts of a rank are divided by two, except the gathers of its
    log-softmax, which only the last layer has. Sums are payloads. `others` are transposes, and gathers of the gradient
    of W. Of the ranks, the one that sends most counts.
    """
    if not (checkout := find_checkout()):
        yield INSTALL
        return
    evidence = Evidence(find_root())
    yield Table(
        *("scheme", "ranks", "unit", "its broadcasts:.3f", "its sums:.3f", "its others:.3f"),
        *("of log-softmax:.3f", "its blocks of A", "our broadcasts:.3f", "our sums:.3f"),
        title=f"{VERTICES:,} vertices, layers of width {WIDTH}",
    )
    for scheme in SCHEMES:
        with TemporaryDirectory() as folder:
            write_random_graph(Path(folder))
            ranks = run_program(checkout, scheme, Path(folder), WIDTH)
        unit = VERTICES * WIDTH * scheme.share

        def layer(*kinds: str, ranks: Sequence[Any] = ranks, unit: float = unit, layers: int = 2) -> float:
            """Return the elements of the given kinds that a layer sends, in units."""
            most = max(
                sum(count for key, count in rank["elements"].items() if find_kind(key) in kinds)
                / rank["epochs"]
                for rank in ranks
            )
            return float(most / layers / unit)

        def ours(op: Op, scheme: Scheme = scheme) -> float:
            return divide_layer_elements(
                evidence, scheme.ours, "nf", times=scheme.share, op=op, tensors=DENSE
            )

        yield (
            *(scheme.strategy, scheme.ours.ranks, scheme.unit, layer("broadcast"), layer("sum")),
            *(layer("other"), layer("softmax", layers=1), "broadcast" if layer("A") else ""),
            *(ours(Op.BROADCAST), sum(map(ours, SUMS))),
        )


@benchmark
def memory() -> Results:
    """Measure what a rank of CAGNET's own program holds on its GPU, where the paper ran out of memory, and ours.

    Peaks of an epoch of its program on a twin of the graph, in a random order, times the scale of the twin: all that it
    holds grows with the vertices and the nonzeros, except the weights. Ours are from a replay on the same twin. A V100
    of the paper has 16 GB.
    """
    if not (checkout := find_checkout()):
        yield INSTALL
        return
    yield Table("graph", "ranks", "c", "the paper", "its GB:.1f", "our GB:.1f")
    for graph, divisor, scheme, outcome in HELD:
        dataset = {"name": f"{graph}@1/{divisor}", "permutation": "single"}
        with TemporaryDirectory() as folder:
            write_graph(Path(folder), dataset)
            ranks = run_program(checkout, scheme, Path(folder), HIDDEN)
        its = max(rank["peak"] for rank in ranks) * divisor / GB
        ours = in_a_process(find_peak, dataset, scheme) * divisor / GB
        yield graph, scheme.ours.ranks, scheme.copies, outcome, its, ours


# The program.


def find_checkout() -> Path | None:
    """Return the checkout of CAGNET."""
    return Path(named).resolve() if (named := os.environ.get("AUTHORS_CAGNET")) else None


def find_kind(key: str) -> str:
    """Return what a count is: a broadcast of dense blocks, a sum, a gather of log-softmax, a block of A, or other."""
    function, op, tensor = key.split()
    if tensor == "A":
        return "other" if function == "run" else "A"
    if function.startswith("dist_log_softmax"):
        return "softmax"
    if function in ("train", "run", "outer_product2", "transpose", "backward"):
        return "other"
    return {"broadcast": "broadcast", "all_reduce": "sum"}.get(op, "other")


def run_program(checkout: Path, scheme: Scheme, folder: Path, hidden: int) -> list[dict[str, Any]]:
    """Run a script for one epoch; return the counts of each rank."""
    worker, script = FOLDER / "cagnet_worker.py", checkout / f"{scheme.script}.py"
    command = [sys.executable, str(worker), str(folder), str(script), *scheme.make_options(hidden)]
    world = scheme.ours.ranks
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT}
    ranks = []
    for rank in range(world):
        with (folder / f"log-{rank}.txt").open("w") as log:
            environment = {**os.environ, **place, "RANK": str(rank)}
            ranks.append(
                subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        for rank, process in enumerate(ranks):
            if code := process.wait():
                text = (folder / f"log-{rank}.txt").read_text()
                raise UserError(f"{scheme.script} ended with code {code} on rank {rank}:\n{text[-2000:]}")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


# Graphs.


def write_random_graph(folder: Path) -> None:
    """Write a random graph whose features, hidden layers and classes are equally many."""
    generator = np.random.default_rng(0)
    ends = generator.integers(0, VERTICES, (2, EDGES))
    y = generator.integers(0, WIDTH, VERTICES)
    y[0] = WIDTH - 1
    write_arrays(folder, ends, generator.random((VERTICES, WIDTH), np.float32), y)


def write_graph(folder: Path, dataset: dict[str, Any]) -> None:
    """Write a graph of the catalog in a random order, with random features and labels."""
    spec = spec_of({"strategy": "serial", "dataset": dataset["name"], "ranks": 1})
    blocks, A = open_graph(spec)
    generator = np.random.default_rng(0)
    order = generator.permutation(blocks.n)
    ends = order[np.stack([row_indices(A).numpy(), A.col.numpy()])]
    y = generator.integers(0, blocks.classes, blocks.n)
    y[0] = blocks.classes - 1
    write_arrays(folder, ends, generator.random((blocks.n, blocks.features), np.float32), y)


def write_arrays(folder: Path, ends: Any, X: Any, y: Any) -> None:
    """Write a graph without loops, with both directions of each edge, for the worker. All vertices are for training."""
    both = np.concatenate([ends, ends[::-1]], axis=1)
    both = np.unique(both[:, both[0] != both[1]], axis=1)
    everyone = np.ones(len(X), bool)
    masks = dict.fromkeys(("train", "val", "test"), everyone)
    np.savez(folder / "graph.npz", allow_pickle=False, edges=both, X=X, y=y, **masks)


def find_peak(dataset: dict[str, Any], scheme: Scheme) -> int:
    """Return the peak bytes of a rank of ours in an epoch."""
    spec = spec_of(
        {
            "strategy": scheme.strategy,
            "dataset": dataset,
            "grid": scheme.grid,
            "model": {"kind": "gcn", "layers": 2, "hidden": HIDDEN, "order": "aggregate_first"},
        }
    )
    ready = Ready(*open_run(find_root(), spec))
    return compute_peak_bytes(replay_ranks(ready, [0]))
