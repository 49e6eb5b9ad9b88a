"""However many jobs share a build, and whatever happens to them, the store is the one that one builder makes."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base.errors import RunError, UserError
from harness.graph.builders.job import STEPS, BuildJob, parse_build_job
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.staging import StagingFolder
from harness.graph.cards.catalog import load_card
from harness.graph.store.building import build_store
from harness.graph.store.location import locate_store
from harness.graph.store.manifest import StoreFiles
from harness.spec.dataset import DatasetChoice
from tests.folder_contents import read_files

ROOT = Path(__file__).parents[2]
GRAPH = {"source": {"kind": "sbm", "n": 6000, "mean_degree": 12, "homophily": 0.7}}
CHOICES = {
    "directed, both orders": (True, DatasetChoice(name="graph", permutation="double", seed=1)),
    "undirected, two maps": (False, DatasetChoice(name="graph", permutation="double", seed=1)),
    "as it stands": (False, DatasetChoice(name="graph")),
    "in random parts": (False, DatasetChoice(name="graph", partition="random", parts=3)),
    "in parts of METIS": (True, DatasetChoice(name="graph", partition="metis", parts=4)),
}
LITTLE = BuildResources(memory=1 << 24, workers=2)


def shares(jobs):
    return [BuildJob(step, number, jobs) for step in STEPS for number in range(jobs)]


@pytest.fixture(params=CHOICES)
def choice(request, root, write_card):
    directed, choice = CHOICES[request.param]
    write_card(root, "graph", **GRAPH, directed=directed)
    return choice


BYTES: dict[str, dict[str, bytes]] = {}
"""The bytes of the store of every choice, by its card and order."""


@pytest.fixture
def undisturbed(root, choice, monkeypatch, tmp_path):
    """The bytes of the store, built by one, elsewhere; once for all tests."""
    key = f"{(root / 'datasets' / 'catalog' / 'graph.yaml').read_text()} {choice}"
    if key not in BYTES:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("HARNESS_DATASETS", str(tmp_path / "undisturbed"))
            BYTES[key] = read_files(build_store(root, choice))
    return BYTES[key]


@pytest.mark.parametrize("jobs", [*(pytest.param(jobs, marks=pytest.mark.slow) for jobs in (1, 2)), 7])
def test_the_bytes_do_not_depend_on_the_jobs(root, choice, undisturbed, jobs):
    given = shares(jobs)
    for step in STEPS:
        mine = [each for each in given if each.step == step]
        for each in reversed(mine):
            assert not build_store(root, choice, resources=LITTLE, job=each).exists()
    assert read_files(build_store(root, choice, resources=LITTLE)) == undisturbed
    assert [path.name for path in (root / "datasets" / "store").iterdir()] == [
        locate_store(root, load_card(root, "graph"), choice).name
    ]


@pytest.mark.parametrize("choice", ["directed, both orders"], indirect=True)
def test_jobs_do_what_an_ordinary_build_then_need_not(root, choice, undisturbed, monkeypatch):
    for each in shares(3):
        build_store(root, choice, resources=LITTLE, job=each)
    original, made = StagingFolder.save_attributes, []
    monkeypatch.setattr(
        StagingFolder,
        "save_attributes",
        lambda self, name, **told: made.append(name) or original(self, name, **told),
    )
    assert read_files(build_store(root, choice, resources=LITTLE)) == undisturbed
    told = {"adjacency-0", "adjacency-1"} | {
        f"{name}/{order}.npy" for name in ("labels", "split", "degrees") for order in (0, 1)
    }
    assert set(made) == told


@pytest.mark.parametrize("choice", ["in parts of METIS"], indirect=True)
def test_the_first_step_makes_the_order_for_all_others(root, choice, undisturbed, monkeypatch):
    build_store(root, choice, resources=LITTLE, job=BuildJob("order", 0, 2))
    monkeypatch.setattr(
        "harness.graph.partitions.of_dataset.load_pattern",
        lambda *_: pytest.fail("the graph was asked for again"),
    )
    for each in shares(2):
        build_store(root, choice, resources=LITTLE, job=each)
    assert read_files(build_store(root, choice, resources=LITTLE)) == undisturbed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_a_lost_share_is_made_good_by_the_ordinary_build(root, choice, undisturbed):
    build_store(root, choice, resources=LITTLE, job=BuildJob("scatter", 1, 3))
    assert read_files(build_store(root, choice, resources=LITTLE)) == undisturbed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_a_step_waits_for_all_jobs_of_the_one_before(root, choice):
    build_store(root, choice, resources=LITTLE, job=BuildJob("scatter", 0, 2))
    with pytest.raises(UserError, match=r"scatter .*--share scatter:0/1"):
        build_store(root, choice, resources=LITTLE, job=BuildJob("settle", 0, 2))
    build_store(root, choice, resources=LITTLE, job=BuildJob("scatter", 1, 2))
    build_store(root, choice, resources=LITTLE, job=BuildJob("settle", 0, 2))
    with pytest.raises(UserError, match=r"settle .*--share settle:0/1"):
        build_store(root, choice, resources=LITTLE, job=BuildJob("features", 0, 2))


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_share_of_a_finished_store_is_a_no_op(root, choice, undisturbed):
    folder = build_store(root, choice)
    for each in shares(2):
        assert build_store(root, choice, job=each) == folder
    assert read_files(folder) == undisturbed
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_a_store_that_others_finish_meanwhile_leaves_no_work_behind(root, choice, undisturbed, monkeypatch):
    """Somebody seals the store after a job has looked for it and before it begins."""
    from harness.graph.store import building as module

    original = module.write_job_share

    def overtaken(*given, **told):
        build_store(root, choice)
        original(*given, **told)

    monkeypatch.setattr(module, "write_job_share", overtaken)
    folder = build_store(root, choice, job=BuildJob("settle", 0, 1))
    assert read_files(folder) == undisturbed
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def start(root, choice, each=None):
    """Another process at it."""
    program = f"""
import sys
from pathlib import Path
from harness.spec.dataset import DatasetChoice
from harness.graph.builders.job import parse_build_job
from harness.graph.builders.resources import BuildResources
from harness.graph.store.building import build_store
job = parse_build_job(sys.argv[2]) if sys.argv[2] else None
resources = BuildResources(memory=1 << 24, workers=2)
build_store(Path(sys.argv[1]), DatasetChoice(**{choice.model_dump()!r}), resources=resources, job=job)
"""
    command = [sys.executable, "-c", program, str(root), str(each or "")]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True
    )


def ended(processes):
    for process in processes:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["directed, both orders"], indirect=True)
def test_jobs_at_once_and_one_builder_beside_them(root, choice, undisturbed):
    """Each share twice, and an ordinary build that comes too early."""
    ended([start(root, choice, BuildJob("scatter", number, 2)) for number in (0, 1, 1)])
    early = start(root, choice)
    late = [start(root, choice, BuildJob("settle", number, 2)) for number in (0, 1)]
    ended([early, *late])
    folder = build_store(root, choice, resources=LITTLE)
    assert read_files(folder) == undisturbed
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("choice", ["directed, both orders"], indirect=True)
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 15])
def test_killed_jobs_go_on_where_they_were(root, choice, undisturbed, rounds):
    rng, killed, work = random.Random(rounds), 0, root / "datasets" / "store"
    for each in shares(2):
        for _ in range(rounds if each.number == 0 else 0):
            lock = f".*.work/.{each.step}-0-2.lock"
            for old in work.glob(lock):
                old.unlink()
            process = start(root, choice, each)
            while process.poll() is None and not list(work.glob(lock)):
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.2))
            killed += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()
        build_store(root, choice, resources=LITTLE, job=each)
    folder = build_store(root, choice, resources=LITTLE)
    assert read_files(folder) == undisturbed
    StoreFiles(folder).verify()
    assert killed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_jobs_with_other_means_are_refused_while_others_are_at_it(root, choice, undisturbed, monkeypatch):
    from harness.graph.builders import writer

    def meanwhile(*_):
        with pytest.raises(RunError, match="a different --memory"):
            build_store(
                root, choice, resources=BuildResources(memory=64 << 20), job=BuildJob("scatter", 1, 2)
            )

    monkeypatch.setattr("harness.graph.builders.staging.JOIN_ATTEMPTS", 2)
    with monkeypatch.context() as once:
        once.setattr(writer, "_run_job", meanwhile)
        build_store(root, choice, resources=LITTLE, job=BuildJob("scatter", 0, 2))
    assert read_files(build_store(root, choice, resources=BuildResources(memory=64 << 20))) == undisturbed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_without_locks_a_share_is_refused_and_a_build_leaves_nothing_behind(
    root, choice, undisturbed, monkeypatch
):
    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(UserError, match=r"\w+ at /.* --share"):
        build_store(root, choice, resources=LITTLE, job=BuildJob("scatter", 0, 2))
    stores = root / "datasets" / "store"
    assert list(stores.iterdir()) == []
    assert read_files(build_store(root, choice, resources=LITTLE)) == undisturbed
    assert [path.name for path in stores.iterdir()] == [
        locate_store(root, load_card(root, "graph"), choice).name
    ]


@pytest.mark.parametrize(
    "text", ["scatter", "scatter:0", "scatter:2/2", "scatter:0/0", "finish:0/1", "settle:-1/2", ""]
)
def test_invalid_share_is_refused(text):
    with pytest.raises(UserError, match="STEP:NUMBER/JOBS"):
        parse_build_job(text)


def test_shares_are_everything_once():
    things = list(range(11))
    for jobs in (1, 3, 20):
        found = [
            thing
            for number in range(jobs)
            for thing in things[parse_build_job(f"settle:{number}/{jobs}").items]
        ]
        assert sorted(found) == things
