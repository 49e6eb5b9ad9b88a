"""Where child processes find modules: those of a test, this checkout, and the packages of this Python."""

import os
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def with_python_path(*folders: Path, **settings: str) -> dict[str, str]:
    """Return this process's environment with `folders` before its own PYTHONPATH, and with `settings`.

    The old entries stay: where nothing can be installed, they lead to the packages.
    """
    entries = map(str, folders)
    path = {"PYTHONPATH": os.pathsep.join([*entries, *filter(None, [os.environ.get("PYTHONPATH")])])}
    return {**os.environ, **path, **settings}


def folders_of_packages() -> list[Path]:
    """Return the folders in which this Python finds packages, without this checkout."""
    carried = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages") or entry in carried]
    return [folder for folder in folders if folder.is_dir() and folder.resolve() != CHECKOUT]
