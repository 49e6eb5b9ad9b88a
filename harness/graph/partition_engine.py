"""The libraries that partition, imported where they are needed: most runs need none of them."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from harness.errors import UserError

PACKAGES = {
    "metis": "pymetis",
    "metis-balanced": "pymetis",
    "g3-literal": "pymetis",
    "g3-guarded": "pymetis",
    "hypergraph": "mtkahypar",
}
"""By the method that needs them."""


def library(method: str) -> Any:
    """The module behind a method."""
    package = PACKAGES[method]
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(
            f"the partition {method} needs the package {package}, which cannot be imported ({error}). Install it: "
            f"pip install --constraint constraints.txt {package}. Without it there are block, random and file:NAME."
        ) from None


def engine(method: str) -> str:
    """The library of a method and its version; empty if the method is our own."""
    package = PACKAGES.get(method)
    return f"{package} {version(package)}" if package else ""
