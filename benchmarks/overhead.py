"""The time that the harness itself takes: its ledger, its replays, and its commands on a large study."""

import resource
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from timeit import repeat
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch.autograd.function import FunctionCtx

from benchmarks.measuring import alternate, in_a_process
from benchmarks.registry import Results, Table, benchmark
from harness.ledger import AxisName, Ledger, Op, Phase, TensorName, apply
from harness.prediction.replay import replay as replay_rank
from harness.registry import load_strategy
from harness.report.figures.palette import BUILT_IN
from harness.results.parquet import read_collected
from harness.results.record import write_record
from harness.spec.root import find_root
from harness.spec.spec import Spec
from harness.strategy import Facts

# The ledger.

CALLS, ROUNDS = 500, 100  # an epoch of five layers writes a few hundred entries


class Pass(torch.autograd.Function):
    """y = x: nothing but the cost of autograd."""

    @staticmethod
    def forward(_: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: FunctionCtx, dy: torch.Tensor) -> torch.Tensor:
        return dy


@benchmark
def ledger() -> Results:
    """Measure the cost of recording: microseconds of an entry in the ledger, with recording on and off.

    An entry is what an operator or a collective writes: a scope entered and left, and a count where words moved. Each
    number is the best of several rounds, because the question is the cost and not the load of the machine.
    """
    on, off = Ledger(), Ledger(recording=False)
    yield Table("entry", "on, us:.2f", "off, us:.2f")
    for (name, entry), silent in zip(make_entries(on).items(), make_entries(off).values(), strict=True):
        yield name, time_entry(on, entry), time_entry(off, silent)


def time_entry(ledger: Ledger, entry: Callable[[], object]) -> float:
    """Return the microseconds of one entry, with its share of what the end of an epoch takes."""

    def epoch() -> None:
        ledger.start()
        for _ in range(CALLS):
            entry()
        ledger.stop()

    def do_nothing() -> None: ...

    def empty() -> None:
        for _ in range(CALLS):
            do_nothing()

    with_entries, without = (min(repeat(what, number=1, repeat=ROUNDS)) for what in (epoch, empty))
    return 1e6 * (with_entries - without) / CALLS


def make_entries(ledger: Ledger) -> dict[str, Callable[[], object]]:
    """Return functions that write one entry each."""
    x = torch.ones(1, requires_grad=True)

    def phase() -> None:
        with ledger.phase(Phase.CONVOLVE, layer=1):
            pass

    def op() -> None:
        with ledger.op(Op.SPMM, tensor=TensorName.T):
            pass

    def collective() -> None:
        with ledger.op(Op.BROADCAST, axis=AxisName.P, tensor=TensorName.H):
            ledger.count_call(payload=1.0, received=1.0, bytes=4)

    return {
        "a phase": phase,
        "an op": op,
        "an op that counts words": collective,
        "a recorded function, forward and backward": lambda: apply(ledger, Pass, x).backward(),
    }


# A replay.

PRODUCTS = Facts(2_449_029, 126_167_053, 100, 47, False, 2_449_029, 196_615, exact=False)


@benchmark
def replay(ranks: tuple[int, ...] = (1, 64, 512, 2048, 4096), rounds: int = 4) -> Results:
    """Time the replay of one rank of a large world, on a graph of the size of ogbn-products.

    Args:
        ranks: sizes of worlds
    """
    yield Table("strategy", "ranks", "median s:.3f", "best s:.3f", "events:,")
    for world in ranks:
        asked = {
            "strategy": "cagnet-1d",
            "dataset": "products",
            "ranks": world,
            "grid": {"p": world},
            "model": {"hidden": 128, "layers": 3, "order": "aggregate_first"},
            "machine": {"name": "any"},
        }
        strategy = load_strategy("cagnet-1d")(Spec.model_validate(asked), PRODUCTS)
        events = len(replay_rank(strategy).events)
        seconds = alternate({"replay": partial(replay_rank, strategy)}, rounds, warm=0)["replay"]
        yield "cagnet-1d", world, median(seconds), min(seconds), events


# A large study.

GRAPHS = ("isolate-3-8m", "ogbn-products", "products-14m", "reddit")
RANKS = (1, 2, 4, 8)
FAILED = 50
"""One of so many runs has no memory."""
NEW = 10
"""Runs that are added before tables are collected again."""


@benchmark
def studies(
    drawn: int = 2000, collected: int = 10_000, planned: int = 5000, keep: Path | None = None
) -> Results:
    """Time planning, collecting, drawing and reporting for a large study, whose records are synthetic.

    Each line is a command of `harness` in a separate process. CPU seconds are of the command and its children: they
    say what a busy machine's wall time hides. The peak of memory is that of the command's largest process. `rows` are
    those of the ledger, `MB` is the file that the command wrote.

    Args:
        drawn: runs that are drawn and reported; 2000 have 617,304 rows
        collected: runs that are collected
        planned: runs that are planned
        keep: folder in which records, tables, figures and report are left
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        experiment, plan = folder / "large.yaml", folder / "plan.json"
        experiment.write_text(yaml.safe_dump(make_experiment(planned)))
        measured = ("wall (s):.1f", "CPU (s):.1f", "peak (MB):.0f")
        yield Table("command", "runs:,", *measured, "target (s)", "what came out")
        seconds = time_harness("plan", "--experiment", experiment, "--out", plan)
        yield "plan --experiment", planned, *seconds, None, show_size(plan)
        seconds, jobs = time_dry_run(folder / "project", experiment)
        yield "snakemake --dry-run", planned, *seconds, 15, f"{jobs:,} jobs"
        yield from time_tables(folder / "drawn", drawn)
        yield from time_collecting(folder / "many", collected)


def time_tables(folder: Path, runs: int) -> Results:
    """Collect, draw and report some runs."""
    write_runs(folder / "runs", runs)
    seconds = time_harness("collect", "--runs", folder / "runs", "--out", folder)
    yield "collect", runs, *seconds, 10, f"{len(read_collected(folder, 'ledger')):,} rows"
    figures, report = folder / "figures", folder / "report.html"
    seconds = time_harness("figures", "--tables", folder, "--out", figures)
    yield "figures", runs, *seconds, 60, f"{len(list(figures.iterdir()))} files"
    seconds = time_harness("report", "--tables", folder, "--out", report)
    yield "report", runs, *seconds, 15, show_size(report)
    seconds = time_harness("compare", folder, folder)
    yield "compare", runs, *seconds, 10, "the tables with themselves"


def time_collecting(folder: Path, runs: int) -> Results:
    """Collect many runs, again without a change, and again with a few more."""
    write_runs(folder / "runs", runs)
    for number, what in ((0, "collect"), (0, "collect, unchanged"), (NEW, f"collect, {NEW} new")):
        write_runs(folder / "runs", runs + number, runs)
        seconds = time_harness("collect", "--runs", folder / "runs", "--out", folder)
        yield what, runs + number, *seconds, 60, show_size(folder / "ledger.parquet")


def time_dry_run(folder: Path, experiment: Path) -> tuple[tuple[float, ...], int]:
    """Time a first dry run for Perlmutter in a new project, with its plans and files of jobs; count its jobs."""
    root = find_root()
    for name in ("workflow", "workflows", "datasets/catalog", "config/machines"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(root / name)
    words = ["--profile", "workflows/profiles/slurm", "--dry-run", "--quiet", "--config"]
    config = [f"experiment={experiment}", "machine=perlmutter"]
    command = [sys.executable, "-m", "snakemake", *words, *config]
    return in_a_process(time_command, command, folder), len(list(folder.glob("results/batches/*")))


def time_harness(*words: object) -> tuple[float, ...]:
    """Time a command of the harness in a process that counts it alone."""
    return in_a_process(time_command, [sys.executable, "-m", "harness", *map(str, words)], find_root())


def time_command(command: list[str], folder: Path) -> tuple[float, ...]:
    """Return wall seconds, CPU seconds, and the MB of the largest process of a command."""
    begun = perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, used = perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def show_size(file: Path) -> str:
    """Return the size of a file in MB."""
    return f"{file.stat().st_size / 1e6:.1f} MB"


def make_experiment(runs: int) -> dict[str, Any]:
    """Return an experiment with many launches of strategies that take any number of ranks."""
    strategies = ["cagnet-1d", "cagnet-sa-1d", "bns-gcn", "pipegcn", "graphsage"]
    launches = -(-runs // (len(strategies) * len(RANKS)))
    every = {"strategy": strategies, "ranks": list(RANKS), "launch": list(range(launches))}
    return {
        "name": "large",
        "description": "Many runs.",
        "runs": [{**every, "dataset": "tiny-sbm", "model": {"kind": "gcn", "layers": 2, "hidden": 16}}],
    }


def write_runs(folder: Path, stop: int, start: int = 0) -> None:
    """Write the runs of a study from `start` to `stop`: strategies on graphs and numbers of ranks, in launches.

    Runs of one strategy and number of ranks share the rows of their tables with every fifth launch.
    """
    synthetic = SimpleNamespace(**runpy.run_path(str(find_root() / "tests" / "synthetic_runs.py")))
    made: dict[tuple[str, int, int], tuple[Any, Any]] = {}
    wanted = (
        (launch, graph, ranks, name)
        for launch in range(stop)
        for graph in GRAPHS
        for ranks in RANKS
        for name in BUILT_IN
        if name != "serial" or ranks == 1
    )
    for number, (launch, graph, ranks, name) in enumerate(islice(wanted, start, stop), start):
        spec = synthetic.make_spec(name, graph, {"p": ranks}, launch=launch)
        if number % FAILED == FAILED - 1:
            synthetic.write_failed(folder, spec, "oom", "MemoryError", "out of memory")
            continue
        kind = name, ranks, launch % 5
        if kind not in made:
            seconds = (1 + 0.02 * (launch % 5)) * (1 + len(name) / 10)
            tables = synthetic.make_tables(spec, seconds / ranks, 0.1)
            made[kind] = tables, synthetic.make_record(spec, tables)
        tables, record = made[kind]
        record = {**record, "run_id": spec.run_id, "label": spec.label}
        write_record(folder, spec.model_dump(mode="json"), record, tables)
