"""However a run fails, it ends soon, its cause is recorded, and no process or file is left behind."""

import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.requests import make_spec
from harness.results.record import read_record
from harness.runtime.launch.fork_server import ForkServer
from harness.runtime.launch.launch import launch
from harness.runtime.launch.time_limits import TimeLimits
from harness.spec.spec import Spec, canonical_json
from tests.processes import find_processes, wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
FAULTY = f"{Path(__file__).parent / 'faulty.py'}:Faulty"

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


def launched(
    asked: Spec, tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> dict[str, Any]:
    """Launch a run, check that it left nothing behind, and return its error."""
    runs = tmp_path / "runs"
    begun = time.monotonic()
    folder = launch(asked, ROOT, runs, lambda _: None, short_limits, fork_server)
    assert time.monotonic() - begun < 60, "the launcher waited for a rank that had failed"
    assert find_processes(tmp_path) == [], "a rank outlived its run"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in runs.iterdir()] == [folder.name]
    record = read_record(folder).record
    return (
        {**record["error"], "status": record["status"]} if record["error"] else {"status": record["status"]}
    )


def check(
    way: str,
    ranks: int,
    rank: int,
    call: int,
    tmp_path: Path,
    fork_server: ForkServer,
    short_limits: TimeLimits,
) -> None:
    error = launched(spec(way, ranks, rank, call), tmp_path, fork_server, short_limits)
    status, kind, message = WAYS[way]
    assert (error["status"], error["type"], error["rank"]) == (status, kind, rank), error
    assert message in error["message"]
    assert {"exit": "last words", "raise": "in fail", "hang": "Rank 0:"}.get(way, "") in error["trace"]


@pytest.mark.parametrize("way", ["raise", "kill", "hang"])
def test_cause_is_recorded(
    way: str, tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> None:
    check(way, 2, 1, 2, tmp_path, fork_server, short_limits)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "ranks", "rank", "call"), ROUND)
def test_cause_is_recorded_for_any_rank_and_time(
    way: str,
    ranks: int,
    rank: int,
    call: int,
    tmp_path: Path,
    fork_server: ForkServer,
    short_limits: TimeLimits,
) -> None:
    check(way, ranks, rank, call, tmp_path, fork_server, short_limits)


@pytest.mark.parametrize("way", ["raise", "kill", "write"])
def test_failed_run_records_the_epochs_that_all_ranks_finished(
    way: str, tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> None:
    """Epochs have two activations, so at number 4 the warm-up and one timed epoch are over.

    A rank that dies while it writes the record has finished all.
    """
    asked, rank = spec(way, 2, 0, 4 if way != "write" else 1), 0
    run = read_record(launch(asked, ROOT, tmp_path / "runs", lambda _: None, short_limits, fork_server))
    assert (run.record["status"], run.record["error"]["rank"]) == ("failed", rank)
    finished = [-1, 0] if way != "write" else [-1, 0, 1, 2]
    assert sorted(set(run.table("epochs").epoch)) == finished
    assert set(run.table("ledger").rank_id) == {0, 1}
    assert run.record["summary"]["epochs"] == len(finished) - 1
    assert run.record["summary"]["final_loss"] > 0


@pytest.mark.parametrize("way", ["hang", pytest.param("stop", marks=pytest.mark.slow)])
def test_hung_run_records_the_epochs_that_all_ranks_finished(
    way: str, tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> None:
    """The fault is in the second timed epoch, after one that warms up."""
    assert launched(spec(way, 2, 1, 5), tmp_path, fork_server, short_limits)["type"] == "Hang"
    (folder,) = (tmp_path / "runs").iterdir()
    epochs = read_record(folder).table("epochs")
    assert epochs.groupby("rank_id").epoch.apply(list).to_dict() == {0: [-1, 0], 1: [-1, 0]}


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_lost_link_ends_the_run(
    rank: int, tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> None:
    error = launched(spec("link", 2, rank, 1), tmp_path, fork_server, short_limits)
    assert error["status"] in ("failed", "timeout")
    assert error["type"] in ("RuntimeError", "DistBackendError", "Hang"), error


def test_killed_writer_is_recorded(tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits) -> None:
    error = launched(spec("write", 2, 0, 1), tmp_path, fork_server, short_limits)
    assert (error["status"], error["rank"]) == ("failed", 0)
    assert "SIGKILL" in error["message"]


def test_writer_that_waits_for_a_slow_disk_may_finish(
    tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> None:
    """The writer sleeps for longer than the patience, and the other rank has ended."""
    assert launched(spec("linger", 2, 0, 1), tmp_path, fork_server, short_limits) == {"status": "ok"}


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        signal.SIGHUP,
        *(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_ranks_die_with_their_launcher_and_the_next_launch_cleans_up(
    how: signal.Signals, tmp_path: Path, fork_server: ForkServer, short_limits: TimeLimits
) -> None:
    path, runs = tmp_path / "spec.json", tmp_path / "results" / "runs"
    path.write_text(canonical_json(spec("hang", 2, 1, 0).model_dump(mode="json")))
    command = [sys.executable, "-m", "harness", "run", "--spec", str(path), "--out", str(runs)]
    launcher = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    wait_until(lambda: len(find_processes(runs.parent)) == 3)  # the launcher and its ranks
    launcher.send_signal(how)
    launcher.wait(timeout=30)
    wait_until(lambda: find_processes(runs.parent) == [])
    left = [path.name for path in runs.parent.iterdir() if path.name != "runs"]
    assert bool(left) == (how is signal.SIGKILL), "only a killed launcher leaves its scratch folder"
    assert not [path for path in runs.iterdir() if path.suffix != ".lock"], (
        "an interrupted run is not recorded"
    )

    asked = spec("raise", 2, 1, 0)
    folder = launch(asked, ROOT, runs, lambda _: None, short_limits, fork_server)
    assert [path.name for path in runs.parent.iterdir()] == ["runs"]
    assert [path.name for path in runs.iterdir()] == [folder.name]
