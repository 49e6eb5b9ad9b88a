"""The survey of a machine: packages and tools, cores, memory, GPUs, network interfaces, folders and Slurm."""

import getpass
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.doctor.examined import Examined, answer, text_of
from harness.doctor.gpus import gpus
from harness.errors import UserError
from harness.slurm.site import FILE, Site, load_site, slurm_of
from harness.slurm.srun import seconds_left
from harness.spec.root import project_root, results_folder


def survey(given: str | None) -> Iterator[Examined]:
    """All items; `given` is the value of --root."""
    yield from software()
    yield from machine()
    yield from folders(given)
    yield from slurm(given)


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
    for name in NEEDED:
        installed = _version(name)
        state = installed or f"not installed: pip install {name}"
        yield Examined(name, state, missing=installed is None)
    for name, loss in USEFUL.items():
        yield Examined(name, _version(name) or f"not installed: {loss}")
    for tool, loss in TOOLS.items():
        yield Examined(tool, "found" if shutil.which(tool) else f"none: {loss}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# Cores, memory, GPUs, network interfaces.

DEVICES = Path("/sys/class/net")


def machine() -> Iterator[Examined]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Examined("cores", f"{cores}: that many ranks run at full speed")
    yield Examined("memory", f"{memory / 2**30:.0f} GiB")
    yield from gpus()
    yield Examined("interfaces", ", ".join(map(_interface, _up())) or "none is up but the loopback")
    yield _name()


def _up() -> list[Path]:
    devices = sorted(DEVICES.iterdir()) if DEVICES.is_dir() else []
    return [device for device in devices if device.name != "lo" and text_of(device / "operstate") == "up"]


def _interface(device: Path) -> str:
    speed = text_of(device / "speed")
    return f"{device.name} ({int(speed) / 1000:g} Gbit/s)" if speed.isdigit() else device.name


def _name() -> Examined:
    """The address on which gloo listens if no interface is named. No other node reaches the loopback."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return Examined("name", f"{name} has no address: name `interfaces` in the machine's card")
    lonely = ", the loopback: over several nodes the machine's card must name `interfaces`"
    return Examined("name", f"{name} is {address}" + (lonely if address.startswith("127.") else ""))


# The folders of a project: whether they may be written, and whether other nodes see them.

SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "pvfs2", "afs", "cifs", "fuse.sshfs")


def folders(given: str | None) -> Iterator[Examined]:
    try:
        root = project_root(given)
    except UserError as error:
        yield Examined("project root", str(error), missing=True)
        return
    written = {"results": results_folder(root), "figures": root / "figures", "datasets": root / "datasets"}
    for name, folder in written.items():
        existing = nearest(folder)
        writable = os.access(existing, os.W_OK)
        state = "may be written" if writable else "may not be written"
        yield Examined(name, f"{state}, {file_system(existing)}", missing=not writable)


def nearest(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system, and whether other nodes share it."""
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    holding = [(point, kind) for _, point, kind, *_ in lines if folder.resolve().is_relative_to(point)]
    if not holding:
        return "on an unknown file system"
    kind = max(holding, key=lambda mount: len(mount[0]))[1]
    seen = "which nodes share" if kind.startswith(SHARED) else "which other nodes may not see"
    return f"on {kind}, {seen}"


# Slurm, as seen from a login node or from inside a job.

SHORTEST_MEMORY = 60
"""Seconds for which squeue must remember an ended job, so that the executor sees how the job ended."""


def slurm(given: str | None) -> Iterator[Examined]:
    if shutil.which("srun") is None:
        yield Examined("Slurm", "none: runs are launched on this machine only")
    else:
        yield from _cluster()
    try:
        root = project_root(given)
        yield from _site(root)
    except UserError as error:
        yield Examined("site", str(error), missing=FILE.name in str(error))
        return
    yield from _shadowed(root)


def _cluster() -> Iterator[Examined]:
    output = answer("scontrol", "show", "config")
    if output is None:
        yield Examined(
            "Slurm", "its commands are here, and no controller answers them: nothing can be submitted"
        )
        return
    config = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", output, flags=re.MULTILINE))
    yield Examined("Slurm", f"{config.get('SLURM_VERSION', '?')}, cluster {config.get('ClusterName', '?')}")
    partitions = (answer("sinfo", "-h", "-o", "%P %D nodes, %l") or "none").splitlines()
    yield Examined("partitions", "; ".join(partitions))
    yield Examined("accounts", ", ".join(accounts()) or "Slurm lists none: any name will do")
    memory = re.match(r"\d+", config.get("MinJobAge", ""))
    if memory and int(memory[0]) < SHORTEST_MEMORY:
        yield Examined(
            "MinJobAge",
            f"{memory[0]} s: the executor will ask sacct, which shows cancelled jobs as running",
        )
    if "SLURM_JOB_ID" in os.environ:
        yield _job()


def accounts() -> list[str]:
    """The accounts that the user may name."""
    command = ("sacctmgr", "-n", "-P", "show", "associations", f"user={getpass.getuser()}", "format=account")
    return sorted(set((answer(*command) or "").split()))


def _job() -> Examined:
    number = os.environ["SLURM_JOB_ID"]
    nodes = answer("squeue", "-h", "-j", number, "-o", "%D nodes: %N") or "nodes unknown"
    left = seconds_left(os.environ)
    return Examined(
        "job", f"{number} on {nodes}" + ("" if left is None else f", {left / 60:.0f} min for runs")
    )


def _site(root: Path) -> Iterator[Examined]:
    site = load_site(root)
    if site == Site():
        yield Examined(
            "site", f"{FILE} sets nothing: jobs follow the machine cards, under the account `unnamed`"
        )
        return
    keys = {key: value for key, value in site.model_dump().items() if value is not None}
    yield Examined("site", ", ".join(f"{key} {value}" for key, value in keys.items()))
    if site.machine and slurm_of(root, site.machine, site) is None:
        yield Examined("machine", f"the card {site.machine} has no Slurm: its runs have one node each")
    known = accounts() if shutil.which("srun") else []
    if known and site.account and site.account not in known:
        yield Examined("account", f"{site.account} is none of {', '.join(known)}", missing=True)


def _shadowed(root: Path) -> Iterator[Examined]:
    """Snakemake looks for a profile in its working folder first, then among the user's and the site's own."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for config in (user, Path("/etc/xdg")):
        own = config / "snakemake" / "slurm"
        if own.exists() and (root / "slurm").exists():
            yield Examined("profile", f"{own} is shadowed by the project's own `slurm`: name it by its path")
