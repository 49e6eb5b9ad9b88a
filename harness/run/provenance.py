"""Where a number comes from: code, machine, libraries, settings. Recorded with every run."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "numba",
    "torch-geometric",
    "pandas",
    "pyarrow",
    "parallel-gnn-harness",
)
SETTINGS = (
    "OMP_",
    "MKL_",
    "NUMBA_",
    "MALLOC_",
    "GLOO_",
    "NCCL_",
    "TORCH_",
    "SLURM_",
    "HARNESS_STEP",
    "CUDA_VISIBLE",
)


def provenance(root: Path) -> dict[str, Any]:
    """What can be told of this process and machine; `root` is the checkout whose commit is meant."""
    import torch

    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no")),
        "command": " ".join(sys.argv),
        "versions": {"python": platform.python_version(), **_versions()},
        "host": platform.node(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "allocator": {key: value for key, value in os.environ.items() if key.startswith("MALLOC_")},
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith(SETTINGS)},
        "load_average": os.getloadavg()[0],
    }


def _git(root: Path, *arguments: str) -> str | None:
    """What git says, or None where there is no git or no repository."""
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    """The processor's model name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
