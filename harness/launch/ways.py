"""How ranks are started: as processes of this machine, or as one step of the Slurm job that this process is in."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from harness.launch.processes import Death, Watched
from harness.slurm.said import said
from harness.slurm.site import load_site, slurm_of
from harness.slurm.step import in_allocation, step
from harness.spec.machine import Machine, Slurm

KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
"""Of Slurm's variables, what srun is given: everything else stands on its line."""
FOREIGN = ("SLURM_", "SRUN_", "SBATCH_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")


class Way(NamedTuple):
    """What is to be started, once for each environment."""

    command: list[str]
    environments: list[dict[str, str]]
    here: bool
    """Every process is a rank. Else there is one, which stands for all of them."""

    @property
    def ending(self) -> signal.Signals:
        """srun ends its tasks when it is asked to; killed, it would leave them."""
        return signal.SIGKILL if self.here else signal.SIGTERM

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
    words = [sys.executable, "-m", *program]
    if slurm is None:
        return Way(words, [environment(machine, ranks, root, number) for number in range(ranks)], here=True)
    if slurm.interfaces:
        words += ["--per-node", str(slurm.ranks_per_node), "--interfaces", *slurm.interfaces]
    line = step(ranks, slurm)
    return Way([*line, *words], [step_environment(machine, root, slurm, line)], here=False)


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
