"""What a job asks of Slurm, in the words of Snakemake's executor: the one place that knows them.

The executor passes them on in ways of its own. `tasks` beside GPUs would become tasks per GPU; `mpi` asks for more than
one task, and its mere presence decides who calls srun. So GPUs are never given as `gres` or `gpu`, and one rank is no
`mpi`: a key whose value is None is left out by Snakemake.
"""

from collections.abc import Collection
from math import ceil
from typing import NamedTuple

from harness.slurm.site import Site
from harness.spec.machine_card import Slurm

# How many nodes ranks take, and the words that say so to Slurm.


class Geometry(NamedTuple):
    """Ranks fill one node after the other."""

    nodes: int
    per_node: int
    """Ranks on a node that is full."""


def geometry(ranks: int, slurm: Slurm) -> Geometry:
    """The fewest nodes that hold the ranks."""
    return Geometry(-(-ranks // slurm.ranks_per_node), min(ranks, slurm.ranks_per_node))


def devices(slurm: Slurm) -> list[str]:
    """The same words for a job and for its steps, which would else see none of the job's devices, or one each."""
    return [f"--gpus-per-node={slurm.gpus_per_node}"] if slurm.gpus_per_node else []


Resources = dict[str, int | str | None]

NAMES = ("mpi", "nodes", "tasks", "tasks_per_node", "cpus_per_task", "mem_mb", "runtime", "slurm_extra")
"""What every job asks for, some of it None."""
MEMORY_MB = 5000
"""What a build takes, 4 GiB and the libraries, and runs on small graphs; where no card says what a node has."""


def job(ranks: Collection[int], slurm: Slurm, minutes: float) -> Resources:
    """A job in which runs of so many ranks each go one after the other."""
    shape = geometry(max(ranks), slurm)
    alone = max(ranks) == 1
    spread = shape.per_node == 1
    return {
        "mpi": None if alone else "srun",
        "nodes": shape.nodes,
        "tasks": max(ranks) if spread else None,
        "tasks_per_node": None if spread else shape.per_node,
        "cpus_per_task": slurm.cpus_per_rank,
        "mem_mb": slurm.memory_mb,
        "runtime": ceil(minutes),
        "slurm_extra": " ".join([*devices(slurm), *slurm.sbatch.split()]) or None,
    }


def one_node(processors: int, slurm: Slurm | None, minutes: float) -> Resources:
    """A job of one process on one node: a build, or a run on a machine whose card knows no Slurm."""
    asked = {**dict.fromkeys(NAMES), "mem_mb": MEMORY_MB} if slurm is None else job([1], slurm, minutes)
    return asked | {"nodes": 1, "tasks": 1, "cpus_per_task": processors, "runtime": ceil(minutes)}


def place(site: Site, slurm: Slurm | None) -> Resources:
    """Where jobs go and who pays: only what somebody has said, so that a profile of the user's own may say the rest."""
    said = {
        "slurm_account": site.account,
        "slurm_partition": slurm.partition if slurm else site.partition,
        "qos": slurm.qos if slurm else site.qos,
        "constraint": slurm.constraint if slurm else site.constraint,
    }
    return {key: value for key, value in said.items() if value is not None}
