"""Ranks as one step of a job: the srun line, which says everything itself.

The executor takes Slurm's variables out of a rule's environment. An srun that relies on them starts one task a node and
says nothing, so nodes, tasks, their order, processors and devices all stand here.
"""

from collections.abc import Mapping

from harness.slurm.geometry import devices, geometry
from harness.spec.machine import Slurm

NO_STEP = 0xFFFFFFF0
"""From this number on, a step is a batch script or an interactive shell."""


def in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether this process is in a job, and no task of a step: who is one cannot start steps of its own."""
    step = int(environ.get("SLURM_STEP_ID", NO_STEP))
    return "SLURM_JOB_ID" in environ and step >= NO_STEP


def step(ranks: int, slurm: Slurm) -> list[str]:
    """The srun line without its command. One rank that fails takes the others down."""
    shape = geometry(ranks, slurm)
    return [
        "srun",
        f"--nodes={shape.nodes}",
        f"--ntasks={ranks}",
        f"--distribution=plane={shape.per_node}",
        f"--cpus-per-task={slurm.cpus_per_rank}",
        *devices(slurm),
        *slurm.srun.split(),
        "--kill-on-bad-exit=1",
        "--export=ALL",
        "--input=none",
    ]
