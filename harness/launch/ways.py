"""How ranks are started: as processes of this machine, or as one step of the Slurm job that this process is in."""

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
from harness.slurm.srun import in_allocation, said, step
from harness.spec.machine_card import Machine, Slurm, start_seconds

KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
"""Of Slurm's variables, what srun is given: everything else stands on its line."""
FOREIGN = ("SLURM_", "SRUN_", "SBATCH_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


class Way(NamedTuple):
    """A program that is to be started, once for each environment."""

    program: list[str]
    """A module and its words."""
    environments: list[dict[str, str]]
    line: tuple[str, ...] = ()
    """Of srun: of which one process stands for all ranks. Else every process is a rank."""
    waiting: Waiting = Waiting()
    """How long ranks of this machine may take to start."""

    @property
    def here(self) -> bool:
        return not self.line

    @property
    def command(self) -> list[str]:
        return [*self.line, sys.executable, "-m", *self.program]

    @property
    def ending(self) -> signal.Signals:
        """srun ends its tasks when it is asked to; killed, it would leave them."""
        return signal.SIGKILL if self.here else signal.SIGTERM

    def start(self, fork_server: ForkServer, log: Path, progress: Callable[[str], None]) -> Iterator[Process]:
        """One process after the other; what they say goes into the log."""
        if self.here:
            waiting = self.waiting._replace(progress=progress)
            yield from fork_server.start(self.program, self.environments, log, waiting)
            return
        with log.open("wb") as file:
            yield subprocess.Popen(
                self.command,
                env=self.environments[0],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=tie(os.getpid(), self.ending),  # noqa: PLW1509  the launcher has no threads of its own
            )

    def understand(self, watched: Watched, log: Path) -> Watched:
        """How the ranks of a step ended, from what srun said of them."""
        if not watched.deaths:
            return watched
        words = log.read_text(errors="replace")
        told = said(words)
        lost = told.lost_node or not told.deaths
        return watched._replace(
            deaths=[Death(rank, code, time.time()) for rank, code in told.deaths],
            out_of_memory=told.out_of_memory,
            lost=words.strip()[-500:] or "srun said nothing" if lost else "",
        )


def way(machine: Machine, ranks: int, root: Path, program: list[str]) -> Way:
    """For ranks that run a program of ours: by srun in a job whose machine's card knows Slurm."""
    slurm = slurm_of(root, machine.name, load_site(root)) if in_allocation(os.environ) else None
    if slurm is None:
        environments = [environment(machine, ranks, root, number) for number in range(ranks)]
        way_out = f"; on a slow file system, raise start_seconds in config/machines/{machine.name}.yaml"
        return Way(program, environments, waiting=Waiting(start_seconds(root, machine.name), way_out))
    if slurm.interfaces:
        program = [
            *program,
            *("--per-node", str(slurm.ranks_per_node)),
            *("--interfaces", *slurm.interfaces),
        ]
    line = step(ranks, slurm)
    return Way(program, [step_environment(machine, root, slurm, line)], tuple(line))


def environment(machine: Machine, ranks: int, root: Path, rank: int = 0) -> dict[str, str]:
    """What a rank of this machine starts with: its place, and the settings of the machine card."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    # Ranks of one machine speak through its loopback, whatever its name resolves to.
    link = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return {**os.environ, **link, **_settings(machine, root), **place}


def step_environment(machine: Machine, root: Path, slurm: Slurm, line: list[str]) -> dict[str, str]:
    """What srun hands to every rank. Its place is srun's to tell."""
    inherited = {
        key: value for key, value in os.environ.items() if key in KEPT or not key.startswith(FOREIGN)
    }
    return {**inherited, **_settings(machine, root), **slurm.environment, "HARNESS_STEP": " ".join(line)}


def _settings(machine: Machine, root: Path) -> dict[str, str]:
    """Thread counts and allocator settings of the machine card, which are read before any Python runs."""
    threads = str(machine.threads_per_rank)
    fixed = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    return {**fixed, **machine.allocator, "HARNESS_ROOT": str(root)}
