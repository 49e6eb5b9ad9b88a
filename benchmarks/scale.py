"""The largest graphs that train on the memory of this machine, and how well their memory is predicted."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from benchmarks.measuring import in_a_process, measure_growth, read_status, spec_of
from benchmarks.registry import Results, Table, benchmark
from harness.base.errors import RunError
from harness.base.formatting import GIB
from harness.base.host_memory import find_available_bytes
from harness.experiment.known_graph import facts_of_card
from harness.experiment.requests import make_spec
from harness.graph.cards.catalog import load_card
from harness.prediction.epoch import replay_ranks
from harness.registry import load_strategy
from harness.runtime.launch.worker_pool import Pool
from harness.spec.root import find_imported_folder, find_root
from harness.spec.spec import format_grid
from harness.strategy import Ready, admit

STRATEGIES, SCALES, RANKS = ("serial", "cagnet-1d", "plexus"), (20, 21, 22, 23, 24), 4
WIDTH, LAYERS, CLASSES = 64, 2, 16
RESERVE = GIB
"""Memory that a run leaves to the rest of the machine. It is ended when less is available."""
EVERY = 0.01
"""Seconds between two looks at the memory of the ranks."""
LIBRARIES = GIB // 4
"""Memory of a rank with its libraries, before it opens a graph."""
PREFIX = "scale-"
"""What the names of the graphs begin with. No dataset of the catalog has such a name."""
RETURNED = "returned"
ALLOCATORS = {
    "kept": {},
    "kept, without small caches": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"},
    RETURNED: {
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TOP_PAD_": "0",
    },
}
"""What the C library does with freed memory, and the settings that differ from the card's."""


@benchmark
def scale(
    scales: tuple[int, ...] = SCALES,
    strategies: tuple[str, ...] = STRATEGIES,
    ranks: int = RANKS,
    width: int = WIDTH,
    epochs: int = 2,
    folder: Path | None = None,
) -> Results:
    """Find the largest R-MAT graph whose full epoch fits the memory of this machine, by prediction, and train on it.

    A GCN of two layers, its features and hidden layer of the same width; `serial` has one rank, and all ranks of other
    strategies are on this machine. A graph fits if the predicted peaks of all ranks, with 0.25 GiB for the libraries of
    each, are at most the available memory less 1 GiB. Strategies train on the smallest graph with each setting of the
    allocator, and on the largest that fits with freed memory returned to the system. Peaks are of anonymous memory,
    because pages of mapped files can be dropped; a rank's growth excludes its libraries, and `at set-up` is its growth
    until the first epoch. A run ends when less than 1 GiB is available.

    Args:
        scales: the graphs have 2^SCALE vertices and 16 edges a vertex
        strategies: names of strategies
        width: of the features and of the hidden layer
        epochs: timed epochs
        folder: a disk with room (default: the folder of temporary files)
    """
    available = find_available_bytes() - RESERVE
    yield f"{available / GIB:.1f} GiB for all ranks"
    yield Table(
        *(
            "strategy",
            "grid",
            "graph",
            "nonzeros, expected:,",
            "a rank, GiB:.2f",
            "all ranks, GiB:.2f",
            "fits",
        )
    )
    with make_catalog(scales, width, folder):
        runs = []
        for name in strategies:
            for each in scales:
                run = GraphRun.predict(make_request(name, each, ranks, width))
                fits = run.needed <= available
                runs += [run] if fits else []
                shown = (max(run.peaks) / GIB, run.needed / GIB, "yes" if fits else "no")
                yield name, run.grid, run.graph, run.nonzeros, *shown
        yield Table(
            *("strategy", "graph", "freed memory", "a rank, GiB:.2f", "predicted:.2f", "ratio:.2f"),
            *("at set-up:.2f", "all ranks, GiB:.2f", "predicted:.2f", "ratio:.2f", "epoch s:.2f"),
        )
        for run, freed in choose_runs(runs):
            yield measure(run, freed, epochs)


def choose_runs(fitting: "Sequence[GraphRun]") -> "Iterator[tuple[GraphRun, str]]":
    """Yield the smallest graph of each strategy with every allocator, then the largest with memory returned."""
    by_strategy: dict[str, list[GraphRun]] = {}
    for run in fitting:
        by_strategy.setdefault(run.request["strategy"], []).append(run)
    for runs in by_strategy.values():
        yield from ((runs[0], freed) for freed in ALLOCATORS)
    yield from ((runs[-1], RETURNED) for runs in by_strategy.values() if len(runs) > 1)


class GraphRun(NamedTuple):
    """A strategy on a graph, and the memory that a replay on sizes from the graph's card predicts."""

    request: dict[str, Any]
    grid: str
    nonzeros: int
    peaks: list[int]
    """The peak of each rank, without its libraries."""

    @classmethod
    def predict(cls, request: dict[str, Any]) -> "GraphRun":
        """Predict the memory of a request."""
        return cls(request, *in_a_process(predict_peaks, request))

    @property
    def graph(self) -> str:
        return str(self.request["dataset"]).removeprefix(PREFIX)

    @property
    def needed(self) -> int:
        """The predicted memory of all ranks with their libraries."""
        return sum(self.peaks) + len(self.peaks) * LIBRARIES


@contextmanager
def make_catalog(scales: Sequence[int], width: int, folder: Path | None) -> Iterator[None]:
    """Keep datasets in a temporary folder, which has cards of R-MAT graphs."""
    with TemporaryDirectory(dir=folder) as place, set_environment({"HARNESS_DATASETS": place}):
        cards = find_imported_folder(find_root())
        cards.mkdir()
        for each in scales:
            (cards / f"{name_graph(each)}.yaml").write_text(yaml.safe_dump(describe_graph(each, width)))
        yield


@contextmanager
def set_environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})


def name_graph(scale: int) -> str:
    """Return the name of a graph."""
    return f"{PREFIX}rmat-{scale}"


def describe_graph(scale: int, width: int) -> dict[str, Any]:
    """Return the card of an R-MAT graph of 2^scale vertices."""
    return {
        "source": {"kind": "rmat", "scale": scale},
        "classes": CLASSES,
        "features": {"kind": "uniform", "width": width},
        "labels": {"kind": "uniform"},
        "split": {"kind": "all"},
    }


def make_request(strategy: str, scale: int, ranks: int, width: int) -> dict[str, Any]:
    """Return the request of a run."""
    return {
        "strategy": strategy,
        "dataset": name_graph(scale),
        "ranks": 1 if strategy == "serial" else ranks,
        "model": {"hidden": width, "layers": LAYERS},
        "machine": "local",
    }


def predict_peaks(request: dict[str, Any]) -> tuple[str, int, list[int]]:
    """Replay all ranks on sizes from the graph's card; return the grid, the nonzeros and the peak of each rank."""
    root = find_root()
    spec = make_spec(root, request, "benchmark")
    facts = facts_of_card(load_card(root, spec.dataset.name), root)
    strategy = admit(load_strategy(spec.strategy.name), spec, facts)
    epochs = replay_ranks(Ready(strategy), range(spec.ranks))
    return format_grid(strategy.grid), facts.nonzeros, [each.replayed.peak_bytes for each in epochs]


def measure(run: GraphRun, freed: str, epochs: int) -> tuple[object, ...]:
    """Build a graph and train on it; return a row."""
    spec = in_a_process(spec_of, run.request)
    name, predicted = run.request["strategy"], max(run.peaks)
    with set_environment(ALLOCATORS[freed]), Pool() as pool:
        watch = MemoryWatch(pool.run(spec.ranks, find_process))
        try:
            with watch:
                ranks = pool.run(spec.ranks, measure_growth, spec, epochs, patience=1800)[0]
        except RunError:
            if not watch.ended:
                raise
            return name, run.graph, freed, *[None] * 7, "less than 1 GiB was left"
    peak, needed = max(each.peak for each in ranks), sum(run.peaks) + sum(each.before for each in ranks)
    return (
        *(name, run.graph, freed, peak / GIB, predicted / GIB, predicted / peak),
        *(max(each.set_up for each in ranks) / GIB, watch.peak / GIB, needed / GIB, needed / watch.peak),
        max(each.seconds for each in ranks),
    )


def find_process() -> int:
    """Return the id of this rank's process."""
    return os.getpid()


@dataclass
class MemoryWatch:
    """Watches the memory of ranks in a thread, and kills them before the machine has none left."""

    processes: Sequence[int]
    peak: int = 0
    """The most anonymous memory that all ranks had at the same time."""
    ended: bool = False
    """True if the ranks were killed."""
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "MemoryWatch":
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not (self._done.wait(EVERY) or self.ended):
            self.peak = max(self.peak, sum(read_anonymous(each) for each in self.processes))
            if find_available_bytes() < RESERVE:
                self.ended = True
                for each in self.processes:
                    os.kill(each, signal.SIGKILL)


def read_anonymous(process: int) -> int:
    """Return the anonymous bytes of a process; 0 if it has ended."""
    try:
        return read_status("RssAnon", process)
    except (OSError, StopIteration):
        return 0
