"""How long planning, collecting, drawing and reporting take for a large study. No rank runs: the records are synthetic.

    python benchmarks/studies.py                the sizes below
    python benchmarks/studies.py --keep DIR     leaves the records, tables, figures and report there

Each line is a command of `harness` in a process of its own. CPU seconds are of the command and its children: they say
what a busy machine's wall time hides. The peak of memory is measured for the largest process of the command. `rows` are
those of the ledger, `MB` is the file that the command wrote.
"""

import os
import resource
import runpy
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import yaml
from measuring import Table, argument_parser, in_a_process

from harness.figures.palette import BUILT_IN
from harness.results.parquet import read_collected
from harness.results.record import write_record
from harness.spec.root import find_root

GRAPHS = ("isolate-3-8m", "ogbn-products", "products-14m", "reddit")
RANKS = (1, 2, 4, 8)
FAILED = 50
"""One of so many runs has no memory."""
NEW = 10
"""Runs that are added before tables are collected again."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--drawn", type=int, default=2000, help="runs that are drawn and reported: 617,304 rows"
    )
    parser.add_argument("--collected", type=int, default=10_000, help="runs that are collected")
    parser.add_argument("--planned", type=int, default=5000, help="runs that are planned")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave everything in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure((options.keep or Path(folder)).resolve(), options)


def measure(folder: Path, options: Any) -> None:
    table = Table("command", "runs", "wall (s)", "CPU (s)", "peak (MB)", "target (s)", "what came out")
    experiment, plan = folder / "large.yaml", folder / "plan.json"
    folder.mkdir(parents=True, exist_ok=True)
    experiment.write_text(yaml.safe_dump(large(options.planned)))
    seconds = taken("plan", "--experiment", experiment, "--out", plan)
    table.row("plan --experiment", f"{options.planned:,}", *seconds, "", megabytes(plan))
    seconds, jobs = dry_run(folder / "project", experiment)
    table.row("snakemake --dry-run", f"{options.planned:,}", *seconds, "15", f"{jobs:,} jobs")

    drawn, many = folder / "drawn", folder / "many"
    write_runs(drawn / "runs", options.drawn)
    seconds = taken("collect", "--runs", drawn / "runs", "--out", drawn)
    rows = f"{len(read_collected(drawn, 'ledger')):,} rows"
    table.row("collect", f"{options.drawn:,}", *seconds, "10", rows)
    figures, report = drawn / "figures", drawn / "report.html"
    seconds = taken("figures", "--tables", drawn, "--out", figures)
    table.row("figures", f"{options.drawn:,}", *seconds, "60", f"{len(list(figures.iterdir()))} files")
    seconds = taken("report", "--tables", drawn, "--figures", figures, "--out", report)
    table.row("report", f"{options.drawn:,}", *seconds, "15", megabytes(report))

    write_runs(many / "runs", options.collected)
    for number, what in ((0, "collect"), (0, "collect, unchanged"), (NEW, f"collect, {NEW} new")):
        write_runs(many / "runs", options.collected + number, options.collected)
        seconds = taken("collect", "--runs", many / "runs", "--out", many)
        table.row(what, f"{options.collected + number:,}", *seconds, "60", megabytes(many / "ledger.parquet"))


def dry_run(folder: Path, experiment: Path) -> tuple[tuple[str, ...], int]:
    """A first dry run for Perlmutter in a new project, with all of its plans and files of jobs; and its jobs."""
    root = find_root()
    for name in ("workflow", "workflows", "datasets/catalog", "config/machines"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(root / name)
    words = ["--profile", "workflows/profiles/slurm", "--dry-run", "--quiet", "--config"]
    config = [f"experiment={experiment}", "machine=perlmutter"]
    seconds = timed([sys.executable, "-m", "snakemake", *words, *config], folder)
    return seconds, len(list(folder.glob("results/batches/*")))


def taken(*words: object) -> tuple[str, ...]:
    """Wall and CPU seconds and the peak of memory of a command of the harness."""
    return timed([sys.executable, "-m", "harness", *map(str, words)], find_root())


def timed(command: list[str], folder: Path) -> tuple[str, ...]:
    """Wall seconds, CPU seconds, and the MB of the largest process of a command; another process counts them."""
    return in_a_process(_timed, command, folder)


def _timed(command: list[str], folder: Path) -> tuple[str, ...]:
    begun = perf_counter()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, used = perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return f"{wall:.1f}", f"{used.ru_utime + used.ru_stime:.1f}", f"{used.ru_maxrss * 1024 / 1e6:.0f}"


def megabytes(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:.1f} MB"


def large(runs: int) -> dict[str, Any]:
    """An experiment of so many runs: strategies that take any number of ranks, in many launches."""
    strategies = ["cagnet-1d", "cagnet-sa-1d", "bns-gcn", "pipegcn", "graphsage"]
    launches = -(-runs // (len(strategies) * len(RANKS)))
    every = {"strategy": strategies, "ranks": list(RANKS), "launch": list(range(launches))}
    return {
        "name": "large",
        "description": "Many runs.",
        "runs": [{**every, "dataset": "tiny-sbm", "model": {"kind": "gcn", "layers": 2, "hidden": 16}}],
    }


def write_runs(folder: Path, upto: int, begin: int = 0) -> None:
    """The runs of a study from `begin` to `upto`: every strategy on every graph and number of ranks, in launches.

    Runs of one strategy and number of ranks share the rows of their tables.
    """
    synthetic = SimpleNamespace(**runpy.run_path(str(find_root() / "tests" / "synthetic_runs.py")))
    made: dict[tuple[str, int], tuple[Any, Any]] = {}
    wanted = (
        (launch, graph, ranks, name)
        for launch in range(upto)
        for graph in GRAPHS
        for ranks in RANKS
        for name in BUILT_IN
        if name != "serial" or ranks == 1
    )
    for number, (launch, graph, ranks, name) in enumerate(islice(wanted, begin, upto), begin):
        spec = synthetic.make_spec(name, graph, {"p": ranks}, launch=launch)
        if number % FAILED == FAILED - 1:
            synthetic.write_failed(folder, spec, "oom", "MemoryError", "out of memory")
            continue
        if (name, ranks) not in made:
            seconds = 1 + len(name) / 10
            tables = synthetic.make_tables(spec, seconds / ranks, 0.1)
            made[name, ranks] = tables, synthetic.make_record(spec, tables)
        tables, record = made[name, ranks]
        record = {**record, "run_id": spec.run_id, "label": spec.label}
        faster = 1 + 0.02 * (launch % 5)
        summary = {**record["summary"]}
        summary["epoch_seconds_median"] = faster * summary["epoch_seconds_median"]
        write_record(folder, spec.model_dump(mode="json"), {**record, "summary": summary}, tables)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
