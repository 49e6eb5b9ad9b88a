"""Compares `distdgl` with DistDGL itself, on emulated hosts. Needs root.

DGL_PYTHON names the Python of an environment that has DGL (`competitors.INSTALL_DGL`). On each host, DistDGL runs a
server and a trainer, and the harness one rank. Both train GraphSAGE from the same weights on the same parts, which
DistDGL's own partitioner makes, with the same targets, batches and fan-outs. In each launch, both start anew, one after
the other. Bytes are what arrives on the links of all hosts, with the headers of TCP.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from subprocess import STDOUT
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.authors import make_weight
from benchmarks.competitors import (
    INSTALL_DGL,
    drop_loops,
    matrix_arrays,
    open_graph,
    python_of_dgl,
    write,
)
from benchmarks.fairness import predict_on_these_cores
from benchmarks.launches import LAUNCHES, format_interval
from benchmarks.measuring import card_of_hosts, gather, in_a_process, set_up_trainer, spec_of
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from benchmarks.runner import measure_on_hosts, run_command_on_hosts
from benchmarks.worker import FOLDER, Worker
from benchmarks.workers.link import read_received
from harness.base.errors import UserError
from harness.graph.model import TEST, TRAIN
from harness.graph.partitions.file import FOLDER as PARTITIONS
from harness.ledger import Op, Phase, TensorName
from harness.prediction.epoch import replay_ranks
from harness.runtime.open_run import open_run
from harness.runtime.trainer import Trainer
from harness.spec.root import find_data_folder, find_root
from harness.spec.spec import Spec
from harness.strategy import Ready

WORKER = "distdgl_worker.py"
OURS, ITS = "ours", "DistDGL"
FANOUTS = {2: (25, 10), 3: (25, 15, 10), 4: (25, 20, 15, 10)}
"""The fan-outs of G3 by the number of layers, from the targets on."""
SUMS = ("bytes", "rows", "targets", "speed", "speed_with_pulling")
SHARES = ("sampling", "pulling", "training")
MEANS = ("loss", *SHARES)
"""How the amounts of ranks are combined. Of their seconds, the slowest rank's count."""


class Run(NamedTuple):
    """What both train."""

    fanouts: Sequence[int]
    batch: int
    epochs: int
    steps: int = 0
    """Of an epoch; 0 for all."""
    replace: bool = False
    """Whether a neighbour may be drawn more than once, as in the examples up to DGL 0.8; only DistDGL can."""


@benchmark
def epochs(
    dataset: str = "sbm-100k",
    hosts: tuple[int, ...] = (2, 4, 8, 16),
    rate: str = "200mbit",
    launches: int = LAUNCHES,
    batch: int = 1000,
    epochs: int = 4,
    samplers: int = 0,
) -> Results:
    """Compare epochs of two layers with fan-outs 25 and 10 on some numbers of hosts.

    Rows are inputs of mini-batches that other hosts have. Rows, bytes and seconds are per epoch, of all hosts and of
    the slowest one; the first epoch warms up. The loss is from the last epoch. The accuracy is measured after it, on
    the test vertices with all neighbours. Values are medians over launches, and ratios ours over its: below 1, ours is
    less. The prediction has the edges and the parts, and the constants of emulated hosts.

    Args:
        hosts: numbers of hosts
        rate: of each link
        samplers: processes of each trainer of DistDGL that sample ahead; 0 for none, as ours
    """
    if not python_of_dgl():
        yield INSTALL_DGL
        return
    run = Run(FANOUTS[2], batch, epochs)
    yield Table(
        *(
            "hosts",
            "our rows:,.0f",
            "its rows:,.0f",
            "our MB:.1f",
            "its MB:.1f",
            "our ms:,.0f",
            "its ms:,.0f",
        ),
        *("ratio:.2f", "interval", "predicted ms:,.0f", "our loss:.4f", "its loss:.4f"),
        *("our accuracy:.2%", "its accuracy:.2%"),
        title=f"{dataset}, batches of {batch} targets, links of {rate}",
    )
    for count in hosts:
        with prepare(dataset, count, samplers) as cluster:
            rows = cluster.measure([run], Hosts(count, rate), launches)
            seconds = in_a_process(predict_seconds, cluster.spec(run), Hosts(count, rate).mbits)
        ours, its = (summarise(rows, 0, program) for program in (OURS, ITS))
        yield (
            *(count, ours["rows"], its["rows"], ours["bytes"] / 1e6, its["bytes"] / 1e6),
            *(1e3 * ours["seconds"], 1e3 * its["seconds"], *ratio_of_seconds(rows, 0), 1e3 * seconds),
            *(ours["loss"], its["loss"], ours["accuracy"], its["accuracy"]),
        )


@benchmark
def depth(
    graphs: tuple[str, ...] = ("ogbn-products@1/16", "ogbn-papers100m@1/256"),
    hosts: int = 4,
    rate: str = "200mbit",
    launches: int = LAUNCHES,
    batch: int = 16,
    steps: int = 4,
) -> Results:
    """Compare mini-batches of two, three and four layers, with the fan-outs of G3.

    The batches are small, so that four layers do not reach the whole graph. Values are per step, medians over launches;
    `by card` are the rows that a prediction expects that knows the numbers of vertices and edges only. `speed` is what
    DistDGL's examples print, targets per second and trainer after the mini-batch has arrived, summed over trainers:
    without the features, as up to DGL 0.8, and with them, as since then. Then the growth from two to four layers.

    Args:
        hosts: number of hosts
        rate: of each link
        steps: steps of an epoch
    """
    if not python_of_dgl():
        yield INSTALL_DGL
        return
    runs = [Run(FANOUTS[layers], batch, 2, steps) for layers in FANOUTS]
    runs += [run._replace(replace=True) for run in runs]
    growths = list[tuple[object, ...]]()
    for name in graphs:
        yield Table(
            *(
                "layers",
                "drawn",
                "our rows:,.0f",
                "its rows:,.0f",
                "by card:,.0f",
                "our MB:.1f",
                "its MB:.1f",
            ),
            *("our ms:,.0f", "its ms:,.0f", "ratio:.2f", "interval"),
            *("sampling:.0%", "pulling:.0%", "training:.0%"),
            *("targets/s:,.0f", "speed:,.0f", "speed with pulling:,.0f"),
            title=f"{name}, {hosts} hosts, batches of {batch} targets, links of {rate}",
        )
        with prepare(name, hosts) as cluster:
            rows = cluster.measure(runs, Hosts(hosts, rate), launches)
            expected = [in_a_process(expect_rows, cluster.spec(run), steps) for run in runs]
        for number, run in enumerate(runs):
            ours, its = (summarise(rows, number, program) for program in (OURS, ITS))
            busy = sum(its[part] for part in SHARES)
            yield (
                *(len(run.fanouts), "again" if run.replace else "once"),
                *(ours["rows"] / steps, its["rows"] / steps, expected[number]),
                *(ours["bytes"] / 1e6 / steps, its["bytes"] / 1e6 / steps),
                *(
                    1e3 * ours["seconds"] / steps,
                    1e3 * its["seconds"] / steps,
                    *ratio_of_seconds(rows, number),
                ),
                *(its[part] / busy for part in SHARES),
                *(its["targets"] / its["seconds"], its["speed"], its["speed_with_pulling"]),
            )
        growths += list_growths(name, rows, runs, expected)
    yield Table("graph", "from two to four layers", "growth:.1f", "interval", title="Growth")
    yield from growths


def list_growths(
    name: str, rows: pd.DataFrame, runs: Sequence[Run], expected: Sequence[float]
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table of growths; intervals are over launches."""
    two, four, *again = (
        runs.index(runs[0]._replace(fanouts=FANOUTS[layers], replace=replace))
        for replace in (False, True)
        for layers in (2, 4)
    )
    yield name, "rows by card", expected[four] / expected[two], ""
    speeds = {"speed": "time by speed", "speed_with_pulling": "time by speed with pulling"}
    for program, drawn, first, last in (
        (OURS, "once", two, four),
        (ITS, "once", two, four),
        (ITS, "again", *again),
    ):
        for column in ("rows", "seconds", *(speeds if program == ITS else ())):
            wide = rows[rows.program == program].pivot(index="launch", columns="run", values=column)
            ratios = wide[first] / wide[last] if column in speeds else wide[last] / wide[first]
            what = f"{program}, drawn {drawn}: {speeds.get(column, column)}"
            yield name, what, float(ratios.median()), format_interval(ratios)


# Launches.


class Cluster(NamedTuple):
    """A graph in parts, and the folder for DistDGL."""

    folder: Path
    dataset: Mapping[str, Any]
    hosts: int
    samplers: int

    def spec(self, run: Run, seed: int = 0) -> Spec:
        """Return our spec of a run."""
        return spec_of(
            {
                "strategy": {"name": "distdgl", "params": {"fanouts": run.fanouts}},
                "dataset": dict(self.dataset),
                "ranks": self.hosts,
                "model": {"kind": "sage", "layers": len(run.fanouts), "hidden": 16},
                "training": {"batch": run.batch},
                "machine": "ethernet",
                "seed": seed,
            }
        )

    def measure(self, runs: Sequence[Run], hosts: Hosts, launches: int) -> pd.DataFrame:
        """Return a row for each launch, program and run: the median of epochs after the first, and the last loss."""
        frames = []
        for launch in range(launches):
            programs = [self.launch_ours, self.launch_distdgl]
            for program in programs[:: -1 if launch % 2 else 1]:
                frames.append(program(runs, hosts, launch).assign(launch=launch))
        return pd.concat(frames, ignore_index=True)

    def launch_ours(self, runs: Sequence[Run], hosts: Hosts, launch: int) -> pd.DataFrame:
        """Return a row for each run that we can train."""
        numbers = [number for number, run in enumerate(runs) if not run.replace]
        documents = [
            {
                "spec": self.spec(runs[number], launch).model_dump(mode="json"),
                "epochs": runs[number].epochs,
                "steps": runs[number].steps,
            }
            for number in numbers
        ]
        path = self.folder / "ours.json"
        path.write_text(json.dumps(documents))
        rows = measure_on_hosts("distdgl.ours", hosts, path)
        rows["run"] = [numbers[run] for run in rows.run]
        return combine_epochs(rows).assign(program=OURS)

    def launch_distdgl(self, runs: Sequence[Run], hosts: Hosts, launch: int) -> pd.DataFrame:
        """Return a row for each run."""
        documents = []
        for number, run in enumerate(runs):
            spec, weights = self.spec(run, launch), f"weights-{number}.npz"
            np.savez(self.folder / weights, allow_pickle=False, **weights_of(spec))
            documents.append(
                {
                    **run._asdict(),
                    "number": number,
                    "weights": weights,
                    "lr": spec.training.lr,
                    "seed": launch,
                }
            )
        (self.folder / "runs.json").write_text(json.dumps(documents))
        python = python_of_dgl()
        assert python
        command = [python, "-E", str(FOLDER / WORKER), str(self.folder), str(self.samplers)]
        with (self.folder / "log.txt").open("w") as log:
            code = run_command_on_hosts(hosts, command, stdout=log, stderr=STDOUT)
        if code:
            raise UserError(
                f"DistDGL ended with code {code}:\n{(self.folder / 'log.txt').read_text()[-2000:]}"
            )
        ranks = [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in range(hosts.count)]
        rows = pd.DataFrame([combine_ranks(each) for each in zip(*ranks, strict=True)])
        return combine_epochs(rows).assign(program=ITS)


@contextmanager
def prepare(name: str, hosts: int, samplers: int = 0) -> Iterator[Cluster]:
    """Split a graph by DistDGL's partitioner, for both."""
    root, python = find_root(), python_of_dgl()
    assert python
    file = f"distdgl-{re.sub(r'[^a-z0-9-]', '-', name)}-{hosts}"
    with TemporaryDirectory(prefix="distdgl-") as temporary:
        folder = Path(temporary)
        spec = spec_of({"strategy": {"name": "serial"}, "dataset": name, "ranks": 1})
        blocks, A = open_graph(spec)
        everyone = range(blocks.n)
        split = blocks.split(everyone)
        arrays = {
            **matrix_arrays(drop_loops(A)),
            "X": blocks.feature_block(everyone, range(blocks.features)),
            "y": blocks.labels(everyone),
            "train": split == TRAIN,
            "test": split == TEST,
        }
        Path(write(folder, arrays)).rename(folder / "graph.npz")
        with Worker(python, WORKER) as worker:
            parts = worker.ask("partition", folder=str(folder), parts=hosts)
        path = find_data_folder(root) / PARTITIONS / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(str, parts)) + "\n")
        yield Cluster(folder, {"name": name, "partition": f"file:{file}"}, hosts, samplers)


def weights_of(spec: Spec) -> dict[str, np.ndarray]:
    """Return the first weights of a run, by the names that DGL's worker reads."""
    strategy, _ = open_run(find_root(), spec)
    return {
        f"{weight.part}{weight.layer}": make_weight(spec, number, weight).numpy()
        for number, weight in enumerate(strategy.weights)
    }


@benchmark
def ours(runs: Path, hosts: Hosts = FOUR_HOSTS) -> Results:
    """Train runs of a file on emulated hosts; the amounts of each epoch, as the worker of DistDGL counts them.

    Args:
        runs: a JSON file with specs, and numbers of epochs and steps
    """
    columns = ("seconds", *SUMS, *MEANS, "accuracy")
    yield Table("run", "epoch", *columns, title=f"links of {hosts.rate}")
    for number, run in enumerate(json.loads(runs.read_text())):
        trainer, _ = set_up_trainer(Spec.model_validate(run["spec"]))
        trainer.steps = run["steps"] or trainer.steps
        world = trainer.ctx.grid.world
        for epoch in range(run["epochs"]):
            ranks = gather(world, train_epoch(trainer))
            accuracy = None
            if epoch + 1 == run["epochs"]:
                accuracy = trainer.evaluate()[0]["test"].ratio
            if ranks:
                combined = combine_ranks(ranks) | {"accuracy": accuracy}
                yield number, epoch, *(combined.get(column) for column in columns)
        trainer.ctx.grid.drain()


def train_epoch(trainer: Trainer) -> dict[str, float]:
    """Train an epoch; return what this rank did, in the words of DistDGL's worker."""
    world, remote = trainer.ctx.grid.world, trainer.ctx.measured.remote
    world.barrier()
    arrived, rows = read_received(), remote.rows
    epoch = trainer.epoch()
    rows = remote.rows - rows
    world.barrier()
    arrived = read_received() - arrived
    seconds = dict.fromkeys(Phase, 0.0)
    for key, amounts in epoch.entries.items():
        seconds[key.phase] += amounts.seconds
    return {
        "seconds": epoch.seconds,
        "bytes": arrived,
        "rows": rows,
        "loss": float(epoch.loss),
        "sampling": seconds[Phase.SAMPLE],
        "pulling": seconds[Phase.FETCH],
        "training": epoch.seconds - seconds[Phase.SAMPLE] - seconds[Phase.FETCH],
    }


def combine_ranks(ranks: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the amounts of one epoch of all ranks; only rank 0 knows the accuracy."""
    frame = pd.DataFrame(ranks)
    return {
        **ranks[0],
        "seconds": frame.seconds.max(),
        **{column: frame[column].sum() for column in SUMS if column in frame},
        **{column: frame[column].mean() for column in MEANS},
    }


def combine_epochs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run: medians of epochs after the first, which warms up, and the last loss and accuracy."""
    timed = rows[rows.epoch > 0].groupby("run").median(numeric_only=True)
    last = rows.groupby("run").last()
    return timed.assign(loss=last.loss, accuracy=last.accuracy).drop(columns="epoch").reset_index()


# Values.


def summarise(rows: pd.DataFrame, run: int, program: str) -> "pd.Series[float]":
    """Return the medians over the launches of a program."""
    return rows[(rows.run == run) & (rows.program == program)].median(numeric_only=True)


def ratio_of_seconds(rows: pd.DataFrame, run: int) -> tuple[float, str]:
    """Return our seconds over its, launch by launch: the median and its interval."""
    wide = rows[rows.run == run].pivot(index="launch", columns="program", values="seconds")
    if OURS not in wide:
        return nan, ""
    ratios = wide[OURS] / wide[ITS]
    return float(ratios.median()), format_interval(ratios)


def predict_seconds(spec: Spec, mbits: float) -> float:
    """Return the predicted epoch on the built graph, whose ranks share the cores of this machine."""
    ready = Ready(*open_run(find_root(), spec))
    return predict_on_these_cores(ready, card_of_hosts(mbits), range(spec.ranks)).seconds.value


def expect_rows(spec: Spec, steps: int) -> float:
    """Return the rows of a step of all ranks, by a replay that knows the facts of the graph only."""
    strategy, _ = open_run(find_root(), spec)
    received = sum(
        event.amounts.elements_received
        for epoch in replay_ranks(Ready(strategy), [0], steps)
        for event in epoch.replayed.events
        if event.key.tensor is TensorName.X and event.key.op is Op.ALL_TO_ALL
    )
    return received / strategy.facts.features / steps * spec.ranks
