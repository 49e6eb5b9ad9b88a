"""Atomic writes of files and folders: written under a temporary name, synced, then renamed.

Errors of the operating system, such as a full disk or a read-only folder, are converted to readable errors.
"""

import errno
import hashlib
import os
import platform
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from uuid import uuid4

from harness.base.errors import FORBIDDEN, FULL, RunError, UserError, find_way_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER_LOCK = threading.Lock()

IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}

RESULTS = "choose another place (--out, HARNESS_RESULTS)"
DATASETS = "choose another place (HARNESS_DATASETS)"
"""What to do about an error, by what is written."""
KEPT = "Nothing of it was kept, and what was there before is unchanged."


def check_replaceable(path: Path, is_own: Callable[[Path], object], what: str) -> None:
    """Raise UserError if a file exists that the harness did not write: nobody's own file is replaced.

    `is_own` returns something true for a file that is `what`; it may raise UserError for another.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    with suppress(UserError, OSError):
        if is_own(path):
            return
    raise UserError(f"{path} exists and is not {what}, so it stays. Move it away, or name another file.")


def write_text(path: Path, text: str, way_out: str = RESULTS) -> None:
    """Write `text` to the file `path` atomically."""
    replace_files({path: text.encode()}, way_out)


def replace_files(files: Mapping[Path, bytes], way_out: str = RESULTS) -> None:
    """Replace several files together: none is renamed into place before all are on disk.

    A file that already has the same content keeps its modification time, so that Snakemake sees no change. Leftovers of
    killed writers are removed from the folders.
    """
    for folder in {path.parent for path in files}:
        remove_leftovers(folder)
    changed = {path: data for path, data in files.items() if not has_content(path, data)}
    partial = {path: temporary_path(path) for path in changed}
    try:
        for path, data in changed.items():
            with explain_os_errors(path, way_out):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_synced(partial[path], data)
        for path in changed:
            with explain_os_errors(path, way_out):
                partial[path].replace(path)
        for folder in {path.parent for path in changed}:
            sync_folder(folder)
    finally:
        for path in partial.values():
            with suppress(OSError):
                path.unlink()


@contextmanager
def atomic_folder(
    folder: Path, last: str, way_out: str = RESULTS, *, replace: bool = False
) -> Iterator[Path]:
    """Yield a hidden folder to fill, and rename it to `folder` at the end of the block. On an error, remove it.

    `last` is the file that is written last: a folder that contains it is complete.
    """
    partial = temporary_path(folder)
    with explain_os_errors(folder, way_out):
        remove_leftovers(folder.parent)
        try:
            partial.mkdir(parents=True)
            yield partial
            publish_folder(partial, folder, last, replace=replace)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def publish_folder(partial: Path, folder: Path, last: str, *, replace: bool) -> None:
    """Rename a complete folder to `folder`. If another writer was first, its folder is kept.

    With `replace`, an older folder is moved away first. It is restored if the new folder cannot be renamed, or if a
    signal ends this process.
    """
    assert (partial / last).is_file(), f"{partial} has no {last}"
    sync_folder(partial)
    while True:
        aside = temporary_path(folder)
        try:
            if replace:
                with suppress(FileNotFoundError):
                    folder.rename(aside)
            partial.rename(folder)
            break
        except BaseException as error:
            with suppress(OSError):
                aside.rename(folder)
            if not isinstance(error, OSError) or error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        if not (folder / last).exists():
            raise RunError(f"{folder} is in the way: it has no {last}. Remove it.")
        if not replace:
            break
        # Another writer was faster, so its folder is moved away in the next attempt.
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)
    sync_folder(folder.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder if it exists. It is renamed first, so that no reader sees a part of it."""
    aside = temporary_path(folder)
    with suppress(FileNotFoundError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)  # a later `remove_leftovers` removes what could not be deleted


class HashedFile:
    """A file that counts and hashes the bytes written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return self._file.write(data)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it to disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Sync a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk, if the file system supports it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file. Raises OSError for pipes and devices, which may never end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Read a file. Raises OSError for more than `max_bytes`, and for pipes and devices, which may never end."""
    with open_regular_file(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return data


def read_tail(path: Path, max_bytes: int) -> str:
    """Return the last `max_bytes` of a file as text, or an empty string without a file. Logs may exceed the memory."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - max_bytes, 0))
            return file.read(max_bytes).decode(errors="replace")
    except FileNotFoundError:
        return ""


def read_head(path: Path, max_bytes: int) -> str:
    """Return the first `max_bytes` of a file as text."""
    with path.open("rb") as file:
        return file.read(max_bytes).decode(errors="replace")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def list_complete_folders(under: Path) -> list[Path]:
    """Return the complete folders in a folder, sorted. Hidden folders are unfinished."""
    return sorted(path for path in under.glob("[!.]*") if path.is_dir())


def temporary_path(path: Path) -> Path:
    """Return a new hidden name in the same folder, from which a rename to `path` stays on one file system."""
    return path.with_name(f".{path.name}.{owner_tag()}.{uuid4().hex[:8]}.part")


# Leftovers of killed processes.
#
# The name of an unfinished file identifies the process that writes it. Process ids are only meaningful within one boot
# and PID namespace, and are reused, so the name contains a hash of these and the start time of the process.

OWNER = r"(?P<host>[^/\n]+)-(?P<realm>[0-9a-f]{8})-(?P<pid>[0-9]{1,9})-(?P<start>[0-9]{1,20})"
UNFINISHED = re.compile(rf"\..+\.{OWNER}\.[0-9a-f]{{8}}\.part(\.json)?")
"""The names that `temporary_path` returns. A download keeps its state in a .json file next to such a file."""
FORGOTTEN = 30 * 24 * 3600.0
"""Seconds without a change after which a file counts as abandoned if its process cannot be checked."""


def owner_tag() -> str:
    """Return the tag of this process in the names of its unfinished files, by which `is_abandoned` checks on it."""
    return f"{platform.node()}-{_pid_namespace()}-{os.getpid()}-{process_start_ticks(os.getpid()) or 0}"


def scratch_names(prefix: str) -> re.Pattern[str]:
    """Return the pattern of temporary files and folders that processes name with `prefix` and `owner_tag`."""
    return re.compile(rf"{re.escape(prefix)}{OWNER}\.[a-z0-9_]{{8}}")


SCRATCH = "launch-"
"""The prefix of the launchers' temporary folders, next to the folder of runs."""
SCRATCH_NAMES = scratch_names(SCRATCH)


def remove_leftovers(folder: Path, names: re.Pattern[str] | None = None) -> None:
    """Remove the unfinished files and folders that dead processes left in a folder."""
    for path in list_leftovers(folder, names):
        if is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink()


def list_leftovers(folder: Path, names: re.Pattern[str] | None = None) -> list[Path]:
    """Return the unfinished files and folders in a folder, whether or not their processes are alive."""
    patterns = (names,) if names else (UNFINISHED, SCRATCH_NAMES)
    try:
        return [path for path in folder.iterdir() if any(each.fullmatch(path.name) for each in patterns)]
    except OSError:
        return []


def is_abandoned(path: Path) -> bool:
    """Return True if the process that made an unfinished file is dead.

    A process of another machine, container or boot cannot be checked: its file counts as abandoned once nothing in it
    has changed for a month.
    """
    owner = re.search(rf"(?:^|[.-]){OWNER}\.", path.name)
    if owner is None:
        return False
    if owner["realm"] != _pid_namespace():
        return _last_change(path) < time.time() - FORGOTTEN
    try:
        os.kill(int(owner["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # the process of another user, whose start time may be hidden
    start = process_start_ticks(int(owner["pid"]))
    return start is not None and start != int(owner["start"])


def _pid_namespace() -> str:
    """Return a short hash of the machine, its boot and the PID namespace, within which process ids are unique."""
    words = [platform.node()]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
    with suppress(OSError):
        words.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]


def process_start_ticks(pid: int) -> int | None:
    """Return the start time of a process in kernel ticks; None if it cannot be read."""
    try:  # the second field is the name of the program, which may contain anything
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _last_change(path: Path) -> float:
    """Return the last modification time of a file, or of anything in a folder; infinity if it cannot be read."""
    try:
        return max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    except OSError:
        return inf


# Files and folders in locations that other users can write to.


def is_own(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return True if `path` is of this kind (`stat.S_ISDIR`, `stat.S_ISREG`), not a link, and belongs to this user."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return kind(found.st_mode) and found.st_uid == os.getuid()


def is_plain_file(path: Path) -> bool:
    """Return True if `path` is a regular file: not a link, a folder, a pipe or a device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_private_folder(folder: Path) -> bool:
    """Return True if `folder` is owned by this user, not a link, and not writable by others."""
    return is_own(folder, stat.S_ISDIR) and not folder.lstat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def make_private_folder(folder: Path) -> Path:
    """Create `folder` if needed and return it.

    If it is not private, as when another user made it first, return a new folder with a random name next to it.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if is_private_folder(folder):
        return folder
    return Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))


@contextmanager
def explain_os_errors(path: Path, way_out: str = RESULTS, kept: str = KEPT) -> Iterator[None]:
    """Convert errors of the operating system while `path` is written to readable ones."""
    try:
        yield
    except OSError as error:
        raise _make_readable(error, path, way_out, kept) from error


@contextmanager
def explain_full_disk(folder: Path, way_out: str = RESULTS) -> Iterator[None]:
    """Convert the error of a full disk to one that names `folder`: the system gives no path when a write fails."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _make_readable(error, folder, way_out, KEPT) from error


def check_free_space(folder: Path, needs: int) -> None:
    """Raise a RunError if a folder will not fit on the disk. The folder need not exist yet."""
    free = _free_bytes(folder)
    if free is not None and free < needs:
        raise RunError(
            f"{folder.parent} has {free:,} bytes free, but {folder.name} needs {needs:,}. Free some, or {DATASETS}."
        )


def _free_bytes(path: Path) -> int | None:
    """Return the free bytes of the disk on which `path` would be created; None if no parent of it is a folder."""
    parent = next((parent for parent in path.absolute().parents if parent.is_dir()), None)
    return None if parent is None else shutil.disk_usage(parent).free


def has_content(path: Path, data: bytes) -> bool:
    """Return True if a file exists and has this content."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _make_readable(error: OSError, path: Path, way_out: str, kept: str) -> UserError | RunError:
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return RunError(
            f"{path} could not be written: {reason}{_describe_free_space(path)}. {kept} Free some space or {way_out}, "
            "then repeat."
        )
    if error.errno in FORBIDDEN:
        return UserError(
            f"{path} cannot be written: {reason}{_describe_place(error, path)}. Nothing was changed. Make the folder "
            f"writable, or {way_out}."
        )
    if error.errno in IN_THE_WAY:
        return UserError(
            f"{path} cannot be written: something of another kind is in the way{_describe_place(error, path)} "
            f"({reason}). Move it, or {way_out}."
        )
    _, more = find_way_out(error) or (RunError, "")
    return RunError(f"{path} could not be written: {reason}. {kept} {more}".rstrip())


def _describe_place(error: OSError, path: Path) -> str:
    """Return ` at PATH` for the path in an error, or an empty string if it is `path` itself."""
    return f" at {error.filename}" if error.filename not in (None, str(path)) else ""


def _describe_free_space(path: Path) -> str:
    free = _free_bytes(path)
    return "" if free is None else f" ({free / 2**20:.0f} MiB are free there)"


def map_array(path: Path, mode: Literal["r", "c"]) -> "NDArray[Any]":
    """Memory-map the array in an .npy file: read-only, or copy-on-write ("c").

    Python 3.11 fails if two threads parse headers at once ("AST constructor recursion depth mismatch"), hence the lock.
    """
    import numpy as np

    with _HEADER_LOCK:
        return np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[no-any-return]
