"""The two errors that a user may see. Any other exception is a bug in the harness."""

import errno
import os


class UserError(ValueError):
    """The request is invalid. The message names the value, what is accepted and what to do. Exit code 2."""


class RunError(RuntimeError):
    """The request is valid, but the run failed. Exit code 1."""


EXTRAS = {
    "plots": ("matplotlib", "seaborn", "jinja2", "vl_convert"),
    "partition": ("pymetis", "mtkahypar"),
    "ogb": ("ogb",),
    "pyg": ("torch_geometric",),
    "slurm": ("snakemake", "snakemake_executor_plugin_slurm"),
}
"""The optional packages, by the extra of pyproject.toml that installs them."""


def missing_package_error(error: ModuleNotFoundError) -> UserError | None:
    """Return the error for an optional package that is not installed, with the command that installs it.

    Returns None for any other module.
    """
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return UserError(
                f"This needs the package {package}, which is not installed. Install it: {install_command(extra)}"
            )
    return None


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'parallel-gnn-harness[{extra}]'"


# Errors of the operating system that are not bugs in the harness.

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
ANOTHER_PLACE = "choose another place (HARNESS_RESULTS, HARNESS_DATASETS)"
WAYS_OUT: list[tuple[type[UserError] | type[RunError], set[int], str]] = [
    (RunError, FULL, f"Free some space, or {ANOTHER_PLACE}."),
    (UserError, FORBIDDEN, f"Change the permissions, mount the file system for writing, or {ANOTHER_PLACE}."),
    (UserError, {errno.ENAMETOOLONG, errno.ELOOP}, "Give a shorter path, without circular links."),
    (
        RunError,
        {errno.EMFILE, errno.ENFILE},
        "The limit of open files is too low. Raise it in the shell (ulimit -n 4096), then repeat.",
    ),
    (
        RunError,
        {errno.ENOMEM, errno.EAGAIN},
        "Close other programs, or raise the limits of the shell (ulimit -a).",
    ),
    (
        RunError,
        {errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.EREMOTEIO},
        "The disk, or the connection to it, failed. Check it, then repeat.",
    ),
]
"""The errors of the operating system that have a cause outside the harness: error class, errno values, what to do."""


def find_way_out(error: OSError) -> tuple[type[UserError] | type[RunError], str] | None:
    """Return the class for an error of the operating system and what to do; None if it may be a bug in the harness."""
    return next(((kind, way_out) for kind, numbers, way_out in WAYS_OUT if error.errno in numbers), None)


def environment_error(error: OSError) -> UserError | RunError | None:
    """Return the exception for an error of the operating system; None if it may be a bug in the harness."""
    if not (found := find_way_out(error)):
        return None
    kind, way_out = found
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "The operating system"
    return kind(f"{clip_middle(place, 200)}: {error.strerror}. {way_out}")


def clip_middle(text: str, max_length: int) -> str:
    """Shorten text to `max_length` characters by replacing its middle with an ellipsis."""
    if len(text) <= max_length:
        return text
    end = (max_length - 1) // 2
    return f"{text[: max_length - 1 - end]}…{text[len(text) - end :]}"
