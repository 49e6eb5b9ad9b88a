"""The environment variables that are equal for everything that is forked from one process."""

from collections.abc import Mapping

from harness.comm.launchers import LAUNCHED, OTHER_VISIBLE_DEVICES, STARTED, VISIBLE_DEVICES

KEEP_SERVER = "HARNESS_KEEP_SERVER"
"""The variable with the number of minutes for which a server is kept after its last run (`launch.kept_server`)."""
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", LAUNCHED, STARTED, *VISIBLE_DEVICES, *OTHER_VISIBLE_DEVICES}
)
LAUNCHER_PREFIXES = ("SLURM", "FLUX_", "PALS_", "PMI_", "PMIX_", "OMPI_", "JSM_", "MPI_LOCAL")
"""Names and prefixes of variables whose values may differ between the ranks of one fork server: only Python code reads
them, or a driver when a rank first uses a GPU."""
SHELL_VARIABLES = frozenset({"_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES"})
TORCH_VARIABLES = frozenset({"TORCHINDUCTOR_CACHE_DIR"})
"""The variable that torch sets in its own process when it imports its compiler, as a replay does."""
HARNESS_PREFIX = "HARNESS_"
"""The variables that differ between two commands of one shell, and those that the harness reads when it needs them."""


def select_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that must be equal for all processes that are forked from one process.

    Allocators, thread pools and libraries may have read them when that process started.
    """
    return {
        key: text
        for key, text in environment.items()
        if key not in RANK_VARIABLES | SHELL_VARIABLES | TORCH_VARIABLES
        and not key.startswith((*LAUNCHER_PREFIXES, HARNESS_PREFIX))
    }
