"""The survey of a machine: packages and tools, cores, memory, GPUs, network interfaces, folders and Slurm."""

import getpass
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import NamedTuple

from harness.errors import EXTRAS, UserError, install_command
from harness.slurm.resources import (
    AROUND,
    PARTITIONS,
    SITE_FILE,
    Site,
    build,
    forbidden,
    job,
    load_site,
    partitions_of,
    place,
    slurm_of,
)
from harness.slurm.srun import seconds_left
from harness.spec.root import project_root, results_folder

PATIENCE = 20
"""Seconds that a command may take to answer."""


@dataclass(frozen=True)
class Examined:
    """An item of the survey. `missing` is for items that the harness needs; a merely useful one is never missing."""

    what: str
    found: str
    missing: bool = False
    doubtful: bool = False
    """True for an item that may end runs, and that only the user can decide."""


def answer(*command: str) -> str | None:
    """The output of a command; None if the command is absent, fails or does not end in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def text_of(path: Path) -> str:
    """The text of a small file; nothing if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


Tell = Callable[[str], None]


def survey(given: str | None, tell: Tell) -> Iterator[Examined]:
    """All items; `given` is the value of --root. `tell` hears of the item that takes long."""
    yield from software()
    yield from machine(tell)
    yield from folders(given)
    yield from slurm(given)


# Python, its packages, and the tools beside it.

NEEDED = ("torch", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic", "pyyaml")
"""The packages without which nothing runs."""
PURPOSES = {
    "plots": "figures and reports need it",
    "partition": "partitions by METIS or as a hypergraph need it",
    "ogb": "graphs of the Open Graph Benchmark need it",
    "pyg": "the strategy pyg and files of PyTorch Geometric need it",
    "slurm": "workflows need it, on the machine from which they are submitted",
}
"""What the packages of an extra are for. A machine that does none of this, such as a compute node, lacks nothing."""
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
    for extra, packages in EXTRAS.items():
        absent = f"not installed; only {PURPOSES[extra]}: {install_command(extra)}"
        for name in packages:
            yield Examined(name, _version(name) or absent)
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


def machine(tell: Tell) -> Iterator[Examined]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Examined("cores", f"{cores}: that many ranks run at full speed")
    yield Examined("memory", f"{memory / 2**30:.0f} GiB")
    yield from gpus(tell)
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


# The GPUs as ranks find them: driver, links, NUMA nodes, torch's build, devices against ranks, peers. Torch is imported
# only where a command of the driver shows a GPU.

NO_GPU = "none on this machine: strategies run on CPU ranks over gloo"
NODES, BUS = Path("/sys/devices/system/node"), Path("/sys/bus/pci/devices")


class Gpu(NamedTuple):
    """What nvidia-smi says of a GPU."""

    name: str
    driver_version: str
    bus: str
    generation: str
    lanes: str


QUERY = "--query-gpu=name,driver_version,pci.bus_id,pcie.link.gen.current,pcie.link.width.current"


def gpus(tell: Tell) -> Iterator[Examined]:
    """All that is known of the GPUs, and of the library of their collectives."""
    shown = answer("nvidia-smi", QUERY, "--format=csv,noheader") or ""
    found = [
        Gpu(*line.split(", ")) for line in shown.splitlines() if line.count(", ") == len(Gpu._fields) - 1
    ]
    names = [gpu.name for gpu in found] or _of_amd()
    yield Examined(
        "GPU", ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or NO_GPU
    )
    yield Examined("NCCL", _nccl())
    if found:
        yield Examined("driver", ", ".join(sorted({gpu.driver_version for gpu in found})))
        yield Examined("PCIe", ", ".join(f"generation {gpu.generation} x{gpu.lanes}" for gpu in found))
        yield from _nearness(found)
    if names:
        yield from _in_torch(tell)


def _of_amd() -> list[str]:
    lines = (answer("rocm-smi", "--showid") or "").splitlines()
    return ["GPU by rocm-smi"] * len({line.split(":")[0] for line in lines if line.startswith("GPU[")})


def _nccl() -> str:
    """The NCCL package beside torch. Only `harness doctor --links` shows whether NCCL works."""
    packages = [(str(each.metadata["Name"]), each.version) for each in distributions()]
    nccl = [f"{name} {version}" for name, version in packages if name.startswith(("nvidia-nccl", "rccl"))]
    return ", ".join(nccl) or "no package of it: only gloo, or torch's own"


def _nearness(found: list[Gpu]) -> Iterator[Examined]:
    """The NUMA node of each GPU. A rank that may use no core of the node copies through the other processor."""
    places = [text_of(BUS / gpu.bus.lower().removeprefix("0000") / "numa_node") for gpu in found]
    if not any(place.isdigit() for place in places):
        return
    allowed = os.sched_getaffinity(0)
    far = [
        str(number)
        for number, place in enumerate(places)
        if place.isdigit() and not allowed & set(_cores(text_of(NODES / f"node{place}" / "cpulist")))
    ]
    state = f"; this process may use no core near GPU {', '.join(far)}" if far else ""
    yield Examined("NUMA", f"the GPUs are at the nodes {', '.join(places)}{state}")


def _cores(listed: str) -> set[int]:
    """The cores of a list such as 0-3,8-11."""
    spans = [span.partition("-") for span in listed.split(",") if span]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def _in_torch(tell: Tell) -> Iterator[Examined]:
    """What torch makes of the GPUs that the driver shows."""
    import torch

    from harness.comm.launchers import VISIBLE_DEVICES
    from harness.device import gpu_build, gpu_count, pairs_without_peer_access

    build, devices = gpu_build(), gpu_count()
    if build is None:
        idle = f"{torch.__version__} is for neither CUDA nor ROCm, and the GPUs stay idle"
        yield Examined("torch's build", f"{idle}: README.md says which torch to install", missing=True)
        return
    if not devices:
        hiding = [f"{name}={os.environ[name]}" for name in VISIBLE_DEVICES if name in os.environ]
        reason = f"{' '.join(hiding)} hides them" if hiding else f"the driver may be too old for {build}"
        yield Examined("torch's build", f"{torch.__version__} finds no GPU: {reason}", missing=True)
        return
    yield Examined("torch's build", f"{torch.__version__} for {build}")
    yield _seen(devices)
    apart = [f"{one} and {other}" for one, other in pairs_without_peer_access()]
    if devices > 1:
        yield Examined(
            "peers", f"no direct access between {', '.join(apart)}" if apart else "direct access between all"
        )
    tell(f"testing {devices} GPU{'s' if devices > 1 else ''}, about a minute")
    yield _tested(devices)


def _tested(devices: int) -> Examined:
    """The test of all GPUs. One that computes or sums wrongly would spoil every run."""
    from harness.doctor.self_test import wrong_with_gpus

    if wrong := wrong_with_gpus(devices):
        return Examined("self-test", "; ".join(wrong), missing=True)
    of_all = f", sums over {devices} GPUs" if devices > 1 else ""
    return Examined("self-test", f"kernels{of_all} and a small training are equal to float64 on the host")


def _seen(devices: int) -> Examined:
    """The devices that torch sees, against the ranks that Slurm starts on a node."""
    seen, ranks = f"torch sees {devices}", os.environ.get("SLURM_NTASKS_PER_NODE", "")
    if ranks.isdigit() and int(ranks) > devices:
        advice = "start at most as many ranks as there are devices, or ask for more devices"
        return Examined("devices", f"{seen}, and {ranks} ranks start on a node: {advice}", missing=True)
    return Examined("devices", f"{seen}: that many ranks, each with a GPU of its own")


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
    lines = (
        [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()] if mounts.exists() else []
    )
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
        yield from _card(root)
    except UserError as error:
        yield Examined("site", str(error), missing=SITE_FILE.name in str(error))
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
            f"{memory[0]} s: squeue forgets ended jobs so soon that jobs without their outputs count as failed "
            "minutes later",
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
            "site", f"{SITE_FILE} sets nothing: jobs follow the machine cards, under the account `unnamed`"
        )
        return
    keys = {key: value for key, value in site.model_dump().items() if value is not None}
    yield Examined("site", ", ".join(f"{key} {value}" for key, value in keys.items()))
    if site.machine and shutil.which("sinfo"):
        yield from _card_on_cluster(root, site.machine, site)
    elif site.machine and slurm_of(root, site.machine, site) is None:
        yield Examined("machine", f"the card {site.machine} has no Slurm: its runs have one node each")
    known = accounts() if shutil.which("srun") else []
    if known and site.account and site.account not in known:
        yield Examined("account", f"{site.account} is none of {', '.join(known)}", missing=True)


def _card(root: Path) -> Iterator[Examined]:
    """What the card of the site's machine names and this machine may lack: a network that nodes share, and modules."""
    site = load_site(root)
    slurm = slurm_of(root, site.machine, site) if site.machine else None
    if slurm is None:
        return
    there = [name for _, name in socket.if_nameindex()]
    absent = [name for name in slurm.interfaces if name not in there]
    with suppress(OSError):
        if not slurm.interfaces and socket.gethostbyname(socket.gethostname()).startswith("127."):
            alone = "the name of this machine is the loopback's, by which no other node reaches it: name them"
            yield Examined("interfaces", f"the card {site.machine} names none, and {alone}", missing=True)
    if absent:
        place = f"not on this machine, which has {', '.join(there)}"
        yield Examined(
            "interfaces",
            f"{', '.join(absent)} of the card {site.machine}: {place}",
            missing="SLURM_JOB_ID" in os.environ,
            doubtful="SLURM_JOB_ID" not in os.environ,
        )
    if slurm.container and not shutil.which(slurm.container.runtime):
        yield Examined(
            "container", f"{slurm.container.runtime} of the card {site.machine} is not on the PATH", True
        )
    loaded = {module.partition("/")[0] for module in os.environ.get("LOADEDMODULES", "").split(":")}
    if unloaded := [module for module in slurm.modules if module.partition("/")[0] not in loaded]:
        yield Examined(
            "modules",
            f"not loaded: `module load {' '.join(unloaded)}`, unless a container has them",
            doubtful=True,
        )


def _card_on_cluster(root: Path, machine: str, site: Site) -> Iterator[Examined]:
    """The jobs of a machine's card against the partitions, and the project's folder against its nodes."""
    slurm = slurm_of(root, machine, site)
    if slurm is None:
        yield Examined("machine", f"the card {machine} has no Slurm: its runs have one node each")
        return
    partitions = partitions_of(answer(*PARTITIONS) or "")
    if not partitions:
        yield Examined("partition", "not compared: no controller answers")
        return
    minutes = max(slurm.minutes, slurm.job_minutes) + AROUND
    jobs = {
        "jobs": place(site, slurm) | job([slurm.ranks_per_node], slurm, minutes),
        "builds": build(site, slurm, None),
    }
    for name, asked in jobs.items():
        reason = forbidden(asked, partitions)
        fits = f"the partitions allow those of the card {machine}"
        yield Examined(
            name, f"of the card {machine} would never start: {reason}" if reason else fits, bool(reason)
        )
    nodes = sum(
        kind.nodes for kind in partitions.get(slurm.partition or "", next(iter(partitions.values()))).kinds
    )
    place_of_runs = nearest(results_folder(root))
    if nodes > 1 and not file_system(place_of_runs).endswith("which nodes share"):
        state = f"{place_of_runs} is {file_system(place_of_runs)}, and the partition has {nodes} nodes"
        way_out = "`srun -N2 ls FOLDER` shows whether they see it; else move the checkout to a file system of all nodes"
        yield Examined("shared folder", f"{state}: {way_out}", doubtful=True)


def _shadowed(root: Path) -> Iterator[Examined]:
    """Snakemake looks for a profile in its working folder first, then among the user's and the site's own."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for config in (user, Path("/etc/xdg")):
        own = config / "snakemake" / "slurm"
        if own.exists() and (root / "slurm").exists():
            yield Examined("profile", f"{own} is shadowed by the project's own `slurm`: name it by its path")
