"""The origin of a run's numbers: code, machine, libraries and settings, recorded with every run."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from harness import __version__
from harness.run.recorded_environment import recorded_environment
from harness.spec.machine_card import ALLOCATOR
from harness.untrusted import redact_command

PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "numba",
    "torch-geometric",
    "pandas",
    "pyarrow",
)
COMMAND = "command"
"""The file of a scratch folder with the command line of the launcher."""
BLOCK_PLACE = "block.json"
"""The file of a scratch folder with the turn of a run in its block; no file for a run by itself."""


class BlockPlace(NamedTuple):
    """The place of a run among competitors that have the same nodes, one after the other."""

    block: str
    """The allocation and the launch, which all competitors of a block share."""
    position: int


class Affinity(NamedTuple):
    """The host and the cores on which a rank ran."""

    host: str
    cores: tuple[int, ...]
    """The cores that the rank was allowed to use."""
    threads: int


def affinity() -> Affinity:
    """The affinity of this process."""
    import torch

    return Affinity(platform.node(), tuple(sorted(os.sched_getaffinity(0))), torch.get_num_threads())


def command() -> str:
    """The command line of this process, as a user types that line, without its secrets."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return redact_command([name, *sys.argv[1:]])


def provenance(
    root: Path, scratch: Path | None = None, affinities: Sequence[Affinity] = ()
) -> dict[str, Any]:
    """The commit, command, machine, libraries and settings of a run.

    `root` is the checkout whose commit is meant, and `affinities` are those of all ranks. The launcher leaves its
    command line in `scratch`.
    """
    import torch

    from harness.device import gpu_name

    typed, turn = (scratch / name if scratch else None for name in (COMMAND, BLOCK_PLACE))
    taken = (
        json.loads(turn.read_text(encoding="utf-8"))
        if turn and turn.exists()
        else {"block": "", "position": None}
    )
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": is_dirty(root),
        "command": typed.read_text(encoding="utf-8") if typed and typed.exists() else command(),
        "versions": {"python": platform.python_version(), **_versions()},
        "host": platform.node(),
        "cpu": cpu_name(),
        **taken,
        "nodes": ",".join(dict.fromkeys(each.host for each in affinities)),
        **_shared(affinities),
        "gpu": gpu_name(),
        "threads": torch.get_num_threads(),
        "scheduling": _scheduling(),
        "allocator": {key: value for key, value in os.environ.items() if key in ALLOCATOR},
        "modules": os.environ.get("LOADEDMODULES", ""),
        "env": recorded_environment(os.environ),
        "load_average": os.getloadavg()[0],
    }


def _scheduling() -> str | None:
    """The policy by which the kernel schedules this thread and those that it starts; None where there are no names."""
    names = {
        getattr(os, f"SCHED_{name.upper()}", None): name for name in ("other", "batch", "idle", "fifo", "rr")
    }
    return names.get(os.sched_getscheduler(0)) if hasattr(os, "sched_getscheduler") else None


def is_dirty(root: Path) -> bool | None:
    """True if tracked files differ from the commit, or folders with tracked files hold new ones that are not ignored.

    A card or a strategy that was never added changes a run as an edited one does. New files at the top of the checkout
    are the user's own and do not count. None where no repository is.
    """
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=normal")
    if status is None:
        return None
    lines = [line for line in status.split("\0") if line]
    return any(not line.startswith("?? ") or "/" in line[3:].rstrip("/") for line in lines)


def _shared(affinities: Sequence[Affinity]) -> dict[str, int | None]:
    """The cores of the host with the most threads for each core, and the number of ranks on that host."""
    if not affinities:
        return {"cores": len(os.sched_getaffinity(0)), "ranks_on_host": None}
    hosts: dict[str, list[Affinity]] = {}
    for each in affinities:
        hosts.setdefault(each.host, []).append(each)
    cores = {host: len(set(chain(*(each.cores for each in there)))) for host, there in hosts.items()}
    fullest = max(hosts, key=lambda host: sum(each.threads for each in hosts[host]) / cores[host])
    return {"cores": cores[fullest], "ranks_on_host": len(hosts[fullest])}


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git, or None without git or a repository. Nothing that a repository configures is run for it.

    No variable of git directs it elsewhere. Git itself refuses the repository of another user.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-C", str(root)]
    try:
        done = subprocess.run(
            [*command, *arguments],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions | {"parallel-gnn-harness": __version__}


def cpu_name() -> str:
    """The model name of the processor, as the kernel gives that name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
