"""This machine: cores, memory, GPUs and what they speak through, network interfaces."""

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from harness.errors import UserError
from harness.spec.root import project_root, results_folder

# One thing that was looked at.

PATIENCE = 20


@dataclass(frozen=True)
class Examined:
    """What is only useful is never missing."""

    what: str
    found: str
    missing: bool = False


def answer(*command: str) -> str | None:
    """What a command prints; nothing if there is none such, or it fails, or it does not come to an end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


DEVICES = Path("/sys/class/net")
NO_GPU = "none here: strategies run on CPU ranks over gloo"


def machine() -> Iterator[Examined]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Examined("cores", f"{cores}: that many ranks run at full speed")
    yield Examined("memory", f"{memory / 2**30:.0f} GiB")
    yield Examined("GPU", _gpus())
    yield Examined("NCCL", _nccl())
    yield Examined("interfaces", ", ".join(map(_interface, _up())) or "none is up but the loopback")
    yield _name()


def _gpus() -> str:
    nvidia = answer("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if nvidia:
        names = nvidia.splitlines()
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    amd = answer("rocm-smi", "--showid") or ""
    shown = {line.split(":")[0] for line in amd.splitlines() if line.startswith("GPU[")}
    return f"{len(shown)} by rocm-smi" if shown else NO_GPU


def _nccl() -> str:
    """By the package beside torch: whether it works is shown by `harness doctor --links`."""
    named = [(str(one.metadata["Name"]), one.version) for one in distributions()]
    found = [f"{name} {version}" for name, version in named if name.startswith(("nvidia-nccl", "rccl"))]
    return ", ".join(found) or "no package of it: only gloo, or torch's own"


def _up() -> list[Path]:
    places = sorted(DEVICES.iterdir()) if DEVICES.is_dir() else []
    return [place for place in places if place.name != "lo" and _read(place / "operstate") == "up"]


def _interface(place: Path) -> str:
    speed = _read(place / "speed")
    return f"{place.name} ({int(speed) / 1000:g} Gbit/s)" if speed.isdigit() else place.name


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _name() -> Examined:
    """Where gloo listens if no interface is named. A name that stands for the loopback is heard by no other node."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Examined("name", f"{name} has no address: name `interfaces` in the machine's card")
    lonely = ", the loopback: over several nodes the machine's card must name `interfaces`"
    return Examined("name", f"{name} is {address}" + (lonely if address.startswith("127.") else ""))


# The folders of a project: whether they may be written, and whether other nodes see them.

SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "pvfs2", "afs", "cifs", "fuse.sshfs")


def places(given: str | None) -> Iterator[Examined]:
    try:
        root = project_root(given)
    except UserError as error:
        yield Examined("project root", str(error), missing=True)
        return
    folders = {"results": results_folder(root), "figures": root / "figures", "datasets": root / "datasets"}
    for name, folder in folders.items():
        there = nearest(folder)
        writable = os.access(there, os.W_OK)
        told = "may be written" if writable else "may not be written"
        yield Examined(name, f"{told}, {file_system(there)}", missing=not writable)


def nearest(folder: Path) -> Path:
    """The folder, or the one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system, and what that means to jobs on other nodes."""
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    holding = [(point, kind) for _, point, kind, *_ in lines if folder.resolve().is_relative_to(point)]
    if not holding:
        return "on an unknown file system"
    kind = max(holding, key=lambda one: len(one[0]))[1]
    seen = "which nodes share" if kind.startswith(SHARED) else "which other nodes may not see"
    return f"on {kind}, {seen}"


# Python, its packages, and the tools beside it.

NEEDED = (
    "torch",
    "numpy",
    "scipy",
    "numba",
    "pandas",
    "pyarrow",
    "matplotlib",
    "seaborn",
    "snakemake",
    "jinja2",
)
OLDEST = (3, 11)
USEFUL = {"nvidia-ml-py": "records will not say how busy a GPU is"}
TOOLS = {
    "git": "records will not say which commit they come from",
    "cc": "torch.compile cannot be used",
}


def software() -> Iterator[Examined]:
    yield Examined("python", platform.python_version(), missing=sys.version_info < OLDEST)
    yield from map(_package, NEEDED)
    for name, without in USEFUL.items():
        yield Examined(name, _version(name) or f"not installed: {without}")
    for tool, without in TOOLS.items():
        yield Examined(tool, "found" if shutil.which(tool) else f"none: {without}")


def _package(name: str) -> Examined:
    found = _version(name)
    return Examined(name, found or f"not installed: pip install {name}", missing=found is None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
