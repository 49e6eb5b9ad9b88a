"""A build takes the memory that it may, not what the graph would like: of a graph in two orders, whole nowhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, threading
from pathlib import Path
from harness.graph.cards.dataset_card import DatasetCard
from harness.spec.dataset import DatasetChoice
from harness.graph.builders.resources import BuildResources
from harness.graph.store.contents import open_contents
from harness.graph.builders.writer import StorePlan, write_store

def build(name, edges, memory):
    source = {"kind": "twin", "nature": "power", "n": 300_000, "edges": edges, "directed": True}
    drawn = {"features": {"kind": "uniform", "width": 32}, "labels": {"kind": "degree"}, "split": {"kind": "all"}}
    card = DatasetCard.model_validate({"name": "g", "source": source, "directed": True, "classes": 4, **drawn})
    choice = DatasetChoice(name="g", permutation="double")
    resources = BuildResources(memory, 2)
    write_store(
        StorePlan(open_contents(card, Path()), Path(sys.argv[1], name), choice, resources=resources, side=4)
    )

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def watch():
    while not done.wait(0.002):
        peaks.append(anonymous())

build("small", 300_000, 1 << 22)  # compiles, and fills the allocator's pools
before, peaks, done = anonymous(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
build("large", 6_000_000, int(sys.argv[2]))
done.set()
watcher.join()
print(max(peaks) - before)
"""


def peak(folder: Path, memory: int) -> int:
    """Bytes that no file stands behind, at most, above those of a process that has built a small graph."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(memory)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [m << 20 for m in (16, 64, 128)])
def test_the_peak_is_the_budget_and_little_more(tmp_path: Path, memory: int) -> None:
    """Unbounded, this graph takes 220 MiB: vectors of the vertices are 7 of them, and are whole whatever is allowed."""
    assert peak(tmp_path, memory) < 1.1 * memory + (20 << 20)
