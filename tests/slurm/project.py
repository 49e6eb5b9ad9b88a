"""A project root on a login node of the tests' cluster, and what can be asked of either."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests import processes
from tests.processes import Found
from tests.slurm.cluster import node as node_command

ROOT = Path(__file__).parents[2]
CARD = {
    "description": "logical nodes of this machine",
    "slurm": {
        "ranks_per_node": 2,
        "memory_mb": 2500,
        "partition": "ci",
        "interfaces": ["lo"],
        "minutes": 3,
        "shared_nodes": 2,
        "job_minutes": 40,
    },
}
QUICK = ["--profile", "slurm", "--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "5"]


def wait_until(condition: Callable[[], Found], seconds: float = 600) -> Found:
    """Wait like `tests.processes.wait_until`, but as long as a Slurm may take."""
    return processes.wait_until(condition, seconds)


@dataclass(frozen=True)
class Cluster:
    """Where Slurm's files are, and the process whose namespace shows them."""

    folder: Path
    holder: int

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.holder}/ns/mnt", "--wdns=/", *command]

    def call(self, *command: str, seconds: float = 300) -> str:
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.strip()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Kills the controller, as a crash does, and starts it again at the end. Jobs go on meanwhile."""
        os.kill(int((self.folder / "slurmctld.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            with (self.folder / "slurmctld.out").open("ab") as log:
                command = self.inside("sh", "-c", "cd / && setsid slurmctld -D &")
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
            wait_until(lambda: subprocess.run(self.inside("squeue"), capture_output=True).returncode == 0)

    def lose(self, node: str) -> None:
        """Ends all that runs on a node, as a loss of power does: the processes of its mount namespace."""
        place = _namespace(int((self.folder / f"slurmd.{node}.pid").read_text()))
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if _namespace(int(path.name)) == place:
                    os.kill(int(path.name), signal.SIGKILL)
        wait_until(lambda: "down" in self.call("sinfo", "-h", "-N", "-n", node, "-p", "wide", "-o", "%T"))

    def repair(self, node: str) -> None:
        """Starts a node that was lost. The end of the cluster ends it."""
        with (self.folder / "slurmd.out").open("ab") as log:
            command = self.inside("setsid", "--fork", *node_command(node))
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        state = ("sinfo", "-h", "-N", "-n", node, "-p", "wide", "-o", "%T")
        wait_until(lambda: not re.search(r"down|unk|\*", self.call(*state)))


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/mnt").readlink())


@dataclass(frozen=True)
class Project:
    """A project root with this checkout's rules, cards and profiles, and a card of the test's machine."""

    folder: Path
    cluster: Cluster
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """A command on a login node: without any variable of a job, in a home with nothing in it."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HARNESS_", "SLURM_"))}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shell = f'cd {self.folder} && exec "$@"'
        with (self.folder / "output").open("a") as output:
            process = subprocess.Popen(
                self.cluster.inside("sh", "-c", shell, "sh", *command),
                env={**kept, "HOME": str(home), "PATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def run(self, *command: str, code: int = 0, seconds: float = 1800) -> str:
        before = len(self.output())
        ended = self.start(*command).wait(timeout=seconds)
        assert ended == code, self.output()[before:]
        return self.output()[before:]

    def stop(self) -> None:
        """Ends what a test that failed has left at work: a Snakemake would submit jobs that are cancelled again."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def output(self) -> str:
        file = self.folder / "output"
        return file.read_text() if file.exists() else ""

    def experiment(self, *runs: dict[str, Any], **site: Any) -> list[str]:
        """Options of Snakemake for an experiment of these runs on the test's machine."""
        (self.folder / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "runs": list(runs)}))
        told = {"machine": "test-cluster", "account": "nobody", **site}
        (self.folder / "config" / "site.yaml").write_text(yaml.safe_dump(told))
        return ["--config", "experiment=mine.yaml"]

    def records(self) -> dict[str, dict[str, Any]]:
        found = self.folder.glob("results/runs/[!.]*/record.json")
        return {path.parent.name: json.loads(path.read_text()) for path in found}
