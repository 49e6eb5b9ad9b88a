"""Runs benchmarks: reads options, prints tables as their rows come, writes pages, CSV and figures.

    python -m benchmarks --list
    python -m benchmarks epoch.serial --dataset rmat-17
    python -m benchmarks network.links --hosts 4 --out build/links
    python -m benchmarks --record pool epoch        pages of benchmarks/results (default: all, about half an hour)

Let the machine do nothing else meanwhile. `--out DIR` writes NAME.md, with the machine, code and settings, a CSV file
for each table, and figures; without it figures go to figures/. Benchmarks on emulated hosts need root.
"""

import csv
import os
import shlex
import subprocess
import sys
from argparse import REMAINDER, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import pandas as pd

from benchmarks.environment import describe_environment
from benchmarks.registry import (
    Benchmark,
    Drawing,
    Hosts,
    Row,
    Table,
    find_benchmark,
    list_benchmarks,
)
from harness.base.errors import UserError
from harness.base.validation import unknown_name_error
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.launchers import read_place
from harness.spec.root import find_root

FIGURES = Path("figures")
TESTBED = Path(__file__).parent / "testbed"
Stream = IO[str] | int | None
"""Where a process writes, as `subprocess` takes it."""


def main(words: list[str]) -> int:
    """Run what the words ask for; return the exit code."""
    parser = ArgumentParser(
        "python -m benchmarks", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark to run")
    parser.add_argument("options", nargs=REMAINDER, metavar="...", help="its options; NAME --help lists them")
    parser.add_argument("--list", action="store_true", help="print the names of all benchmarks")
    parser.add_argument("--record", nargs="*", metavar="PAGE", help="write pages of benchmarks/results")
    asked = parser.parse_args(words)
    if asked.record is not None:
        from benchmarks.pages import record_pages

        return record_pages(asked.record)
    if asked.list:
        for each in list_benchmarks():
            print(f"{each.name:28}{each.summary}")
        return 0
    if asked.name is None:
        parser.error("name a benchmark; --list prints them")
    found = find_benchmark(asked.name)
    if found is None:
        parser.error(
            str(unknown_name_error("benchmark", asked.name, [each.name for each in list_benchmarks()]))
        )
    try:
        return run(found, asked.options)
    except UserError as refusal:
        print(f"{found.name}: {refusal}", file=sys.stderr)
        return 2


def run(found: Benchmark, words: list[str]) -> int:
    """Run a benchmark with options; on emulated hosts if it takes them and this is not yet one of them."""
    options = parse_options(found, words)
    if found.runs_on_hosts and "RANK" not in os.environ:
        return run_on_hosts(Hosts(options.hosts, options.rate), [found.name, *words])
    shown = int(os.environ.get("RANK", "0")) == 0
    page = Page(found.name, options.out) if shown else None
    with join_hosts() if found.runs_on_hosts else nullcontext():
        for result in found.start(options):
            if page:
                page.add(result)
    if page and options.out:
        page.write(shlex.join(["python", "-m", "benchmarks", found.name, *words]))
    return 0


def parse_options(found: Benchmark, words: list[str]) -> Namespace:
    """Return the options of a benchmark, `--out` among them."""
    parser = found.parser()
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for a page, tables as CSV, and figures"
    )
    return parser.parse_intermixed_args(words)


@contextmanager
def join_hosts() -> Iterator[None]:
    """Join the ranks that benchmarks/testbed started."""
    engine.join_world(Engine.GLOO, read_place(os.environ))
    yield
    engine.leave_world()


def run_on_hosts(hosts: Hosts, words: list[str], printed: int | None = None) -> int:
    """Run `python -m benchmarks` with some words on every emulated host; return the exit code."""
    return run_command_on_hosts(hosts, [sys.executable, "-m", "benchmarks", *words], printed)


def run_command_on_hosts(
    hosts: Hosts, command: Sequence[str], stdout: Stream = None, stderr: Stream = None
) -> int:
    """Run a command on every emulated host; return the exit code."""
    testbed, root = [sys.executable, str(TESTBED)], find_root()
    subprocess.run(
        [*testbed, "up", "--hosts", str(hosts.count), "--rate", hosts.rate],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        return subprocess.run(
            [*testbed, "run", "--", *command], cwd=root, stdout=stdout, stderr=stderr
        ).returncode
    finally:
        subprocess.run([*testbed, "down"], check=True, stdout=subprocess.DEVNULL)


def measure_on_hosts(name: str, hosts: Hosts, *options: object) -> pd.DataFrame:
    """Return the first table of a benchmark that runs on emulated hosts."""
    with TemporaryDirectory() as folder:
        words = [name, "--hosts", hosts.count, "--rate", hosts.rate, *options, "--out", folder]
        if code := run_on_hosts(hosts, [str(word) for word in words], subprocess.DEVNULL):
            sys.exit(code)
        return pd.read_csv(Path(folder) / f"{name}.csv", keep_default_na=False, na_values=[""])


class Page:
    """Prints results as they come, and keeps them for files."""

    def __init__(self, name: str, out: Path | None) -> None:
        self._name, self._out = name, out
        self._lines: list[str] = []
        self._tables: list[tuple[Table, list[Row]]] = []
        self._in_table = False

    def add(self, result: Table | Row | Drawing | str) -> None:
        """Show a result."""
        if isinstance(result, Drawing):
            from harness.report.figures.drawing import save_figure, style_context

            with style_context():
                paths = save_figure(
                    result.figure, self._out or FIGURES, result.name, result.dataset or self._name
                )
            print(*paths, sep="\n", file=sys.stderr)
        elif isinstance(result, Table):
            self._begin(result.title)
            titles = [column.title for column in result.columns]
            self._begin(_line(titles), _line(["---"] * len(titles)))
            self._tables.append((result, []))
            self._in_table = True
        elif isinstance(result, str):
            self._begin(result)
        else:
            assert self._in_table, "rows come after the head of their table"
            table, rows = self._tables[-1]
            rows.append(result)
            self._print(
                _line([column.show(cell) for column, cell in zip(table.columns, result, strict=True)])
            )

    def _begin(self, *paragraph: str) -> None:
        """Print a paragraph after an empty line."""
        self._in_table = False
        if any(paragraph):
            for line in ([""] if self._lines else []) + list(paragraph):
                self._print(line)

    def _print(self, line: str) -> None:
        self._lines.append(line)
        print(line, flush=True)

    def write(self, command: str) -> None:
        """Write the page, and a CSV file for each table, whose numbers are not rounded."""
        assert self._out
        self._out.mkdir(parents=True, exist_ok=True)
        text = [f"# {self._name}", "", describe_environment(), "", f"    {command}", "", *self._lines, ""]
        (self._out / f"{self._name}.md").write_text("\n".join(text))
        for number, (table, rows) in enumerate(self._tables, 1):
            name = self._name if number == 1 else f"{self._name}-{number}"
            with (self._out / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([[column.title for column in table.columns], *rows])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
