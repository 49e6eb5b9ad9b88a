"""Whatever ends a process of the harness ends the processes that it started."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.children import die_with_parent, map_in_forks
from tests.processes import is_alive, wait_until
from tests.python_path import CHECKOUT, with_python_path

pytestmark = pytest.mark.long

ENDINGS = [signal.SIGTERM, signal.SIGKILL]
KILL_FIRST = [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]


def started(*words: str, **environment: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, *words],
        env=with_python_path(CHECKOUT, **environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def numbers(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_command_of_another_program_ends_with_the_harness(ending: signal.Signals, tmp_path: Path) -> None:
    """So do the processes that the command started; a SIGTERM leaves a record of the run as far as it came."""
    pids, runs = tmp_path / "pids", tmp_path / "runs"
    script = f"sleep 300 & echo $! $$ > {pids}.part; mv {pids}.part {pids}; sleep 301"
    words = ["external", "run", "--format", "bns-gcn", "--dataset", "tiny-sbm", "--out", str(runs)]
    words += ["--set", "ranks=2", "--set", "strategy.name=bns-gcn", "--", "sh", "-c", script]
    with started("-m", "harness", *words, HARNESS_RESULTS=str(tmp_path)) as harness:
        wait_until(lambda: len(numbers(pids)) == 2)
        harness.send_signal(ending)
        assert harness.wait(30) == (1 if ending is signal.SIGTERM else -ending)
    wait_until(lambda: not any(map(is_alive, numbers(pids))))
    records = [json.loads((folder / "record.json").read_text()) for folder in runs.glob("*")]
    ends = [(record["status"], record["error"]["message"].partition(".")[0]) for record in records]
    assert ends == ([("failed", "It was stopped by a SIGTERM")] if ending is signal.SIGTERM else [])


def test_processes_of_a_command_end_with_a_harness_that_is_killed_as_the_command_starts(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $! $$ > {pids}; kill -s KILL $PPID; sleep 301"
    words = [
        "external",
        "run",
        "--format",
        "bns-gcn",
        "--dataset",
        "tiny-sbm",
        "--out",
        str(tmp_path / "runs"),
    ]
    words += ["--set", "ranks=2", "--set", "strategy.name=bns-gcn", "--", "sh", "-c", script]
    with started("-m", "harness", *words, HARNESS_RESULTS=str(tmp_path)) as harness:
        assert harness.wait(60) == -signal.SIGKILL
    wait_until(lambda: not any(map(is_alive, numbers(pids))), 20)


FIGURES = """
import os, sys, time
from pathlib import Path
from harness.report.figures import drawing

def draw(kind, **_):
    Path(sys.argv[2], str(os.getpid())).touch()
    time.sleep(300)

drawing._draw_kind = draw
drawing.draw_all(drawing.FramedTables(Path(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("ending", KILL_FIRST)
def test_workers_that_draw_end_with_the_command(ending: signal.Signals, study: Path, tmp_path: Path) -> None:
    with started("-c", FIGURES, str(study / "tables"), str(tmp_path)) as harness:
        wait_until(lambda: any(tmp_path.iterdir()))
        harness.send_signal(ending)
        harness.wait(30)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    wait_until(lambda: not any(map(is_alive, workers)))


PARTITIONS = """
import os, sys, time
from pathlib import Path
from harness.graph.partitions.cache import _run_in_fork

def compute():
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(300)

_run_in_fork(compute)
"""


@pytest.mark.parametrize("ending", KILL_FIRST)
def test_processes_that_partition_end_with_the_command(ending: signal.Signals, tmp_path: Path) -> None:
    with started("-c", PARTITIONS, str(tmp_path)) as harness:
        wait_until(lambda: any(tmp_path.iterdir()))
        harness.send_signal(ending)
        harness.wait(30)
    (worker,) = (int(path.name) for path in tmp_path.iterdir())
    wait_until(lambda: not is_alive(worker))


def test_a_child_whose_parent_has_died_already_ends_at_once() -> None:
    child = os.fork()
    if not child:
        die_with_parent(1)()  # the parent is another process than this one's
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_forked_processes_map_in_order(count: int) -> None:
    results = list(map_in_forks(lambda number: (2 * number, os.getpid()), range(count)))
    assert [double for double, _ in results] == [2 * number for number in range(count)]
    is_alone = count == 1 or (count > 0 and len(os.sched_getaffinity(0)) == 1)
    assert (os.getpid() in {process for _, process in results}) == is_alone
    few = map_in_forks(lambda _: os.getpid(), range(count), least=101)
    assert {*few} <= {os.getpid()}


def test_error_in_a_forked_process_ends_the_others() -> None:
    def divide(number: int) -> float:
        return 1 / (number - 3)

    with pytest.raises(ZeroDivisionError):
        list(map_in_forks(divide, range(50)))
