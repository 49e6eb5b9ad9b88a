"""The tasks of one node: one import, a rank for every task, and an end that is the rank's own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.runtime.launch.node_task import LEADER_GONE, find_devices
from tests.launch.test_fork_server import QUICK, settings
from tests.processes import find_processes, wait_until
from tests.python_path import with_python_path

RANK = """
    import json, os, signal, sys, time
    from pathlib import Path

    def main():
        folder, rank = Path(sys.argv[1]), os.environ["SLURM_PROCID"]
        told = {
            "cores": sorted(os.sched_getaffinity(0)),
            "gpu": os.environ.get("ROCR_VISIBLE_DEVICES"),
            "parent": os.getppid(),
            "pid": os.getpid(),
            "started": float(os.environ.get("HARNESS_STARTED", "nan")),
        }
        (folder / f"{rank}.part").write_text(json.dumps(told))
        (folder / f"{rank}.part").rename(folder / f"{rank}.json")
        print(f"rank {rank} speaks", flush=True)
        while not (folder / "go").exists() and not (folder / f"go-{rank}").exists():
            time.sleep(0.01)
        end = folder / f"end-{rank}"
        code = int(end.read_text()) if end.exists() else 0
        if code < 0:
            os.kill(os.getpid(), -code)
        return code
"""
IMPORTS = (
    QUICK
    + """
    import pathlib
    if "fork_server" in " ".join(sys.orig_argv):
        with pathlib.Path("IMPORTS").open("a") as file:
            file.write("once ")
"""
)


class Node:
    """The tasks of one node, as a scheduler starts them: each with its own place, cores and device."""

    def __init__(self, folder: Path, ranks: int, **more: str) -> None:
        self.folder = folder
        cores = sorted(os.sched_getaffinity(0))
        shared = settings(folder, rank=RANK, sitecustomize=IMPORTS.replace("IMPORTS", f"{folder}/imports"))
        command = [sys.executable, "-m", "harness.runtime.launch.node_task", "rank", str(folder)]
        self.bound = [[cores[rank % len(cores)]] for rank in range(ranks)]
        self.tasks = []
        for rank in range(ranks):
            place = {"PROCID": rank, "NTASKS": ranks, "LOCALID": rank, "STEP_ID": 0, "NODEID": 3}
            environment = {
                **shared,
                **{f"SLURM_{name}": str(value) for name, value in place.items()},
                "HARNESS_BOARD": f"{folder.name}-{os.getpid()} here 1",
                "ROCR_VISIBLE_DEVICES": str(rank),
                **{name: value for name, value in more.items() if rank},
            }
            bind = ["taskset", "--cpu-list", str(self.bound[rank][0])]
            with (folder / f"{rank}.out").open("wb") as out:
                self.tasks.append(
                    subprocess.Popen([*bind, *command], env=environment, stdout=out, stderr=out)
                )

    def told(self) -> dict[int, dict[str, Any]]:
        """What each rank says of itself, once all have begun."""
        files = [self.folder / f"{rank}.json" for rank in range(len(self.tasks))]
        wait_until(lambda: all(file.exists() for file in files))
        return {rank: json.loads(file.read_text()) for rank, file in enumerate(files)}

    def go(self, rank: int | None = None, code: int = 0) -> None:
        if code:
            (self.folder / f"end-{rank}").write_text(str(code))
        (self.folder / ("go" if rank is None else f"go-{rank}")).touch()

    def codes(self) -> list[int]:
        return [task.wait(timeout=60) for task in self.tasks]

    def output(self, rank: int) -> str:
        return (self.folder / f"{rank}.out").read_text()

    def imports(self) -> int:
        return len((self.folder / "imports").read_text().split())


def test_a_node_imports_once_and_each_rank_has_the_place_of_its_task(tmp_path: Path) -> None:
    node = Node(tmp_path, 5)
    told = node.told()
    assert node.imports() == 1
    assert [told[rank]["cores"] for rank in told] == node.bound, "as the scheduler bound the task"
    assert [told[rank]["gpu"] for rank in told] == list("01234")
    assert {told[rank]["parent"] for rank in told} == {node.tasks[0].pid}
    assert all(told[rank]["started"] > 0 for rank in told)
    node.go()
    assert node.codes() == [0] * 5
    assert [node.output(rank) for rank in told] == [f"rank {rank} speaks\n" for rank in told], (
        "its own streams"
    )


@pytest.mark.parametrize("code", [7, -signal.SIGKILL, -signal.SIGSEGV])
def test_task_exits_as_its_rank_did_and_others_go_on(tmp_path: Path, code: int) -> None:
    node = Node(tmp_path, 3)
    node.told()
    node.go(2, code)
    assert node.tasks[2].wait(timeout=60) == code
    assert [task.poll() for task in node.tasks] == [None, None, code]
    node.go()
    assert node.codes() == [0, 0, code]


def test_the_first_task_waits_for_the_others_if_its_rank_ends_well(tmp_path: Path) -> None:
    node = Node(tmp_path, 3)
    told = node.told()
    node.go(0)
    wait_until(lambda: not Path(f"/proc/{told[0]['pid']}").exists())
    time.sleep(0.2)
    assert [task.poll() for task in node.tasks] == [None] * 3
    node.go()
    assert node.codes() == [0] * 3


def test_tasks_exit_when_the_first_rank_fails(tmp_path: Path) -> None:
    node = Node(tmp_path, 3)
    node.told()
    node.go(0, 5)
    assert node.codes() == [5, LEADER_GONE, LEADER_GONE]
    wait_until(lambda: not find_processes(tmp_path))


def test_a_rank_dies_with_its_task(tmp_path: Path) -> None:
    node = Node(tmp_path, 3)
    told = node.told()
    node.tasks[1].kill()
    wait_until(lambda: not Path(f"/proc/{told[1]['pid']}").exists())
    node.go()
    assert node.codes() == [0, -signal.SIGKILL, 0]


def test_ranks_end_with_the_process_that_made_their_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm kills that process, and knows of no other where it does not track processes by cgroups."""
    with subprocess.Popen(["sleep", "600"]) as podman:
        monkeypatch.setenv("SLURM_TASK_PID", str(podman.pid))
        node = Node(tmp_path, 2)
        node.told()
        assert [task.poll() for task in node.tasks] == [None, None]
        podman.kill()
    assert node.codes() == [LEADER_GONE, LEADER_GONE]
    wait_until(lambda: not find_processes(tmp_path))


def test_task_with_other_settings_runs_its_rank_itself(tmp_path: Path) -> None:
    """Libraries read such variables when they are imported."""
    node = Node(tmp_path, 2, OMP_PLACES="{3}")
    told = node.told()
    assert told[1]["pid"] == node.tasks[1].pid and told[1]["cores"] == node.bound[1]
    node.go()
    assert node.codes() == [0, 0]


def test_failed_import_on_a_node_is_reported(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such file')")
    environment = with_python_path(tmp_path, SLURM_PROCID="0", SLURM_NTASKS="2")
    environment |= {"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "HARNESS_BOARD": f"{tmp_path.name} here 1"}
    command = [sys.executable, "-m", "harness.runtime.launch.node_task", "rank"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "libcudart.so.12" in done.stderr


def test_find_devices_lists_those_that_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "dri/renderD128", "null"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia2").symlink_to(tmp_path / "gone")
    assert find_devices(tmp_path) == ["renderD128", "nvidia0", "nvidia1"]
