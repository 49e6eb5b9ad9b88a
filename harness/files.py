"""Files that are whole or absent: written beside their place, synced, then renamed into it.

What the operating system says about a full disk or a forbidden folder becomes an error for people here. It knows
nothing of what the bytes mean.
"""

import errno
import hashlib
import os
import platform
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from harness.errors import RunError, UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADERS = threading.Lock()

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}

RESULTS = "choose another place (--out, HARNESS_RESULTS)"
DATASETS = "choose another place (HARNESS_DATASETS)"
"""The ways out, by what is written."""
KEPT = "Nothing of it was kept, and what was there before is as it was."


def write_text(path: Path, text: str, way_out: str = RESULTS) -> None:
    """`text` as the file `path`, whole or not at all."""
    replace_files({path: text.encode()}, way_out)


def replace_files(files: Mapping[Path, bytes], way_out: str = RESULTS) -> None:
    """Several files that belong together: none is put in its place before all are on disk.

    A file that already holds its bytes is left alone, so that whoever goes by its date sees no change. What a writer
    that was killed left in their folders is removed.
    """
    for folder in {path.parent for path in files}:
        sweep(folder)
    changed = {path: data for path, data in files.items() if not _holds(path, data)}
    partial = {path: sibling(path) for path in changed}
    try:
        for path, data in changed.items():
            with refusals(path, way_out):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_synced(partial[path], data)
        for path in changed:
            with refusals(path, way_out):
                partial[path].replace(path)
        for folder in {path.parent for path in changed}:
            sync_folder(folder)
    finally:
        for path in partial.values():
            with suppress(OSError):
                path.unlink()


def write_synced(path: Path, data: bytes) -> None:
    """Writes and waits until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Waits until the disk has the bytes of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the disk has the names in a folder. Some file systems cannot be asked; that is no error."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_of(path: Path) -> str:
    """The checksum of a file, read some at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole_folders(under: Path) -> list[Path]:
    """The folders in a folder, in order; what is hidden is a writer's unfinished business."""
    return sorted(path for path in under.glob("[!.]*") if path.is_dir())


def sibling(path: Path) -> Path:
    """A hidden name of nobody's in the same folder: a rename from there stays on one file system."""
    return path.with_name(f".{path.name}.{owner_tag()}.{uuid4().hex[:8]}.part")


def owner_tag() -> str:
    """Names this process, for `sweep`: what it leaves behind when it is killed can be told from what is in use."""
    return f"{platform.node()}-{os.getpid()}"


def sweep(folder: Path) -> None:
    """Removes what processes of this machine that are gone had not finished writing in a folder."""
    for path in [*folder.glob(".*.part*"), *folder.glob("launch-*")]:
        owner = re.search(re.escape(platform.node()) + r"-(\d+)\.", path.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink()


@contextmanager
def refusals(path: Path, way_out: str = RESULTS, kept: str = KEPT) -> Iterator[None]:
    """Explains what goes wrong while `path` is written, and what is left of it."""
    try:
        yield
    except OSError as error:
        raise _explained(error, path, way_out, kept) from error


def check_room(folder: Path, needs: int) -> None:
    """Refuses to begin what will not fit. The folder need not exist yet."""
    there = next(place for place in folder.absolute().parents if place.is_dir())
    free = shutil.disk_usage(there).free
    if free < needs:
        raise RunError(
            f"{folder.parent} has {free:,} bytes free, but {folder.name} needs {needs:,}. Free some, or {DATASETS}."
        )


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _explained(error: OSError, path: Path, way_out: str, kept: str) -> UserError | RunError:
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return RunError(
            f"{path} could not be written: {reason}{_space_left(path)}. {kept} Free some space or {way_out}, then "
            "repeat."
        )
    if error.errno in FORBIDDEN:
        return UserError(
            f"{path} cannot be written: {reason}{_at(error, path)}. Nothing was changed. Make the folder writable, or "
            f"{way_out}."
        )
    if error.errno in IN_THE_WAY:
        return UserError(
            f"{path} cannot be written: something of another kind is in the way{_at(error, path)} ({reason}). Move it, "
            f"or {way_out}."
        )
    return RunError(f"{path} could not be written: {reason}. {kept}")


def _at(error: OSError, path: Path) -> str:
    """Where, if it is not where one would look."""
    return f" at {error.filename}" if error.filename not in (None, str(path)) else ""


def _space_left(path: Path) -> str:
    there = next((folder for folder in path.absolute().parents if folder.is_dir()), None)
    if there is None:
        return ""
    return f" ({shutil.disk_usage(there).free / 2**20:.0f} MiB are free there)"


def mapped_array(path: Path, mode: Literal["r", "c"]) -> "NDArray[Any]":
    """The array in an .npy file, mapped into memory: read-only, or writable in memory alone ("c").

    Python 3.11 parses the header wrongly if two threads parse at once ("AST constructor recursion depth mismatch"), so
    one does at a time.
    """
    import numpy as np

    with _HEADERS:
        return np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[no-any-return]
