"""Benchmarks: their help, their commands in pages and docs, and each that is quick in a tiny setting."""

import csv
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from benchmarks import authors, pages, scale
from benchmarks.minibatches import epochs_in_turns
from benchmarks.pages import PAGES
from benchmarks.registry import COMMON_HELP, Benchmark, Column, Hosts, find_benchmark, list_benchmarks
from benchmarks.runner import main, parse_options
from harness.runtime.launch.worker_pool import Pool
from tests.python_path import with_python_path

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^    python -m benchmarks (.+)$|`python -m benchmarks\s([^`]+)`", re.MULTILINE)
NAME = re.compile(r"python -m benchmarks\s+([\w.-]+)")
TINY = {
    "launching.pool": "--ranks 1 2 --jobs 1",
    "launching.startup": "--ranks 1 --rounds 1",
    "launching.batch": "--runs 1 --ranks 1",
    "overhead.ledger": "",
    "overhead.replay": "--ranks 4 --rounds 1",
    "overhead.studies": "--drawn 20 --collected 20 --planned 20",
    "scale": "--scales 8 --strategies cagnet-1d --ranks 2 --epochs 1",
    "graphs.build-rmat": "--scale 8",
    "graphs.build-text": "--lines 4096",
    "graphs.build-twins": "ogbn-products 1/4096 1/2048 --width 2",
    "graphs.partition-memory": "metis 2 tiny-sbm",
    "graphs.partitions": "--graphs tiny-sbm --parts 2 --large",
    "twins.boundaries": "--graphs tiny-sbm --parts 2 4 --fitted 4 --seeds 1",
    "graphs.loading": "--dataset tiny-sbm --grid 1x1x2",
    "competitors.products": "--graphs 'R-MAT 2^14' --widths 16 --threads 1 --turns 1",
    "competitors.epochs": "--graphs tiny-sbm --models sage --turns 1",
    "competitors.mini-batches": "--graphs tiny-sbm --batch 16 --turns 1",
    "authors": "--graphs tiny-sbm --ranks 2 --turns 1",
    "cagnet.words": "",
    "cagnet.memory": "",
    "epoch.serial": "--dataset tiny-sbm --turns 1",
    "epoch.parallel": "--dataset tiny-sbm --turns 1",
    "epoch.kernels": "cagnet-1d --dataset tiny-sbm --turns 1",
    "epoch.calls": "cagnet-1d --dataset tiny-sbm --ranks 2 --turns 1",
    "epoch.recording": "--dataset tiny-sbm --turns 1",
    "blocks.kernels": "cagnet-1d@2 --dataset tiny-sbm --turns 1",
    "loops": "--scales 8",
    "sampling": "--scale 8 --bulk 1 2 --batch 16 --turns 1",
    "sampling.caches": "--graphs tiny-sbm --ranks 2 --batch 8",
    "minibatches": "--scale 8 --turns 3 --dataset sbm-4096",
    "collectives": "--ranks 2 --rounds 1",
    "collectives.queue": "--ranks 2 --mebibytes 1 --rounds 1",
    "accuracy.rounding": "--dataset tiny-sbm --epochs 3 --shown 1 2",
    "accuracy.staleness": "--dataset tiny-sbm --ranks 2 --seeds 1 --epochs 1 2",
    "plexus.predicted-grids": "--ranks 4",
    "plexus.local-products": "--dataset tiny-sbm",
    "prediction.products": "",
    "prediction.messages": "",
    "prediction.loopback": "--dataset tiny-sbm --ranks 2 --epochs 1 --only cagnet-1d g3",
    "prediction.memory": "--dataset tiny-sbm --ranks 2 --only cagnet-1d",
    "trust": "",
    "comparison.table": "",
    "held_out.draw": "",
    "received.by-strategy": "--dataset tiny-sbm --ranks 4 --scales",
    "received.redraw": "",
    "findings.model": "",
    "findings.edges": "",
    "findings.gain": "",
    "findings.redraw": "",
}
"""The smallest setting of each benchmark that takes seconds."""
QUICK = ("findings.gain", "held_out.draw", "prediction.products", "prediction.messages")
LONG = {
    "bench": "its sizes are part of what a landing compares",
    "spmm": "bench has its graphs, and its turns are counted in seconds",
    "plexus.measured-model": "needs a graph that takes minutes to build",
    "plexus.published-model": "writes a file that claims read; tests/claims compare it",
    "compose.search": "keeps its choices among the recorded results",
    "accuracy.loss-curves": "needs files that are downloaded",
    "accuracy.samplers": "needs files that are downloaded, and trains for many minutes",
    "mutants": "checks strategies for minutes; tests/test_mutants.py has its parts",
    "launching.rendezvous": "waits three seconds for its clients, and for a name server on some machines",
    "launching.commands": "runs the smoke workflow",
    "launching.file-calls": "traces interpreters for a minute",
    "findings.dimensions": "predicts for minutes",
    "findings.settings": "predicts for minutes",
    "findings.balance": "builds large graphs",
    "findings.swaps": "partitions large graphs",
    "comparison.predicted": "predicts for minutes",
    "comparison.measured": "starts emulated hosts",
    "compose.pairs": "starts emulated hosts",
    "compose.inexact": "starts emulated hosts",
    "network.pipelines": "starts emulated hosts",
    "shapes": "starts emulated hosts",
    "distdgl.epochs": "starts emulated hosts",
    "distdgl.depth": "starts emulated hosts",
    "network.slope": "starts emulated hosts",
}
TINY_ON_HOSTS = {
    "collectives.links": "",
    "network": "--dataset tiny-sbm --epochs 1 --only plexus",
    "prediction.links": "--dataset tiny-sbm --epochs 1 --only cagnet-1d",
}


def texts() -> dict[str, str]:
    """The files that name commands of the runner: pages, docs, the Makefile, CI and the workflow's tables."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile", *ROOT.glob(".ci/*")]
    files += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")]
    files += [*(ROOT / "workflows").rglob("*.csv"), *(ROOT / "workflows").rglob("*.yaml")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in files if path.is_file()}


def parse(words: str) -> Benchmark:
    """Parse a command; return its benchmark."""
    name, *options = shlex.split(words)
    found = find_benchmark(name)
    assert found, f"no benchmark {name}"
    parse_options(found, options)
    return found


def test_every_benchmark_and_option_has_help() -> None:
    for each in list_benchmarks():
        assert each.summary, each.name
        described = set(each.help) - set(COMMON_HELP)
        assert described <= set(each.parameters), f"{each.name} describes an option that does not exist"
        assert "Args:" not in each.parser().format_help(), each.name


def test_every_command_in_pages_and_docs_parses() -> None:
    count = 0
    for path, text in texts().items():
        for words in (line or quoted for line, quoted in COMMAND.findall(text)):
            count += 1
            if words.startswith("--record "):
                assert set(words.split()[1:]) <= set(PAGES), f"{path}: {words}"
            elif " " in words:
                parse(words)
        names = {name for name in NAME.findall(text) if not name.startswith("-") and name != "NAME"}
        assert not {name for name in names if not find_benchmark(name.rstrip("."))}, path
    assert count > 60


def test_every_command_of_a_page_parses_and_every_page_has_commands() -> None:
    for commands in PAGES.values():
        for command in commands:
            assert command.startswith("harness ") or parse(command)
    recorded = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    assert recorded <= set(PAGES) | {"gpu"}


def test_a_page_is_not_recorded_without_the_programs_that_it_compares_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record without them would replace the page with how to install them."""
    recorded: list[str] = []

    def record(page: Path, _: list[str]) -> int:
        recorded.append(page.stem)
        return 0

    monkeypatch.setattr(pages, "record_page", record)
    assert pages.PROGRAMS["authors"] == [authors.variable_of(name) for name in authors.RUNS]
    for variable in chain.from_iterable(pages.PROGRAMS.values()):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MKL_RT", "libmkl_rt.so")
    assert pages.record_pages(["slope", "competitors"]) == 2
    assert not recorded
    assert "DGL_PYTHON" in capsys.readouterr().err
    assert pages.record_pages([]) == 0
    assert recorded == [name for name in PAGES if {*pages.PROGRAMS.get(name, ())} <= {"MKL_RT"}]
    monkeypatch.setenv("DGL_PYTHON", "python")
    assert pages.record_pages(["competitors"]) == 0


def test_every_benchmark_has_a_tiny_setting_or_a_reason() -> None:
    names = {each.name for each in list_benchmarks() if not each.runs_on_hosts}
    assert names == set(TINY) | set(LONG)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in TINY]
)
def test_a_benchmark_in_a_tiny_setting_writes_what_it_prints(name: str, tmp_path: Path) -> None:
    printed = run(f"{name} {TINY[name]}", tmp_path)
    page = (tmp_path / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n") and "OMP_NUM_THREADS=1" in page
    assert page.endswith(printed)
    assert printed or list(tmp_path.glob("*.svg"))
    heads = [line for line in printed.splitlines() if set(line) <= set("| -") and line]
    tables = list(tmp_path.glob("*.csv"))
    assert len(tables) == len(heads)
    for table in tables:
        lengths = {len(row) for row in csv.reader(table.read_text().splitlines())}
        assert len(lengths) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2")
@pytest.mark.parametrize("name", TINY_ON_HOSTS)
def test_a_benchmark_on_emulated_hosts_writes_its_page(name: str, tmp_path: Path, only_testbed: None) -> None:
    printed = run(f"{name} {TINY_ON_HOSTS[name]}", tmp_path)
    assert printed and (tmp_path / f"{name}.md").read_text().endswith(printed)


def test_checks_of_gpus_and_the_runner_load_no_matplotlib() -> None:
    """A GPU machine need not have it."""
    program = "import sys, benchmarks.gpu_parts, benchmarks.runner; sys.exit('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=with_python_path(ROOT))
    assert done.returncode == 0


def run(words: str, out: Path) -> str:
    """Run a command; return what it prints."""
    command = [sys.executable, "-m", "benchmarks", *shlex.split(words), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=with_python_path(ROOT), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_unknown_names_are_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["launching.poool"])
    assert refused.value.code == 2
    assert "launching.pool" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("median ms:.1f", 1.25, "1.2"),
        ("saved:.0%", 0.715, "72%"),
        ("vertices:,", 1024, "1,024"),
        ("it ends: why", "cycle", "cycle"),
        ("f", 16, "16"),
        ("ratio:.2f", float("nan"), ""),
        ("ratio:.2f", "7 only", "7 only"),
        ("bound:.2f", None, ""),
    ],
)
def test_cells_have_the_format_of_their_column(text: str, value: object, shown: str) -> None:
    column = Column.parse(text)
    assert column.title and column.show(value) == shown


def test_options_become_parameters_of_their_types() -> None:
    found = find_benchmark("graphs.build-twins")
    assert found
    options = parse_options(found, ["rmat-17", "1/4", "1/2", "--memory", "2"])
    assert (options.name, options.scales, options.memory) == ("rmat-17", ["1/4", "1/2"], 2.0)
    with pytest.raises(SystemExit):
        parse_options(found, ["rmat-17", "--permutation", "triple"])


@pytest.mark.parametrize(("rate", "mbits"), [("200mbit", 200), ("10gbit", 10_000), ("500kbit", 0.5)])
def test_rates_are_read_in_mbits(rate: str, mbits: float) -> None:
    assert Hosts(4, rate).mbits == mbits


def test_ranks_that_take_turns_send_their_times_to_rank_0() -> None:
    """Times travel as objects of the benchmarks, which the tables of a run would refuse."""
    pair = [("distdgl", {"fanouts": [2, 2], "prefetch": prefetch}) for prefetch in (False, True)]
    with Pool() as pool:
        first, other = pool.run(
            2, epochs_in_turns, "sbm-4096", {"kind": "sage", "layers": 2, "hidden": 4}, pair, 2
        )
    assert other == []
    assert [len(turns.rounds) for turns in first] == [2, 2]
    assert all(len(ranks) == 2 and turns.median() > 0 for turns in first for ranks in turns.rounds)


def test_ranks_are_killed_before_the_machine_has_no_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "find_available_bytes", lambda: 0)
    with subprocess.Popen(["sleep", "100"]) as rank, scale.MemoryWatch([rank.pid]) as watch:
        assert rank.wait(50) == -signal.SIGKILL
    assert watch.ended


def test_the_watch_sees_the_memory_that_a_rank_takes() -> None:
    """The verifier is the size of the buffer that the rank fills."""
    size = 1 << 26
    fill = f"held = bytearray(b'1') * {size}; print(len(held), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", fill], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout and rank.stdout.readline().strip() == str(size)
        watch = scale.MemoryWatch([rank.pid])
        with watch:
            while not watch.peak:
                assert rank.poll() is None
        rank.communicate("\n")
    assert size <= watch.peak < 2 * size and not watch.ended


def test_the_smallest_graph_trains_with_every_allocator_and_the_largest_with_memory_returned() -> None:
    runs = [
        scale.GraphRun({"strategy": name, "dataset": f"scale-rmat-{size}"}, "p=1", size, [0])
        for name in ("serial", "plexus")
        for size in (8, 9, 10)
    ]
    chosen = [(run.request["strategy"], run.graph, freed) for run, freed in scale.choose_runs(runs)]
    for name in ("serial", "plexus"):
        own = [each[1:] for each in chosen if each[0] == name]
        assert own == [*(("rmat-8", freed) for freed in scale.ALLOCATORS), ("rmat-10", "returned")]
