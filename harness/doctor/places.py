"""The folders of a project: whether they may be written, and whether other nodes see them."""

import os
from collections.abc import Iterator
from pathlib import Path

from harness.doctor.examined import Examined
from harness.errors import UserError
from harness.spec.root import project_root, results_folder

SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs", "pvfs2", "afs", "cifs", "fuse.sshfs")


def places(given: str | None) -> Iterator[Examined]:
    try:
        root = project_root(given)
    except UserError as error:
        yield Examined("project root", str(error), missing=True)
        return
    folders = {"results": results_folder(root), "figures": root / "figures", "datasets": root / "datasets"}
    for name, folder in folders.items():
        there = nearest(folder)
        writable = os.access(there, os.W_OK)
        told = "may be written" if writable else "may not be written"
        yield Examined(name, f"{told}, {file_system(there)}", missing=not writable)


def nearest(folder: Path) -> Path:
    """The folder, or the one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of file system, and what that means to jobs on other nodes."""
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    holding = [(point, kind) for _, point, kind, *_ in lines if folder.resolve().is_relative_to(point)]
    if not holding:
        return "on an unknown file system"
    kind = max(holding, key=lambda one: len(one[0]))[1]
    seen = "which nodes share" if kind.startswith(SHARED) else "which other nodes may not see"
    return f"on {kind}, {seen}"
