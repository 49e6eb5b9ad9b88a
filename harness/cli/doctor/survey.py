"""Surveys a machine. Each item says what to do: what to install or to correct, and what can be started here."""

import getpass
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from harness.base.children import run_tool
from harness.base.errors import EXTRAS, UserError, install_command
from harness.base.formatting import format_count
from harness.base.locks import find_mount
from harness.base.progress import Log
from harness.runtime.slurm.resources import (
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
from harness.spec.machine_card import Slurm
from harness.spec.root import find_results_folder, find_root

State = Literal["MISSING", "CHECK", "optional", "ok"]
"""MISSING ends runs; CHECK may, which only the user can judge; and optional items are for some tasks only."""


@dataclass(frozen=True)
class SurveyItem:
    """An item of the survey."""

    what: str
    advice: str
    state: State = "ok"


def survey_machine(given: str | None, report: Log) -> Iterator[SurveyItem]:
    """Yield all items. `given` is the value of --root, and `report` announces an item that takes long."""
    yield from survey_software()
    cores = len(os.sched_getaffinity(0))
    yield SurveyItem("cores", f"{cores}: start up to {format_count(cores, 'rank')} on them")
    yield from survey_gpus(report)
    yield from survey_folders(given)
    yield from survey_slurm(given)


# Python, its packages, and other tools.

NEEDED = ("torch", "numpy", "scipy", "numba", "pandas", "pyarrow", "pydantic", "pyyaml", "cyclopts", "rich")
"""The packages that the harness needs, by the names that pip knows."""
PURPOSES = {
    "plots": "figures and reports need it",
    "partition": "partitions by METIS or as a hypergraph need it",
    "ogb": "graphs of the Open Graph Benchmark need it",
    "pyg": "the strategy pyg and files of PyTorch Geometric need it",
    "slurm": "workflows need it, on the machine from which they are submitted",
}
"""The purpose of each extra. A machine may lack its packages, as compute nodes do."""
OLDEST = (3, 11)
TOOLS = {"git": "records name their commit", "g++": "scalegnn has fused kernels on CPUs"}
"""What a tool is good for."""
GPU_TOOLS = {"cc": "Triton compiles kernels for GPUs"}


def survey_software() -> Iterator[SurveyItem]:
    """Yield what to install."""
    if sys.version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield SurveyItem(
            "python", f"{platform.python_version()} is too old: install {oldest} or newer", "MISSING"
        )
    for name in NEEDED:
        if not _is_installed(name):
            yield SurveyItem(name, f"not installed: pip install {name}", "MISSING")
    for extra, packages in EXTRAS.items():
        if absent := [name for name in packages if find_spec(name) is None]:
            advice = f"not installed; only {PURPOSES[extra]}: {install_command(extra)}"
            yield SurveyItem(", ".join(absent), advice, "optional")
    yield from _survey_tools(TOOLS)


def _survey_tools(tools: dict[str, str]) -> Iterator[SurveyItem]:
    """Yield the tools that are not installed."""
    for tool, purpose in tools.items():
        if not shutil.which(tool):
            yield SurveyItem(tool, f"not found: with it, {purpose}. Install it", "optional")


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


# GPUs. Torch is only imported if a command of the driver shows a GPU.


def survey_gpus(report: Log) -> Iterator[SurveyItem]:
    """Yield whether ranks can compute on GPUs."""
    names = _list_gpus()
    if not names:
        yield SurveyItem("GPU", "no driver shows one: ranks compute on cores")
        return
    yield from _survey_tools(GPU_TOOLS)
    if not _is_installed("nvidia-ml-py"):
        advice = "not installed; only records of how busy a GPU is need it: pip install nvidia-ml-py"
        yield SurveyItem("nvidia-ml-py", advice, "optional")
    shown = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if reason := explain_unusable_gpus():
        yield SurveyItem("GPU", f"{shown}, but {reason}", "MISSING")
        return
    from harness.base.device import gpu_count

    devices = gpu_count()
    ranks = os.environ.get("SLURM_NTASKS_PER_NODE", "")
    if ranks.isdigit() and int(ranks) > devices:
        advice = f"torch sees {devices}, and {ranks} ranks start on a node: start fewer, or ask for more GPUs"
        yield SurveyItem("devices", advice, "MISSING")
    yield SurveyItem("GPU", f"{shown}: start up to {format_count(devices, 'rank')} with --machine local-gpu")
    report(f"testing {format_count(devices, 'GPU')}, about a minute")
    yield _test_gpus(devices)


def _list_gpus() -> list[str]:
    """Return the names of the GPUs that a driver shows."""
    by_nvidia = run_tool("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if by_nvidia:
        return by_nvidia.splitlines()
    lines = (run_tool("rocm-smi", "--showid") or "").splitlines()
    return ["GPU by rocm-smi"] * len({line.split(":")[0] for line in lines if line.startswith("GPU[")})


def explain_unusable_gpus() -> str:
    """Return why torch cannot use the GPUs that the driver shows; empty if it can."""
    import torch

    from harness.base.device import gpu_build, gpu_count
    from harness.comm.launchers import VISIBLE_DEVICES

    build = gpu_build()
    if build is None:
        return f"torch {torch.__version__} is built for neither CUDA nor ROCm: README.md says which torch to install"
    if gpu_count():
        return ""
    if hiding := [f"{name}={os.environ[name]}" for name in VISIBLE_DEVICES if name in os.environ]:
        return f"{' '.join(hiding)} hides them: unset it"
    return f"torch {torch.__version__} finds none: the driver may be too old for {build}, update it"


def _test_gpus(devices: int) -> SurveyItem:
    """Test all GPUs. A GPU that computes wrongly would make every run wrong."""
    from harness.cli.doctor.self_test import find_gpu_faults

    if wrong := find_gpu_faults(devices):
        return SurveyItem("self-test", f"do not use these GPUs: {'; '.join(wrong)}", "MISSING")
    of_all = f", sums over {devices} GPUs" if devices > 1 else ""
    return SurveyItem("self-test", f"kernels{of_all} and a small training are equal to float64 on the host")


# The folders of a project.

SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "pvfs2", "afs", "cifs", "fuse.sshfs")


def survey_folders(given: str | None) -> Iterator[SurveyItem]:
    """Yield the folders that cannot be written, of the project at `given`, the value of --root."""
    try:
        root = find_root(given)
    except UserError as error:
        yield SurveyItem("project root", str(error), "MISSING")
        return
    written = {
        "results": find_results_folder(root),
        "figures": root / "figures",
        "datasets": root / "datasets",
    }
    for name, folder in written.items():
        existing = find_existing_parent(folder)
        if not os.access(existing, os.W_OK):
            advice = f"{existing} is not writable: change its permissions, or set HARNESS_RESULTS, HARNESS_DATASETS"
            yield SurveyItem(name, advice, "MISSING")


def find_existing_parent(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def find_local_file_system(folder: Path, mounts: Path | None = None) -> str | None:
    """Return the type of the file system of a folder, or None if its nodes share it."""
    mount = find_mount(folder.resolve(), mounts)
    if mount is None:
        return "an unknown file system"
    return None if mount.kind.startswith(SHARED) else mount.kind


# Slurm, as seen from a login node or from inside a job.

SHORTEST_MEMORY = 60
"""Seconds for which squeue must list an ended job, so that the executor sees how the job ended."""


def survey_slurm(given: str | None) -> Iterator[SurveyItem]:
    """Yield what the cluster, the site and its machine card lack."""
    try:
        root = find_root(given)
    except UserError:
        return  # `survey_folders` says so
    try:
        site = load_site(root)
        if shutil.which("srun"):
            yield from _survey_cluster(site)
        yield from _check_machine(root, site)
    except UserError as error:
        yield SurveyItem("site", str(error), "MISSING")
    yield from _check_profiles(root)


def _survey_cluster(site: Site) -> Iterator[SurveyItem]:
    output = run_tool("scontrol", "show", "config")
    if output is None:
        yield SurveyItem("Slurm", "no controller answers: jobs cannot be submitted from here", "CHECK")
        return
    memory = re.search(r"^MinJobAge\s*=\s*(\d+)", output, flags=re.MULTILINE)
    if memory and int(memory[1]) < SHORTEST_MEMORY:
        advice = (
            f"squeue forgets ended jobs after {memory[1]} s. If jobs count as failed although their outputs appear, "
            f"ask the administrators for {SHORTEST_MEMORY} s"
        )
        yield SurveyItem("MinJobAge", advice, "CHECK")
    accounts = list_accounts()
    if site == Site():
        known = f" (one of {', '.join(accounts)})" if accounts else ""
        advice = f"{SITE_FILE} sets nothing: set `machine`, a card of your cluster, and `account`{known}"
        yield SurveyItem("site", advice, "CHECK")
    elif accounts and site.account and site.account not in accounts:
        yield SurveyItem("account", f"{site.account} is not one of {', '.join(accounts)}", "MISSING")


def list_accounts() -> list[str]:
    """Return the accounts that the user may use."""
    command = ("sacctmgr", "-n", "-P", "show", "associations", f"user={getpass.getuser()}", "format=account")
    return sorted(set((run_tool(*command) or "").split()))


def _check_machine(root: Path, site: Site) -> Iterator[SurveyItem]:
    """Yield what the machine card of the site needs and this machine or its partitions lack."""
    if site.machine is None:
        return
    slurm = load_slurm(root, site.machine, site)
    if slurm is None:
        advice = (
            f"the card {site.machine} has no key `slurm`: its runs have one node each, or name another card"
        )
        yield SurveyItem("machine", advice, "CHECK")
        return
    if shutil.which("sinfo"):
        yield from _check_card_on_cluster(root, site.machine, site, slurm)
    yield from _check_card(site.machine, slurm)


def _check_card(machine: str, slurm: Slurm) -> Iterator[SurveyItem]:
    """Yield the interfaces, container and modules that the machine card of the site needs and this machine lacks."""
    there = [name for _, name in socket.if_nameindex()]
    absent = [name for name in slurm.interfaces if name not in there]
    with suppress(OSError):
        if not slurm.interfaces and socket.gethostbyname(socket.gethostname()).startswith("127."):
            loopback = (
                "the name of this machine resolves to the loopback, which other nodes cannot reach: name them"
            )
            yield SurveyItem("interfaces", f"the card {machine} names none, and {loopback}", "MISSING")
    if absent:
        place = f"not on this machine, which has {', '.join(there)}"
        yield SurveyItem(
            "interfaces",
            f"{', '.join(absent)} of the card {machine}: {place}. Correct the card if its nodes lack them too",
            "MISSING" if "SLURM_JOB_ID" in os.environ else "CHECK",
        )
    if slurm.container and not shutil.which(slurm.container.runtime):
        yield SurveyItem(
            "container",
            f"load the module of {slurm.container.runtime}, which the card {machine} needs",
            "MISSING",
        )
    loaded = {module.partition("/")[0] for module in os.environ.get("LOADEDMODULES", "").split(":")}
    if unloaded := [module for module in slurm.modules if module.partition("/")[0] not in loaded]:
        yield SurveyItem(
            "modules",
            f"not loaded: `module load {' '.join(unloaded)}`, unless a container has them",
            "CHECK",
        )


def _check_card_on_cluster(root: Path, machine: str, site: Site, slurm: Slurm) -> Iterator[SurveyItem]:
    """Check the jobs of a machine card against the partitions, and whether all nodes can see the results folder."""
    partitions = parse_partitions(run_tool(*PARTITION_QUERY) or "")
    if not partitions:
        return  # no controller answers
    minutes = max(slurm.minutes, slurm.job_minutes) + OVERHEAD_MINUTES
    jobs = {
        "jobs": request_place(site, slurm) | request_job([slurm.ranks_per_node], slurm, minutes),
        "builds": request_build(site, slurm, None),
    }
    for name, asked in jobs.items():
        if reason := explain_refusal(asked, partitions):
            yield SurveyItem(name, f"of the card {machine} would never start: {reason}", "MISSING")
    nodes = sum(
        kind.nodes for kind in partitions.get(slurm.partition or "", next(iter(partitions.values()))).kinds
    )
    place_of_runs = find_existing_parent(find_results_folder(root))
    if nodes > 1 and (local := find_local_file_system(place_of_runs)):
        problem = f"{place_of_runs} is on {local}, and the partition has {nodes} nodes"
        way_out = "`srun -N2 ls FOLDER` shows whether they see it; else move the checkout to a file system of all nodes"
        yield SurveyItem("shared folder", f"{problem}: {way_out}", "CHECK")


def _check_profiles(root: Path) -> Iterator[SurveyItem]:
    """Yield other Snakemake profiles named slurm, which the profile of the project hides."""
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for config in (user, Path("/etc/xdg")):
        own = config / "snakemake" / "slurm"
        if own.exists() and (root / "slurm").exists():
            yield SurveyItem(
                "profile", f"{own} is hidden by the project's `slurm`: give its path to use it", "CHECK"
            )
