"""Surveys a machine: packages and tools, cores, memory, GPUs, network interfaces, folders and Slurm."""

import getpass
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import NamedTuple

from harness.errors import EXTRAS, UserError, install_command
from harness.formatting import GIB, format_count
from harness.locks import find_mount
from harness.progress import Log
from harness.slurm.resources import (
    OVERHEAD_MINUTES,
    PARTITION_QUERY,
    SITE_FILE,
    Site,
    explain_refusal,
    load_site,
    load_slurm,
    parse_partitions,
    request_build,
    request_job,
    request_place,
)
from harness.slurm.srun import read_seconds_left
from harness.spec.root import find_results_folder, find_root

PATIENCE = 20
"""The time limit of a command in seconds."""


@dataclass(frozen=True)
class SurveyItem:
    """An item of the survey. `missing` marks an item that the harness needs and cannot use."""

    what: str
    found: str
    missing: bool = False
    doubtful: bool = False
    """Whether the item may make runs fail, which only the user can judge."""


def run_tool(*command: str) -> str | None:
    """Return the output of a command; None if it is not installed, fails or exceeds the time limit."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def read_text(path: Path) -> str:
    """Return the text of a small file; an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def survey_machine(given: str | None, report: Log) -> Iterator[SurveyItem]:
    """Yield all items. `given` is the value of --root, and `report` announces an item that takes long."""
    yield from survey_software()
    yield from survey_hardware(report)
    yield from survey_folders(given)
    yield from survey_slurm(given)


# Python, its packages, and other tools.

NEEDED = ("torch", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic", "pyyaml", "cyclopts", "rich")
"""The packages that the harness needs."""
PURPOSES = {
    "plots": "figures and reports need it",
    "partition": "partitions by METIS or as a hypergraph need it",
    "ogb": "graphs of the Open Graph Benchmark need it",
    "pyg": "the strategy pyg and files of PyTorch Geometric need it",
    "slurm": "workflows need it, on the machine from which they are submitted",
}
"""The purpose of each extra. A machine may lack its packages, as compute nodes do."""
OLDEST = (3, 11)
USEFUL = {"nvidia-ml-py": "records will not say how busy a GPU is"}
TOOLS = {
    "git": "records will not say which commit they come from",
    "cc": "Triton cannot compile kernels for GPUs",
    "g++": "fused kernels of scalegnn cannot be used on CPUs",
}


def survey_software() -> Iterator[SurveyItem]:
    """Yield Python, the packages and the tools."""
    yield SurveyItem("python", platform.python_version(), missing=sys.version_info < OLDEST)
    for name in NEEDED:
        installed = _find_version(name)
        state = installed or f"not installed: pip install {name}"
        yield SurveyItem(name, state, missing=installed is None)
    for extra, packages in EXTRAS.items():
        absent = f"not installed; only {PURPOSES[extra]}: {install_command(extra)}"
        for name in packages:
            yield SurveyItem(name, _find_version(name) or absent)
    for name, loss in USEFUL.items():
        yield SurveyItem(name, _find_version(name) or f"not installed: {loss}")
    for tool, loss in TOOLS.items():
        yield SurveyItem(tool, "found" if shutil.which(tool) else f"none: {loss}")


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# Cores, memory, GPUs, network interfaces.

DEVICES = Path("/sys/class/net")


def survey_hardware(report: Log) -> Iterator[SurveyItem]:
    """Yield the cores, memory, GPUs and network interfaces."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield SurveyItem("cores", f"{cores}: up to {cores} ranks run at full speed")
    yield SurveyItem("memory", f"{memory / GIB:.0f} GiB")
    yield from survey_gpus(report)
    yield SurveyItem(
        "interfaces",
        ", ".join(map(_describe_interface, _list_interfaces())) or "none is up except the loopback",
    )
    yield _check_host_name()


def _list_interfaces() -> list[Path]:
    devices = sorted(DEVICES.iterdir()) if DEVICES.is_dir() else []
    return [device for device in devices if device.name != "lo" and read_text(device / "operstate") == "up"]


def _describe_interface(device: Path) -> str:
    speed = read_text(device / "speed")
    return f"{device.name} ({int(speed) / 1000:g} Gbit/s)" if speed.isdigit() else device.name


def _check_host_name() -> SurveyItem:
    """Return the address of this host's name, where gloo listens by default. Other nodes cannot reach the loopback."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return SurveyItem("name", f"{name} has no address: name `interfaces` in the machine's card")
    loopback = ", the loopback: for several nodes the machine's card must name `interfaces`"
    return SurveyItem("name", f"{name} is {address}" + (loopback if address.startswith("127.") else ""))


# GPUs: driver, links, NUMA nodes, torch's build, devices per rank, peer access. Torch is only imported if a command of
# the driver shows a GPU.

NO_GPU = "none on this machine: strategies run on CPU ranks over gloo"
NODES, BUS = Path("/sys/devices/system/node"), Path("/sys/bus/pci/devices")


class Gpu(NamedTuple):
    """A GPU as nvidia-smi describes it."""

    name: str
    driver_version: str
    bus: str
    generation: str
    lanes: str


QUERY = "--query-gpu=name,driver_version,pci.bus_id,pcie.link.gen.current,pcie.link.width.current"


def survey_gpus(report: Log) -> Iterator[SurveyItem]:
    """Yield what is known about the GPUs and the library for their collectives."""
    shown = run_tool("nvidia-smi", QUERY, "--format=csv,noheader") or ""
    found = [
        Gpu(*line.split(", ")) for line in shown.splitlines() if line.count(", ") == len(Gpu._fields) - 1
    ]
    names = [gpu.name for gpu in found] or _list_amd_gpus()
    yield SurveyItem(
        "GPU", ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or NO_GPU
    )
    yield SurveyItem("NCCL", _find_nccl())
    if found:
        yield SurveyItem("driver", ", ".join(sorted({gpu.driver_version for gpu in found})))
        yield SurveyItem("PCIe", ", ".join(f"generation {gpu.generation} x{gpu.lanes}" for gpu in found))
        yield from _check_numa(found)
    if names:
        yield from _check_torch(report)


def _list_amd_gpus() -> list[str]:
    lines = (run_tool("rocm-smi", "--showid") or "").splitlines()
    return ["GPU by rocm-smi"] * len({line.split(":")[0] for line in lines if line.startswith("GPU[")})


def _find_nccl() -> str:
    """Return the NCCL package installed with torch. `harness doctor --links` tests whether NCCL works."""
    packages = [(str(each.metadata["Name"]), each.version) for each in distributions()]
    nccl = [f"{name} {version}" for name, version in packages if name.startswith(("nvidia-nccl", "rccl"))]
    return ", ".join(nccl) or "not installed as a package: ranks use gloo, or the NCCL inside torch"


def _check_numa(found: list[Gpu]) -> Iterator[SurveyItem]:
    """Yield the NUMA nodes of the GPUs. A rank without a core on the node of its GPU copies through another socket."""
    places = [read_text(BUS / gpu.bus.lower().removeprefix("0000") / "numa_node") for gpu in found]
    if not any(place.isdigit() for place in places):
        return
    allowed = os.sched_getaffinity(0)
    far = [
        str(number)
        for number, place in enumerate(places)
        if place.isdigit() and not allowed & set(_parse_cores(read_text(NODES / f"node{place}" / "cpulist")))
    ]
    state = f"; this process cannot use any core near GPU {', '.join(far)}" if far else ""
    yield SurveyItem("NUMA", f"the GPUs are on the nodes {', '.join(places)}{state}")


def _parse_cores(listed: str) -> set[int]:
    """Return the cores in a list such as 0-3,8-11."""
    spans = [span.partition("-") for span in listed.split(",") if span]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def _check_torch(report: Log) -> Iterator[SurveyItem]:
    """Yield whether torch can use the GPUs that the driver shows."""
    import torch

    from harness.comm.launchers import VISIBLE_DEVICES
    from harness.device import gpu_build, gpu_count, pairs_without_peer_access

    build, devices = gpu_build(), gpu_count()
    if build is None:
        idle = f"{torch.__version__} is built for neither CUDA nor ROCm, so the GPUs are not used"
        yield SurveyItem("torch's build", f"{idle}: README.md says which torch to install", missing=True)
        return
    if not devices:
        hiding = [f"{name}={os.environ[name]}" for name in VISIBLE_DEVICES if name in os.environ]
        reason = f"{' '.join(hiding)} hides them" if hiding else f"the driver may be too old for {build}"
        yield SurveyItem("torch's build", f"{torch.__version__} finds no GPU: {reason}", missing=True)
        return
    yield SurveyItem("torch's build", f"{torch.__version__} for {build}")
    yield _check_device_count(devices)
    unconnected = [f"{one} and {other}" for one, other in pairs_without_peer_access()]
    if devices > 1:
        yield SurveyItem(
            "peers",
            f"no direct access between {', '.join(unconnected)}"
            if unconnected
            else "direct access between all",
        )
    report(f"testing {format_count(devices, 'GPU')}, about a minute")
    yield _test_gpus(devices)


def _test_gpus(devices: int) -> SurveyItem:
    """Test all GPUs. A GPU that computes wrongly would make every run wrong."""
    from harness.doctor.self_test import find_gpu_faults

    if wrong := find_gpu_faults(devices):
        return SurveyItem("self-test", "; ".join(wrong), missing=True)
    of_all = f", sums over {devices} GPUs" if devices > 1 else ""
    return SurveyItem("self-test", f"kernels{of_all} and a small training are equal to float64 on the host")


def _check_device_count(devices: int) -> SurveyItem:
    """Compare the devices that torch sees with the ranks that Slurm starts on a node."""
    seen, ranks = f"torch sees {devices}", os.environ.get("SLURM_NTASKS_PER_NODE", "")
    if ranks.isdigit() and int(ranks) > devices:
        advice = "start at most as many ranks as there are devices, or ask for more devices"
        return SurveyItem("devices", f"{seen}, and {ranks} ranks start on a node: {advice}", missing=True)
    return SurveyItem("devices", f"{seen}: that many ranks, each with its own GPU")


# The folders of a project: whether they are writable, and whether other nodes can see them.

SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "pvfs2", "afs", "cifs", "fuse.sshfs")


def survey_folders(given: str | None) -> Iterator[SurveyItem]:
    """Yield the folders of the project at `given`, the value of --root."""
    try:
        root = find_root(given)
    except UserError as error:
        yield SurveyItem("project root", str(error), missing=True)
        return
    written = {
        "results": find_results_folder(root),
        "figures": root / "figures",
        "datasets": root / "datasets",
    }
    for name, folder in written.items():
        existing = find_existing_parent(folder)
        writable = os.access(existing, os.W_OK)
        state = "writable" if writable else "not writable"
        yield SurveyItem(name, f"{state}, {describe_file_system(existing)}", missing=not writable)


def find_existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def describe_file_system(folder: Path, mounts: Path | None = None) -> str:
    """Return the type of the file system of a folder, and whether other nodes share it."""
    mount = find_mount(folder.resolve(), mounts)
    if mount is None:
        return "on an unknown file system"
    seen = "which nodes share" if mount.kind.startswith(SHARED) else "which other nodes may not see"
    return f"on {mount.kind}, {seen}"


# Slurm, as seen from a login node or from inside a job.

SHORTEST_MEMORY = 60
"""Seconds for which squeue must list an ended job, so that the executor sees how the job ended."""


def survey_slurm(given: str | None) -> Iterator[SurveyItem]:
    """Yield the cluster, and what the site and its machine card need."""
    if shutil.which("srun") is None:
        yield SurveyItem("Slurm", "none: runs are launched on this machine only")
    else:
        yield from _survey_cluster()
    try:
        root = find_root(given)
        yield from _check_site(root)
        yield from _check_card(root)
    except UserError as error:
        yield SurveyItem("site", str(error), missing=SITE_FILE.name in str(error))
        return
    yield from _check_profiles(root)


def _survey_cluster() -> Iterator[SurveyItem]:
    output = run_tool("scontrol", "show", "config")
    if output is None:
        yield SurveyItem(
            "Slurm", "its commands are installed, but no controller answers: jobs cannot be submitted"
        )
        return
    config = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", output, flags=re.MULTILINE))
    yield SurveyItem("Slurm", f"{config.get('SLURM_VERSION', '?')}, cluster {config.get('ClusterName', '?')}")
    partitions = (run_tool("sinfo", "-h", "-o", "%P %D nodes, %l") or "none").splitlines()
    yield SurveyItem("partitions", "; ".join(partitions))
    yield SurveyItem("accounts", ", ".join(list_accounts()) or "Slurm lists none: any name will do")
    memory = re.match(r"\d+", config.get("MinJobAge", ""))
    if memory and int(memory[0]) < SHORTEST_MEMORY:
        yield SurveyItem(
            "MinJobAge",
            f"{memory[0]} s: squeue forgets ended jobs so soon that an ended job whose outputs are not visible yet "
            "counts as failed",
        )
    if "SLURM_JOB_ID" in os.environ:
        yield _survey_job()


def list_accounts() -> list[str]:
    """Return the accounts that the user may use."""
    command = ("sacctmgr", "-n", "-P", "show", "associations", f"user={getpass.getuser()}", "format=account")
    return sorted(set((run_tool(*command) or "").split()))


def _survey_job() -> SurveyItem:
    number = os.environ["SLURM_JOB_ID"]
    nodes = run_tool("squeue", "-h", "-j", number, "-o", "%D nodes: %N") or "nodes unknown"
    left = read_seconds_left(os.environ)
    return SurveyItem(
        "job", f"{number} on {nodes}" + ("" if left is None else f", {left / 60:.0f} min for runs")
    )


def _check_site(root: Path) -> Iterator[SurveyItem]:
    site = load_site(root)
    if site == Site():
        yield SurveyItem(
            "site", f"{SITE_FILE} sets nothing: jobs follow the machine cards, under the account `unnamed`"
        )
        return
    keys = {key: value for key, value in site.model_dump().items() if value is not None}
    yield SurveyItem("site", ", ".join(f"{key} {value}" for key, value in keys.items()))
    if site.machine and shutil.which("sinfo"):
        yield from _check_card_on_cluster(root, site.machine, site)
    elif site.machine and load_slurm(root, site.machine, site) is None:
        yield SurveyItem("machine", f"the card {site.machine} has no Slurm: its runs have one node each")
    known = list_accounts() if shutil.which("srun") else []
    if known and site.account and site.account not in known:
        yield SurveyItem("account", f"{site.account} is not one of {', '.join(known)}", missing=True)


def _check_card(root: Path) -> Iterator[SurveyItem]:
    """Yield the interfaces, container and modules that the machine card of the site needs and this machine lacks."""
    site = load_site(root)
    slurm = load_slurm(root, site.machine, site) if site.machine else None
    if slurm is None:
        return
    there = [name for _, name in socket.if_nameindex()]
    absent = [name for name in slurm.interfaces if name not in there]
    with suppress(OSError):
        if not slurm.interfaces and socket.gethostbyname(socket.gethostname()).startswith("127."):
            loopback = (
                "the name of this machine resolves to the loopback, which other nodes cannot reach: name them"
            )
            yield SurveyItem(
                "interfaces", f"the card {site.machine} names none, and {loopback}", missing=True
            )
    if absent:
        place = f"not on this machine, which has {', '.join(there)}"
        yield SurveyItem(
            "interfaces",
            f"{', '.join(absent)} of the card {site.machine}: {place}",
            missing="SLURM_JOB_ID" in os.environ,
            doubtful="SLURM_JOB_ID" not in os.environ,
        )
    if slurm.container and not shutil.which(slurm.container.runtime):
        yield SurveyItem(
            "container", f"{slurm.container.runtime} of the card {site.machine} is not on the PATH", True
        )
    loaded = {module.partition("/")[0] for module in os.environ.get("LOADEDMODULES", "").split(":")}
    if unloaded := [module for module in slurm.modules if module.partition("/")[0] not in loaded]:
        yield SurveyItem(
            "modules",
            f"not loaded: `module load {' '.join(unloaded)}`, unless a container has them",
            doubtful=True,
        )


def _check_card_on_cluster(root: Path, machine: str, site: Site) -> Iterator[SurveyItem]:
    """Check the jobs of a machine card against the partitions, and whether all nodes can see the results folder."""
    slurm = load_slurm(root, machine, site)
    if slurm is None:
        yield SurveyItem("machine", f"the card {machine} has no Slurm: its runs have one node each")
        return
    partitions = parse_partitions(run_tool(*PARTITION_QUERY) or "")
    if not partitions:
        yield SurveyItem("partition", "not checked: no controller answers")
        return
    minutes = max(slurm.minutes, slurm.job_minutes) + OVERHEAD_MINUTES
    jobs = {
        "jobs": request_place(site, slurm) | request_job([slurm.ranks_per_node], slurm, minutes),
        "builds": request_build(site, slurm, None),
    }
    for name, asked in jobs.items():
        reason = explain_refusal(asked, partitions)
        fits = f"the partitions allow those of the card {machine}"
        yield SurveyItem(
            name, f"of the card {machine} would never start: {reason}" if reason else fits, bool(reason)
        )
    nodes = sum(
        kind.nodes for kind in partitions.get(slurm.partition or "", next(iter(partitions.values()))).kinds
    )
    place_of_runs = find_existing_parent(find_results_folder(root))
    if nodes > 1 and not describe_file_system(place_of_runs).endswith("which nodes share"):
        state = (
            f"{place_of_runs} is {describe_file_system(place_of_runs)}, and the partition has {nodes} nodes"
        )
        way_out = "`srun -N2 ls FOLDER` shows whether they see it; else move the checkout to a file system of all nodes"
        yield SurveyItem("shared folder", f"{state}: {way_out}", doubtful=True)


def _check_profiles(root: Path) -> Iterator[SurveyItem]:
    """Yield other Snakemake profiles named slurm, which the profile of the project hides."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for config in (user, Path("/etc/xdg")):
        own = config / "snakemake" / "slurm"
        if own.exists() and (root / "slurm").exists():
            yield SurveyItem("profile", f"{own} is hidden by the project's `slurm`: give its path to use it")
