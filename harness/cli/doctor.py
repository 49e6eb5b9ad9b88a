"""harness doctor: what this machine can run, and what is missing."""

import argparse
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.cli.options import Verbs, add_verb, columns, show
from harness.errors import UserError
from harness.spec.root import project_root, results_folder

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


@dataclass(frozen=True)
class Examined:
    """One thing looked at. What is only useful is never missing."""

    what: str
    found: str
    missing: bool = False


def add_verbs(verbs: Verbs) -> None:
    add_verb(verbs, "doctor", _doctor, "Say what this machine can run, and what is missing.")


def _doctor(options: argparse.Namespace) -> int:
    examined = [_python(), *map(_package, NEEDED), *_machine(), *_tools(), *_folders(options.root)]
    rows = [("MISSING" if one.missing else "ok", one.what, one.found) for one in examined]
    show(options, [asdict(one) for one in examined], columns(rows))
    return 1 if any(one.missing for one in examined) else 0


def _python() -> Examined:
    return Examined("python", platform.python_version(), missing=sys.version_info < OLDEST)


def _package(name: str) -> Examined:
    try:
        return Examined(name, version(name))
    except PackageNotFoundError:
        return Examined(name, f"not installed: pip install {name}", missing=True)


def _machine() -> list[Examined]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = shutil.which("nvidia-smi") or shutil.which("rocm-smi")
    return [
        Examined("cores", f"{cores}: that many ranks run at full speed"),
        Examined("memory", f"{memory / 2**30:.0f} GiB"),
        Examined("GPU", "driver found" if gpu else "none: strategies run on CPU ranks over gloo"),
    ]


def _tools() -> list[Examined]:
    def found(tool: str, without: str) -> Examined:
        path = shutil.which(tool)
        return Examined(tool, "found" if path else f"none: {without}")

    return [
        found("git", "records will not say which commit they come from"),
        found("cc", "torch.compile cannot be used"),
        found("srun", "runs are launched on this machine only"),
    ]


def _folders(given: str | None) -> list[Examined]:
    try:
        root = project_root(given)
    except UserError as error:
        return [Examined("project root", str(error), missing=True)]
    folders = {"results": results_folder(root), "figures": root / "figures", "datasets": root / "datasets"}
    return [
        Examined(name, "may be written" if _writable(folder) else "may not be written", not _writable(folder))
        for name, folder in folders.items()
    ]


def _writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, takes files."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return os.access(there, os.W_OK)
