"""How many nodes ranks take, and the words that say so to Slurm."""

from typing import NamedTuple

from harness.spec.machine import Slurm


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
