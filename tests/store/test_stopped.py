"""A build that was stopped anywhere is gone on with, to the same bytes; memory and workers change none either."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.staging import StagingFolder
from harness.graph.store.building import build_store
from harness.graph.store.manifest import MANIFEST_FILE, StoreFiles
from harness.spec.dataset import DatasetChoice
from tests.folder_contents import read_files

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
GRAPH = {"source": {"kind": "sbm", "n": 6000, "mean_degree": 12, "homophily": 0.7}, "directed": True}
CHOICE = DatasetChoice(name="graph", permutation="double", seed=1)
LITTLE = BuildResources(memory=1 << 20, workers=3)


class Stopped(BaseException):
    """What no builder catches."""


BYTES: dict[str, bytes] = {}


@pytest.fixture
def undisturbed(root, write_card, monkeypatch, tmp_path):
    """The bytes of the store, built in one go, with much memory, elsewhere; once for all tests."""
    write_card(root, "graph", **GRAPH)
    if not BYTES:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("HARNESS_DATASETS", str(tmp_path / "undisturbed"))
            BYTES.update(read_files(build_store(root, CHOICE, resources=BuildResources(workers=1))))
    return BYTES


@pytest.mark.parametrize(
    "resources",
    [LITTLE, BuildResources(memory=1 << 14, workers=1), BuildResources(workers=5)],
    ids=["little", "least", "five workers"],
)
def test_memory_and_workers_change_no_byte(root, undisturbed, resources):
    assert read_files(build_store(root, CHOICE, resources=resources)) == undisturbed


def test_a_build_stopped_at_any_step_is_gone_on_with(root, undisturbed, monkeypatch):
    original, steps, made = StagingFolder.save_attributes, [0], []

    def save_attributes(self, name, **told):
        steps[0] -= 1
        if steps[0] == 0:
            raise Stopped
        made.append(name)
        original(self, name, **told)

    monkeypatch.setattr(StagingFolder, "save_attributes", save_attributes)
    rounds = 0
    while True:
        rounds += 1
        steps[0] = 7
        try:
            folder = build_store(root, CHOICE, resources=LITTLE)
            break
        except Stopped:
            continue
    assert rounds > 5
    assert read_files(folder) == undisturbed
    assert len(made) == len(set(made)), "what was whole was not made again"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_other_settings_begin_anew(root, undisturbed, monkeypatch):
    original, steps = StagingFolder.save_attributes, [30]

    def save_attributes(self, name, **told):
        steps[0] -= 1
        if steps[0] == 0:
            raise Stopped
        original(self, name, **told)

    monkeypatch.setattr(StagingFolder, "save_attributes", save_attributes)
    with pytest.raises(Stopped):
        build_store(root, CHOICE, side=3, resources=LITTLE)
    assert read_files(build_store(root, CHOICE, resources=LITTLE)) == undisturbed


def test_a_graph_that_is_refused_leaves_nothing(root, write_card):
    write_card(root, "graph", **GRAPH, expected={"nnz_adj": 1})
    with pytest.raises(UserError, match="expected 1"):
        build_store(root, CHOICE)
    assert list((root / "datasets" / "store").iterdir()) == []


def start_build(root):
    """Another process at it."""
    program = f"""
import sys
from pathlib import Path
from harness.spec.dataset import DatasetChoice
from harness.graph.builders.resources import BuildResources
from harness.graph.store.building import build_store
resources = BuildResources(memory=1 << 20, workers=2)
build_store(Path(sys.argv[1]), DatasetChoice(**{CHOICE.model_dump()!r}), resources=resources)
"""
    command = [sys.executable, "-c", program, str(root)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_a_build_killed_at_random_is_gone_on_with(root, undisturbed, rounds):
    work, rng, killed = root / "datasets" / "store", random.Random(rounds), 0
    for _ in range(rounds):
        process = start_build(root)
        while process.poll() is None and not list(work.glob(".*.work/settings.json")):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert killed
    folder = build_store(root, CHOICE, resources=BuildResources(memory=1 << 20, workers=2))
    assert read_files(folder) == undisturbed
    StoreFiles(folder).verify()
    assert (folder / MANIFEST_FILE).is_file()


def test_two_builders_make_one_store(root, undisturbed):
    others = [start_build(root) for _ in range(2)]
    folder = build_store(root, CHOICE)
    assert [other.wait() for other in others] == [0, 0]
    assert read_files(folder) == undisturbed
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
