"""The packages behind the partition methods. Each is imported when it is first needed: most runs need none."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from harness.base.errors import UserError

VERSION = 2
"""The version of the methods, raised whenever the same graph gets another partition."""
PACKAGES = {
    "metis": "pymetis",
    "metis-volume": "pymetis",
    "metis-balanced": "pymetis",
    "g3-literal": "pymetis",
    "g3-guarded": "pymetis",
    "hypergraph": "mtkahypar",
}
"""The package that each method needs."""

USE_ALL_THREADS = ("hypergraph",)
"""The methods that use all threads for one partition. Their library fails in a fork of a process that has used it."""


def import_library(method: str) -> Any:
    """Import the package of a method."""
    package = PACKAGES[method]
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(
            f"the partition {method} needs the package {package}, which cannot be imported ({error}). Install it: "
            "pip install 'parallel-gnn-harness[partition]'. Without it, use block, random or file:NAME."
        ) from None


def get_library_version(method: str) -> str:
    """Return the package of a method and its version; empty if it needs none."""
    package = PACKAGES.get(method)
    return f"{package} {version(package)}" if package else ""
