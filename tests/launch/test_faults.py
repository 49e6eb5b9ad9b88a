"""However a run ends, it ends soon, on record, with its cause, and leaves nobody and nothing behind."""

import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.requests import make_spec
from harness.launch.fork_server import ForkServer
from harness.launch.launch import TimeLimits, launch
from harness.results.record import read_record
from harness.spec.spec import Spec, canonical_json
from tests.alive import alive

ROOT = Path(__file__).parents[2]
FAULTY = f"{Path(__file__).parent / 'faulty.py'}:Faulty"
LIMITS = TimeLimits(still=2.0)  # runs have more, and what they do in vain then is the same

WAYS: dict[str, tuple[str, str, str]] = {
    "raise": ("failed", "ZeroDivisionError", "on purpose"),
    "exit": ("failed", "Died", "exited with code 7"),
    "kill": ("failed", "Died", "killed by SIGKILL"),
    "segfault": ("failed", "Died", "killed by SIGSEGV"),
    "abort": ("failed", "Died", "killed by SIGABRT"),
    "memory": ("oom", "RuntimeError", "memory"),
    "hang": ("timeout", "Hang", "in hang"),
    "stop": ("timeout", "Hang", "was stopped by a signal"),
}
ROUND = [
    *((way, 2, 1, 2) for way in WAYS),
    *(
        (way, ranks, rank, call)
        for way, (ranks, rank), call in product(WAYS, [(2, 0), (2, 1), (3, 2), (1, 0)], [0, 1, 5])
        if (way, ranks) != ("stop", 1)
    ),
]


def spec(way: str, ranks: int, rank: int, call: int) -> Spec:
    params = {"way": way, "rank": rank, "call": call}
    request = {"strategy": {"name": FAULTY, "params": params}, "dataset": "tiny-sbm", "ranks": ranks}
    return make_spec(ROOT, {**request, "training": {"epochs": 3, "warmup": 1}}, "test")


def launched(asked: Spec, tmp_path: Path, fork_server: ForkServer) -> dict[str, Any]:
    """The error of the run, after a look at what it left behind."""
    runs = tmp_path / "runs"
    begun = time.monotonic()
    folder = launch(asked, ROOT, runs, lambda _: None, LIMITS, fork_server)
    assert time.monotonic() - begun < 60, "nobody waits for what does not come"
    assert alive(tmp_path) == [], "a rank outlived its run"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in runs.iterdir()] == [folder.name]
    record = read_record(folder).record
    return (
        {**record["error"], "status": record["status"]} if record["error"] else {"status": record["status"]}
    )


def check(way: str, ranks: int, rank: int, call: int, tmp_path: Path, fork_server: ForkServer) -> None:
    error = launched(spec(way, ranks, rank, call), tmp_path, fork_server)
    status, kind, message = WAYS[way]
    assert (error["status"], error["type"], error["rank"]) == (status, kind, rank), error
    assert message in error["message"]
    assert {"exit": "last words", "raise": "in fail", "hang": "Rank 0:"}.get(way, "") in error["trace"]


@pytest.mark.parametrize("way", ["raise", "kill", "hang"])
def test_the_cause_is_on_record(way: str, tmp_path: Path, fork_server: ForkServer) -> None:
    check(way, 2, 1, 2, tmp_path, fork_server)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "ranks", "rank", "call"), ROUND)
def test_the_cause_is_on_record_whoever_fails_and_when(
    way: str, ranks: int, rank: int, call: int, tmp_path: Path, fork_server: ForkServer
) -> None:
    check(way, ranks, rank, call, tmp_path, fork_server)


@pytest.mark.parametrize("way", ["raise", "kill", "write"])
def test_the_epochs_that_all_ranks_finished_are_on_record(
    way: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    """Epochs have two activations, so at number 4 the warm-up and one timed epoch are over.

    A rank that dies while it writes the record has finished all.
    """
    asked, rank = spec(way, 2, 0, 4 if way != "write" else 1), 0
    run = read_record(launch(asked, ROOT, tmp_path / "runs", lambda _: None, LIMITS, fork_server))
    assert (run.record["status"], run.record["error"]["rank"]) == ("failed", rank)
    finished = [-1, 0] if way != "write" else [-1, 0, 1, 2]
    assert sorted(set(run.table("epochs").epoch)) == finished
    assert set(run.table("ledger")["rank"]) == {0, 1}
    assert run.record["summary"]["epochs"] == len(finished) - 1
    assert run.record["summary"]["final_loss"] > 0


@pytest.mark.parametrize("way", ["hang", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_run_that_hangs_keeps_the_epochs_that_all_finished(
    way: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    """The fault is in the second timed epoch, after one that warms up."""
    assert launched(spec(way, 2, 1, 5), tmp_path, fork_server)["type"] == "Hang"
    (folder,) = (tmp_path / "runs").iterdir()
    epochs = read_record(folder).table("epochs")
    assert epochs.groupby("rank").epoch.apply(list).to_dict() == {0: [-1, 0], 1: [-1, 0]}


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_lost_link_ends_the_run(rank: int, tmp_path: Path, fork_server: ForkServer) -> None:
    error = launched(spec("link", 2, rank, 1), tmp_path, fork_server)
    assert error["status"] in ("failed", "timeout")
    assert error["type"] in ("RuntimeError", "DistBackendError", "Hang"), error


def test_a_writer_that_is_killed_leaves_a_whole_record_of_it(tmp_path: Path, fork_server: ForkServer) -> None:
    error = launched(spec("write", 2, 0, 1), tmp_path, fork_server)
    assert (error["status"], error["rank"]) == ("failed", 0)
    assert "SIGKILL" in error["message"]


def test_a_writer_that_waits_for_its_disk_is_left_in_peace(tmp_path: Path, fork_server: ForkServer) -> None:
    """It sleeps for longer than the patience, and the other rank has left."""
    assert launched(spec("linger", 2, 0, 1), tmp_path, fork_server) == {"status": "ok"}


@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, *(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGTERM, signal.SIGINT))],
)
def test_ranks_die_with_their_launcher_and_the_next_one_sweeps(
    how: signal.Signals, tmp_path: Path, fork_server: ForkServer
) -> None:
    path, runs = tmp_path / "spec.json", tmp_path / "results" / "runs"
    path.write_text(canonical_json(spec("hang", 2, 1, 0).model_dump(mode="json")))
    command = [sys.executable, "-m", "harness", "run", "--spec", str(path), "--out", str(runs)]
    launcher = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    wait_until(lambda: len(alive(runs.parent)) == 3)  # the launcher and its ranks
    launcher.send_signal(how)
    launcher.wait(timeout=30)
    wait_until(lambda: alive(runs.parent) == [])
    left = [path.name for path in runs.parent.iterdir() if path.name != "runs"]
    assert bool(left) == (how is signal.SIGKILL), "only who cannot clean up leaves something"
    assert not [path for path in runs.iterdir() if path.suffix != ".lock"], (
        "no record of a run that was given up"
    )

    asked = spec("raise", 2, 1, 0)
    folder = launch(asked, ROOT, runs, lambda _: None, LIMITS, fork_server)
    assert [path.name for path in runs.parent.iterdir()] == ["runs"]
    assert [path.name for path in runs.iterdir()] == [folder.name]


def wait_until(holds: Any, patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
