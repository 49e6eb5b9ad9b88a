"""The cause of a failed run is found among the errors and exit codes of its ranks, and separated from consequences."""

import os
import time
from pathlib import Path

import pytest
import torch

from harness.runtime import rank
from harness.runtime.fault import status_of_error, write_fault
from harness.runtime.launch import launch
from harness.runtime.launch.hang_detector import Hang
from harness.runtime.launch.processes import (
    LOG_BYTES_KEPT,
    Death,
    RunEnd,
    find_cause,
    is_infrastructure_failure,
)

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:47332")
NO_DEATHS = RunEnd()
WAITS = """Current thread 0x1 (most recent call first):
  File "/env/torch/distributed/distributed_c10d.py", line 3 in wait
"""
SLEEPS = """Current thread 0x1 (most recent call first):
  File "/mine/layer.py", line 7 in naps
"""


def test_earliest_fault_is_the_cause(tmp_path: Path) -> None:
    write_fault(tmp_path, 3, MemoryError("no room"))
    write_fault(tmp_path, 0, ZeroDivisionError("later"))
    cause = find_cause(NO_DEATHS, tmp_path, 4, memory_ran_out=False)
    assert (cause["rank"], cause["type"], cause["status"]) == (3, "MemoryError", "oom")


def test_lost_connection_is_the_cause_only_without_another_fault(tmp_path: Path) -> None:
    write_fault(tmp_path, 0, LOST)
    assert find_cause(NO_DEATHS, tmp_path, 3, memory_ran_out=False)["rank"] == 0
    died = RunEnd([Death(2, -9, time.time() + 1)])
    assert find_cause(died, tmp_path, 3, memory_ran_out=False)["rank"] == 2
    write_fault(tmp_path, 1, ZeroDivisionError("x"))
    assert find_cause(died, tmp_path, 3, memory_ran_out=False)["rank"] == 1


def test_rank_with_a_report_is_not_reported_as_dead(tmp_path: Path) -> None:
    write_fault(tmp_path, 1, ZeroDivisionError("x"))
    cause = find_cause(RunEnd([Death(1, 1, 0.0)]), tmp_path, 2, memory_ran_out=False)
    assert cause["type"] == "ZeroDivisionError"


@pytest.mark.parametrize(
    ("code", "ran_out", "status"), [(-9, True, "oom"), (-9, False, "failed"), (-11, True, "failed")]
)
def test_rank_killed_for_memory_is_recorded_as_oom(
    code: int, ran_out: bool, status: str, tmp_path: Path
) -> None:
    cause = find_cause(RunEnd([Death(0, code, 0.0)]), tmp_path, 1, memory_ran_out=ran_out)
    assert cause["status"] == status
    assert ("memory" in cause["message"]) == (status == "oom")


def test_scheduler_oom_is_the_cause_if_only_consequences_were_reported(tmp_path: Path) -> None:
    """The scheduler ended the step, and the other rank first reported a lost connection."""
    write_fault(tmp_path, 0, LOST)
    (tmp_path / "log").write_text("slurmstepd: error: StepId=2.0 exceeded memory limit (5 > 2), being killed")
    watched = RunEnd([Death(0, 1, 0.0)], out_of_memory=True)
    assert not is_infrastructure_failure(watched, tmp_path), "or the run would be tried again"
    cause = find_cause(watched, tmp_path, 2, memory_ran_out=True)
    assert (cause["type"], cause["status"], cause["rank"]) == ("Died", "oom", -1)
    assert "memory" in cause["message"] and "StepId=2.0" in cause["trace"]


NCCL_LOG = """an epoch is over
[rank1]:[E1124 11:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600071 milliseconds before \
timing out.
[rank1]:[E1124 11:00:00.2 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3(mesh_x) Rank 1] detected by watchdog at work: 5
"""


def test_nccl_timeout_names_the_call(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(NCCL_LOG)
    cause = find_cause(RunEnd([Death(1, -6, 0.0)]), tmp_path, 2, memory_ran_out=False)
    assert (cause["rank"], cause["type"], cause["status"]) == (1, "Hang", "timeout")
    assert all(fact in cause["message"] for fact in ("call 5", "mesh_x", "ALLREDUCE", "600 s"))
    assert status_of_error(RuntimeError(NCCL_LOG.splitlines()[1])) == "timeout"


@pytest.mark.parametrize(
    ("stacks", "stopped", "rank", "said"),
    [
        ([WAITS, SLEEPS, WAITS], (), 1, "naps (/mine/layer.py:7)"),
        ([WAITS, WAITS, WAITS], (), -1, "each other"),
        ([SLEEPS, SLEEPS, WAITS], (), -1, "ranks 0, 1"),
        ([WAITS, "", WAITS], (1,), 1, "signal"),
    ],
)
def test_hang_names_the_rank_that_does_not_wait(
    stacks: list[str], stopped: tuple[int, ...], rank: int, said: str, tmp_path: Path
) -> None:
    for number, stack in enumerate(stacks):
        (tmp_path / f"stacks-{number}").write_text(stack)
    cause = find_cause(RunEnd(hang=Hang(stopped)), tmp_path, 3, memory_ran_out=False)
    assert (cause["rank"], cause["status"]) == (rank, "timeout")
    assert said in cause["message"]
    assert all(stack in cause["trace"] for stack in stacks)


def test_end_without_reports_or_deaths_is_recorded_with_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("last words")
    cause = find_cause(NO_DEATHS, tmp_path, 1, memory_ran_out=False)
    assert (cause["rank"], cause["trace"]) == (-1, "last words")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "oom"),
        (TimeoutError("late"), "timeout"),
        (ZeroDivisionError("x"), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_error_determines_the_status(error: BaseException, status: str) -> None:
    assert status_of_error(error) == status


def test_lost_connections_and_machines_are_infrastructure_failures(tmp_path: Path) -> None:
    write_fault(tmp_path, 0, LOST)
    others = [Death(0, 1, 0.0)]
    assert is_infrastructure_failure(RunEnd(others), tmp_path)
    assert not is_infrastructure_failure(RunEnd([*others, Death(1, -9, 0.0)]), tmp_path), (
        "rank 1 died of itself"
    )
    assert is_infrastructure_failure(
        RunEnd([*others, Death(1, -9, 0.0)], lost="Node failure on n2"), tmp_path
    )
    assert not is_infrastructure_failure(RunEnd(expired=True), tmp_path)
    write_fault(tmp_path, 1, ZeroDivisionError("x"))
    assert not is_infrastructure_failure(RunEnd(others, lost="Node failure on n2"), tmp_path)


@pytest.mark.parametrize("others", [LOST, ZeroDivisionError("x")])
def test_rank_of_a_step_that_lost_another_exits_later(
    others: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler blames the first rank that exits, which must not be a rank that only lost another."""
    slept: list[float] = []

    def attempt(*_: object) -> int:
        write_fault(tmp_path, 1, LOST)
        write_fault(tmp_path, 0, others)
        return 1

    monkeypatch.setattr(rank, "run_and_report_faults", attempt)
    monkeypatch.setattr(rank, "dump_stacks_on_signal", lambda *_: None)
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setenv("RANK", "0")
    folders = ["--scratch", str(tmp_path), "--runs", str(tmp_path)]
    for words in ([], ["--stacks"]):
        monkeypatch.setattr("sys.argv", ["harness.runtime.rank", *folders, *words])
        assert rank.main() == 1
    assert slept == ([rank.CONSEQUENCE_DELAY] if others is LOST else [])


@pytest.mark.parametrize("rises", [0, 1, 2])
def test_any_counter_shows_a_kill_for_memory(
    rises: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control group's counter does not rise if the machine's memory ran out, and some counters do not exist."""
    files = [tmp_path / name for name in ("group", "old-group", "machine")]
    monkeypatch.setattr(launch, "OOM_COUNTERS", [tmp_path / "absent", *files])
    for file in files:
        file.write_text("oom 3\nunder_oom 0 of 2\noom_kill 4\n")
    before = launch._count_oom_kills()
    files[rises].write_text("oom 3\noom_kill 5\n")
    assert launch._count_oom_kills() > before


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    """The file is sparse; reading all of it would take 64 GiB."""
    with (tmp_path / "log").open("wb") as log:
        log.truncate(1 << 36)
        log.seek(0, os.SEEK_END)
        log.write(b"the last words")
    death = Death(0, 1, 0.0)
    fault = find_cause(RunEnd([death]), tmp_path, 1, memory_ran_out=False)
    assert fault["trace"].endswith("the last words")
    assert len(fault["trace"]) == LOG_BYTES_KEPT
