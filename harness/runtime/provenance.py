"""Provenance: the code, machine, libraries and settings that are recorded with every run."""

import json
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from harness import __version__
from harness.base.untrusted import redact_command
from harness.base.validation import COMMIT
from harness.runtime.recorded_environment import select_recorded_variables
from harness.spec.machine_card import ALLOCATOR, CalibratedMachine
from harness.spec.spec import hash_data

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
PROCESS = uuid4().hex[:16]
"""The process that imported this module. Processes that are forked from it have the same value, and share its imported
libraries and their addresses."""
BLOCK_PLACE = "block.json"
"""The file of a scratch folder with the position of a run in its block; absent for a run without competitors."""


class BlockPlace(NamedTuple):
    """The position of a run among competitors that use the same nodes one after the other."""

    block: str
    """The allocation and the launch, which all competitors of a block share."""
    position: int


class Affinity(NamedTuple):
    """The host and the cores on which a rank ran."""

    host: str
    cores: tuple[int, ...]
    """The cores that the rank was allowed to use."""
    threads: int


def current_affinity() -> Affinity:
    """Return the affinity of this process."""
    import torch

    return Affinity(platform.node(), tuple(sorted(os.sched_getaffinity(0))), torch.get_num_threads())


def command_line() -> str:
    """Return the command line of this process as a user would type it, with secrets removed."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return redact_command([name, *sys.argv[1:]])


def collect_provenance(
    root: Path, scratch: Path | None = None, affinities: Sequence[Affinity] = ()
) -> dict[str, Any]:
    """Return the commit, command, machine, libraries and settings of a run.

    `root` is the checkout whose commit is recorded, and `affinities` has the affinity of every rank. The launcher
    writes its command line to `scratch`.
    """
    import torch

    from harness.base.device import gpu_name

    command, place = (_read_if_exists(scratch / name) if scratch else "" for name in (COMMAND, BLOCK_PLACE))
    block = json.loads(place) if place else {"block": "", "position": None}
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": is_dirty(root),
        "command": command or command_line(),
        "versions": {"python": platform.python_version(), **_package_versions()},
        "host": platform.node(),
        "cpu": cpu_name(),
        **block,
        "process": PROCESS,
        "nodes": ",".join(dict.fromkeys(each.host for each in affinities)),
        **_cores_and_ranks(affinities),
        "gpu": gpu_name(),
        "threads": torch.get_num_threads(),
        "scheduling": _scheduling_policy(),
        "allocator": {key: value for key, value in os.environ.items() if key in ALLOCATOR},
        "modules": os.environ.get("LOADEDMODULES", ""),
        "env": select_recorded_variables(os.environ),
        "load_average": os.getloadavg()[0],
    }


def _read_if_exists(path: Path) -> str:
    """Return the text of a file, or an empty string if it does not exist."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _scheduling_policy() -> str | None:
    """Return the scheduling policy of this thread, or None if the system has no names for policies."""
    names = {
        getattr(os, f"SCHED_{name.upper()}", None): name for name in ("other", "batch", "idle", "fifo", "rr")
    }
    return names.get(os.sched_getscheduler(0)) if hasattr(os, "sched_getscheduler") else None


CODE = ("*.py", ":!tests", ":!docs", ":!*/tests/*")
"""The files, as git selects them, that may change what a run does without a trace in its record."""


def is_dirty(root: Path) -> bool | None:
    """Return True if Python files differ from the commit, or are new; tests and documentation do not count.

    Cards and experiments do not count either: the record of a run has what it takes from them. Returns None outside of
    a repository.
    """
    status = _git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--", *CODE)
    return None if status is None else bool(status)


def _cores_and_ranks(affinities: Sequence[Affinity]) -> dict[str, int | None]:
    """Return the cores of the host with the most threads per core, and the number of ranks on that host."""
    if not affinities:
        return {"cores": len(os.sched_getaffinity(0)), "ranks_on_host": None}
    hosts: dict[str, list[Affinity]] = {}
    for each in affinities:
        hosts.setdefault(each.host, []).append(each)
    cores = {host: len(set(chain(*(each.cores for each in there)))) for host, there in hosts.items()}
    fullest = max(hosts, key=lambda host: sum(each.threads for each in hosts[host]) / cores[host])
    return {"cores": cores[fullest], "ranks_on_host": len(hosts[fullest])}


def has_commit(root: Path, commit: str) -> bool:
    """Return True if the repository of a checkout has a commit."""
    is_name = COMMIT.fullmatch(commit) is not None
    return is_name and _run_git(root, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def hash_committed_strategies(root: Path, commit: str) -> str:
    """Return the hash of the built-in strategies at a commit, as `hash_strategy_code` computes it; empty if unknown.

    `root` is a checkout of the harness, whose repository may have the commit.
    """
    if not COMMIT.fullmatch(commit):
        return ""
    archive = _run_git(root, "archive", "--format=tar", commit, "strategies")
    if archive is None:
        return ""
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        hashes = {
            entry.name.removeprefix("strategies/"): sha256(content.read()).hexdigest()
            for entry in files
            if entry.name.endswith(".py") and (content := files.extractfile(entry))
        }
    return hash_data(hashes)


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git as text, or None without git or a repository."""
    output = _run_git(root, *arguments)
    return None if output is None else output.decode(errors="replace").strip()


def _run_git(root: Path, *arguments: str) -> bytes | None:
    """Return the output of git, or None without git or a repository.

    Programs that the repository configures are not run, and git's environment variables are ignored. Git itself refuses
    a repository that belongs to another user.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    git = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-C", str(root)]
    try:
        done = subprocess.run(
            [*git, *arguments],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _package_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions | {"parallel-gnn-harness": __version__}


def describe_machine(device: str) -> CalibratedMachine:
    """Return this machine as a card describes it whose ranks compute on `device`, the CPU or a GPU."""
    from harness.base.device import gpu_name

    cores = len(os.sched_getaffinity(0))
    return CalibratedMachine(cpu=cpu_name(), cores=cores, gpu=None if device == "cpu" else gpu_name())


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        return name_processor(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return platform.processor()


def name_processor(description: str) -> str:
    """Return the name of the first processor that the kernel describes.

    Virtual machines may hide the model, as in "AMD EPYC"; the numbers of family and model then follow.
    """
    lines = [line.partition(":") for line in description.partition("\n\n")[0].splitlines()]
    fields = {field.strip(): value.strip() for field, _, value in lines}
    name = fields.get("model name") or platform.machine()
    if "model" not in fields or any(letter.isdigit() for letter in name):
        return name
    return f"{name} (family {fields.get('cpu family')}, model {fields['model']})"
