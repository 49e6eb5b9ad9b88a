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

from harness.errors import RunError, UserError
from harness.spec.dataset import DatasetChoice
from harness.store.build import build, store_folder
from harness.store.catalog import load_card
from harness.store.reader import Store
from harness.store.task import STEPS, BuildShare, Means, share
from harness.store.work import Work

ROOT = Path(__file__).parents[2]
GRAPH = {"source": {"kind": "sbm", "n": 6000, "mean_degree": 12, "homophily": 0.7}}
CHOICES = {
    "directed, both orders": (True, DatasetChoice(name="graph", permutation="double", seed=1)),
    "undirected, two maps": (False, DatasetChoice(name="graph", permutation="double", seed=1)),
    "as it stands": (False, DatasetChoice(name="graph")),
    "in random parts": (False, DatasetChoice(name="graph", partition="random", parts=3)),
    "in parts of METIS": (True, DatasetChoice(name="graph", partition="metis", parts=4)),
}
LITTLE = Means(memory=1 << 24, workers=2)


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shares(jobs):
    return [BuildShare(step, number, jobs) for step in STEPS for number in range(jobs)]


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
            BYTES[key] = content(build(root, choice))
    return BYTES[key]


@pytest.mark.parametrize("jobs", [*(pytest.param(jobs, marks=pytest.mark.slow) for jobs in (1, 2)), 7])
def test_the_bytes_do_not_depend_on_the_jobs(root, choice, undisturbed, jobs):
    given = shares(jobs)
    for step in STEPS:
        mine = [each for each in given if each.step == step]
        for each in reversed(mine):
            assert not build(root, choice, means=LITTLE, share=each).exists()
    assert content(build(root, choice, means=LITTLE)) == undisturbed
    assert [path.name for path in (root / "datasets" / "store").iterdir()] == [
        store_folder(root, load_card(root, "graph"), choice).name
    ]


@pytest.mark.parametrize("choice", ["directed, both orders"], indirect=True)
def test_jobs_do_what_an_ordinary_build_then_need_not(root, choice, undisturbed, monkeypatch):
    for each in shares(3):
        build(root, choice, means=LITTLE, share=each)
    original, made = Work.note, []
    monkeypatch.setattr(
        Work, "note", lambda self, name, **told: made.append(name) or original(self, name, **told)
    )
    assert content(build(root, choice, means=LITTLE)) == undisturbed
    told = {"adjacency-0", "adjacency-1"} | {
        f"{name}/{order}.npy" for name in ("labels", "split", "degrees") for order in (0, 1)
    }
    assert set(made) == told


@pytest.mark.parametrize("choice", ["in parts of METIS"], indirect=True)
def test_the_first_step_makes_the_order_for_all_others(root, choice, undisturbed, monkeypatch):
    build(root, choice, means=LITTLE, share=BuildShare("order", 0, 2))
    monkeypatch.setattr(
        "harness.store.build.compose", lambda *_: pytest.fail("the graph was asked for again")
    )
    for each in shares(2):
        build(root, choice, means=LITTLE, share=each)
    assert content(build(root, choice, means=LITTLE)) == undisturbed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_a_lost_share_is_made_good_by_the_ordinary_build(root, choice, undisturbed):
    build(root, choice, means=LITTLE, share=BuildShare("scatter", 1, 3))
    assert content(build(root, choice, means=LITTLE)) == undisturbed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_a_step_waits_for_all_jobs_of_the_one_before(root, choice):
    build(root, choice, means=LITTLE, share=BuildShare("scatter", 0, 2))
    with pytest.raises(UserError, match=r"not all jobs of the step scatter .* --share scatter:0/1"):
        build(root, choice, means=LITTLE, share=BuildShare("settle", 0, 2))
    build(root, choice, means=LITTLE, share=BuildShare("scatter", 1, 2))
    build(root, choice, means=LITTLE, share=BuildShare("settle", 0, 2))
    with pytest.raises(UserError, match="not all jobs of the step settle"):
        build(root, choice, means=LITTLE, share=BuildShare("features", 0, 2))


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_where_there_is_a_store_a_share_is_nothing_to_do(root, choice, undisturbed):
    folder = build(root, choice)
    for each in shares(2):
        assert build(root, choice, share=each) == folder
    assert content(folder) == undisturbed
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_a_store_that_others_finish_meanwhile_leaves_no_work_behind(root, choice, undisturbed, monkeypatch):
    """Somebody seals the store after a job has looked for it and before it begins."""
    from harness.store import build as module

    original = module.write_share

    def overtaken(*given, **told):
        build(root, choice)
        original(*given, **told)

    monkeypatch.setattr(module, "write_share", overtaken)
    folder = build(root, choice, share=BuildShare("settle", 0, 1))
    assert content(folder) == undisturbed
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def start(root, choice, each=None):
    """Another process at it."""
    program = f"""
import sys
from pathlib import Path
from harness.store.build import build
from harness.spec.dataset import DatasetChoice
from harness.store.task import share
from harness.store.task import Means
given = share(sys.argv[2]) if sys.argv[2] else None
build(Path(sys.argv[1]), DatasetChoice(**{choice.model_dump()!r}), means=Means(memory=1 << 24, workers=2), share=given)
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
    ended([start(root, choice, BuildShare("scatter", number, 2)) for number in (0, 1, 1)])
    early = start(root, choice)
    late = [start(root, choice, BuildShare("settle", number, 2)) for number in (0, 1)]
    ended([early, *late])
    folder = build(root, choice, means=LITTLE)
    assert content(folder) == undisturbed
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
        build(root, choice, means=LITTLE, share=each)
    folder = build(root, choice, means=LITTLE)
    assert content(folder) == undisturbed
    Store(folder).verify()
    assert killed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_jobs_with_other_means_are_refused_while_others_are_at_it(root, choice, undisturbed, monkeypatch):
    from harness.store import shard

    def meanwhile(*_):
        with pytest.raises(RunError, match="another --memory"):
            build(root, choice, means=Means(memory=64 << 20), share=BuildShare("scatter", 1, 2))

    monkeypatch.setattr("harness.store.work.TRIES", 2)
    with monkeypatch.context() as once:
        once.setattr(shard, "_do", meanwhile)
        build(root, choice, means=LITTLE, share=BuildShare("scatter", 0, 2))
    assert content(build(root, choice, means=Means(memory=64 << 20))) == undisturbed


@pytest.mark.parametrize("choice", ["as it stands"], indirect=True)
def test_without_locks_a_share_is_refused_and_a_build_leaves_nothing_behind(
    root, choice, undisturbed, monkeypatch
):
    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(UserError, match=r"without locks \(\w+ at /.*\), .* Build without --share"):
        build(root, choice, means=LITTLE, share=BuildShare("scatter", 0, 2))
    stores = root / "datasets" / "store"
    assert list(stores.iterdir()) == []
    assert content(build(root, choice, means=LITTLE)) == undisturbed
    assert [path.name for path in stores.iterdir()] == [
        store_folder(root, load_card(root, "graph"), choice).name
    ]


@pytest.mark.parametrize(
    "text", ["scatter", "scatter:0", "scatter:2/2", "scatter:0/0", "finish:0/1", "settle:-1/2", ""]
)
def test_what_is_no_share_is_refused(text):
    with pytest.raises(UserError, match="STEP:NUMBER/JOBS"):
        share(text)


def test_shares_are_everything_once():
    things = list(range(11))
    for jobs in (1, 3, 20):
        found = [thing for number in range(jobs) for thing in things[share(f"settle:{number}/{jobs}").part]]
        assert sorted(found) == things
