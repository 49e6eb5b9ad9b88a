"""The launchers that can start ranks, and the place that a launcher gives to a process. Does not import torch."""

from collections.abc import Mapping
from typing import NamedTuple


class RankPlace(NamedTuple):
    """The position of a process in the world: its rank, the number of ranks, and its rank on its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0


class Launcher(NamedTuple):
    """The environment variables in which a launcher passes each process its place."""

    name: str
    rank: str
    world: str
    local_rank: str
    local_world: str = ""
    """The variable with the number of ranks on the machine, if the launcher sets one."""
    job: tuple[str, ...] = ()
    """The variables that together identify the world, with the same values on all ranks."""
    also: str = ""
    """Another variable that must be set: without a step, Slurm's variables belong to a batch script."""

    def is_active(self, environ: Mapping[str, str]) -> bool:
        """Return True if the variables of this launcher are set."""
        return all(name in environ for name in (self.rank, self.world, self.also or self.rank))


TORCHRUN = Launcher(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)
)
SRUN = Launcher(
    "srun",
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    also="SLURM_STEP_ID",
)
LAUNCHERS = (
    TORCHRUN,
    Launcher(
        "jsrun",
        *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
        local_world="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("LSB_JOBID",),
    ),
    Launcher(
        "Open MPI",
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("PMIX_NAMESPACE",),
    ),
    Launcher("PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", ("PBS_JOBID",)),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", also="MPI_LOCALRANKID"),
    Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", job=("FLUX_JOB_ID",)),
    SRUN,
)
"""The innermost launcher comes first: each one may run inside a job or a step of the later ones."""


LAUNCHED, STARTED = "HARNESS_LAUNCHED", "HARNESS_STARTED"
"""The variables with the wall-clock times at which the harness launched a rank and its task began."""
STAGED = "HARNESS_STAGED"
"""The variable with the seconds spent on copying archives to the nodes."""
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
OTHER_VISIBLE_DEVICES = ("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""The variables that limit a rank's visible devices. Only the first tuple decides whether it is bound to one."""


def detect_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process as a rank, or None."""
    return next((each for each in LAUNCHERS if each.is_active(environ)), None)


def read_place(environ: Mapping[str, str]) -> RankPlace:
    """Return the place that the launcher gave to this process: a world of one rank without a launcher."""
    launcher = detect_launcher(environ)
    if launcher is None:
        return RankPlace()
    return RankPlace(
        int(environ[launcher.rank]), int(environ[launcher.world]), int(environ.get(launcher.local_rank, 0))
    )
