"""Python, its packages, and the tools beside it."""

import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from harness.doctor.examined import Examined

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
