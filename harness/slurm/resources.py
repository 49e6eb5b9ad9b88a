"""The resources of a job, by the keys of Snakemake's executor, which no other module knows.

The executor changes some keys. With GPUs, `tasks` would become tasks per GPU; `mpi` asks for more than one task, and
its presence alone decides whether the executor or the rule calls srun. So GPUs are never given as `gres` or `gpu`, and
a single rank has no `mpi`: Snakemake leaves out a key whose value is None.
"""

from collections.abc import Collection
from math import ceil
from typing import NamedTuple

from harness.slurm.site import Site
from harness.spec.machine_card import Slurm


class Geometry(NamedTuple):
    """The nodes of a run. Ranks fill one node after the other."""

    nodes: int
    per_node: int
    """Ranks on a full node."""


def geometry(ranks: int, slurm: Slurm) -> Geometry:
    """The fewest nodes that hold the ranks."""
    return Geometry(-(-ranks // slurm.ranks_per_node), min(ranks, slurm.ranks_per_node))


def devices(slurm: Slurm) -> list[str]:
    """The option for GPUs, for jobs and steps alike: a step without it sees no device of the job, or one a rank."""
    return [f"--gpus-per-node={slurm.gpus_per_node}"] if slurm.gpus_per_node else []


Resources = dict[str, int | str | None]

NAMES = ("mpi", "nodes", "tasks", "tasks_per_node", "cpus_per_task", "mem_mb", "runtime", "slurm_extra")
"""The keys of every job; some of their values are None."""
MEMORY_MB = 5000
"""The memory of a build (4 GiB and the libraries) and of runs on small graphs, if no card gives a node's memory."""


def job(ranks: Collection[int], slurm: Slurm, minutes: float) -> Resources:
    """A job whose runs go one after the other; `ranks` has the number of ranks of each."""
    shape = geometry(max(ranks), slurm)
    spread = shape.per_node == 1
    return {
        "mpi": None if max(ranks) == 1 else "srun",
        "nodes": shape.nodes,
        "tasks": max(ranks) if spread else None,
        "tasks_per_node": None if spread else shape.per_node,
        "cpus_per_task": slurm.cpus_per_rank,
        "mem_mb": slurm.memory_mb,
        "runtime": ceil(minutes),
        "slurm_extra": " ".join([*devices(slurm), *slurm.sbatch.split()]) or None,
    }


def one_node(processors: int, slurm: Slurm | None, minutes: float) -> Resources:
    """A job of one process on one node: a build, or a run on a machine whose card has no Slurm."""
    asked = {**dict.fromkeys(NAMES), "mem_mb": MEMORY_MB} if slurm is None else job([1], slurm, minutes)
    return asked | {"nodes": 1, "tasks": 1, "cpus_per_task": processors, "runtime": ceil(minutes)}


def place(site: Site, slurm: Slurm | None) -> Resources:
    """The account, partition, QOS and constraint of jobs: only the keys that are set. A user's profile may add more."""
    keys = {
        "slurm_account": site.account,
        "slurm_partition": slurm.partition if slurm else site.partition,
        "qos": slurm.qos if slurm else site.qos,
        "constraint": slurm.constraint if slurm else site.constraint,
    }
    return {key: value for key, value in keys.items() if value is not None}
