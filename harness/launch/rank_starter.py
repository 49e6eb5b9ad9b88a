"""Starts ranks as processes of this machine, or as one step of the Slurm job in which this process runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.launch.fork_server import ForkServer, Waiting, tie
from harness.launch.processes import Death, Process, Watched
from harness.slurm.site import load_site, slurm_of
from harness.slurm.srun import in_allocation, srun_errors, step
from harness.spec.machine_card import Machine, Slurm, start_seconds

KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
"""The variables of Slurm that srun inherits. Everything else is on its command line."""
FOREIGN = ("SLURM_", "SRUN_", "SBATCH_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


class RankStarter(NamedTuple):
    """A program and the environments in which it is started, one process for each."""

    program: list[str]
    """The name of a module and its arguments."""
    environments: list[dict[str, str]]
    line: tuple[str, ...] = ()
    """The srun command, whose one process stands for all ranks. The line is empty where every process is a rank."""
    waiting: Waiting = Waiting()
    """The time limit of a start on this machine."""

    @property
    def here(self) -> bool:
        return not self.line

    @property
    def command(self) -> list[str]:
        return [*self.line, sys.executable, "-m", *self.program]

    @property
    def ending(self) -> signal.Signals:
        """The signal that ends the ranks. srun passes a SIGTERM on to its tasks; a killed srun would not."""
        return signal.SIGKILL if self.here else signal.SIGTERM

    def start(self, fork_server: ForkServer, log: Path, progress: Callable[[str], None]) -> Iterator[Process]:
        """Starts one process after the other, with its output in the log."""
        with log.open("ab") as file, Path(os.devnull).open() as nothing:
            if self.here:
                streams = nothing.fileno(), file.fileno(), file.fileno()
                waiting = self.waiting._replace(progress=progress)
                yield from fork_server.start(self.program, self.environments, streams, waiting)
                return
            yield subprocess.Popen(
                self.command,
                env=self.environments[0],
                stdin=nothing,
                stdout=file,
                stderr=file,
                preexec_fn=tie(os.getpid(), self.ending),  # noqa: PLW1509  the launcher has no threads of its own
            )

    def understand(self, watched: Watched, log: Path) -> Watched:
        """The end of a step's ranks, by the messages of srun."""
        if not watched.deaths:
            return watched
        words = log.read_text(errors="replace")
        errors = srun_errors(words)
        lost = errors.lost_node or not errors.deaths
        return watched._replace(
            deaths=[Death(rank, code, time.time()) for rank, code in errors.deaths],
            out_of_memory=errors.out_of_memory,
            lost=words.strip()[-500:] or "srun printed nothing" if lost else "",
        )


def rank_starter(machine: Machine, ranks: int, root: Path, program: list[str]) -> RankStarter:
    """The starter of ranks that run a program: srun in a job whose machine's card knows Slurm, else a fork server."""
    slurm = slurm_of(root, machine.name, load_site(root)) if in_allocation(os.environ) else None
    if slurm is None:
        environments = [environment(machine, ranks, root, number) for number in range(ranks)]
        return RankStarter(program, environments, waiting=waiting_on(root, machine.name))
    if slurm.interfaces:
        program = [
            *program,
            *("--per-node", str(slurm.ranks_per_node)),
            *("--interfaces", *slurm.interfaces),
        ]
    line = step(ranks, slurm)
    return RankStarter(program, [step_environment(machine, root, slurm, line)], tuple(line))


def waiting_on(root: Path, machine: str) -> Waiting:
    """The time limit of a start on a machine, by its card."""
    way_out = f"; on a slow file system, raise start_seconds in config/machines/{machine}.yaml"
    return Waiting(start_seconds(root, machine), way_out)


def environment(machine: Machine, ranks: int, root: Path, rank: int = 0) -> dict[str, str]:
    """The environment of a rank on this machine: its place in the world, and the settings of the machine card."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    # Ranks of one machine use its loopback, whatever the machine's name resolves to.
    link = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return {**os.environ, **link, **_settings(machine, root), **place}


def step_environment(machine: Machine, root: Path, slurm: Slurm, line: list[str]) -> dict[str, str]:
    """The environment that srun hands to every rank. srun adds the rank's place in the world."""
    inherited = {
        key: value for key, value in os.environ.items() if key in KEPT or not key.startswith(FOREIGN)
    }
    return {**inherited, **_settings(machine, root), **slurm.environment, "HARNESS_STEP": " ".join(line)}


def _settings(machine: Machine, root: Path) -> dict[str, str]:
    """The thread counts and allocator settings of the machine card, which are read before any Python runs."""
    threads = str(machine.threads_per_rank)
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    return {**fixed, **machine.allocator, "HARNESS_ROOT": str(root)}
