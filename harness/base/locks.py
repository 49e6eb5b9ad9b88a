"""File locks between processes: a lock is held exclusively by one process or shared by several.

The operating system releases the locks of a killed process, and NFS releases the locks of a lost machine when its lease
expires, so a lock file that is left behind does not block other processes. Some file systems do not support locks (NFS
without its lock daemon, Lustre mounted without `flock`), so work under a lock must be correct without it, and is at
worst done twice. Files that need a lock to be shared by the processes of a machine go to a local file system
(`find_lockable_path`).
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from harness.base.errors import UserError
from harness.base.files import is_private_folder

MEMORY = Path("/dev/shm")
RUNNING = Path(".snakemake") / "harness.lock"
"""The lock that a workflow and its jobs share, from the folder of the project."""
MOUNTS = Path("/proc/self/mountinfo")
"""The table of mounts, as described in proc_pid_mountinfo(5)."""


def has_locks(folder: Path) -> bool:
    """Return True if the file system of this folder supports locks."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return _lock_file(file, fcntl.LOCK_EX, lambda: None)


def find_lockable_path(path: Path) -> Path:
    """Return `path` if its file system supports locks, else a path on a local file system that does.

    All processes of this user and machine get the same answer. The other path is in a private folder, named like an
    unfinished file of the process that made the folder of `path`.
    """
    if has_locks(path.parent):
        return path
    places = (MEMORY, Path(tempfile.gettempdir()))
    owner = path.parent.name.rpartition(".")[0]
    digest = sha256(os.fsencode(path.absolute())).hexdigest()[:8]
    for place in places:
        folder = place / f"harness-{os.getuid()}-locks"
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_private_folder(folder) and has_locks(folder):
                return folder / f".{path.name}.{owner}.{digest}.part"
    raise UserError(
        f"{path.parent} is on a file system without locks ({describe_mount(path)}), and so are the local folders "
        f"({', '.join(map(str, places))}), or they are not writable. Ranks on one machine need a locked file to meet: "
        "set TMPDIR to a folder on a local disk, or choose other results (--out, HARNESS_RESULTS)."
    )


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    kind: str
    """Its type, such as `nfs4`."""


def find_mount(path: Path, mounts: Path | None = None) -> Mount | None:
    """Return the innermost mount that contains a path, or None if the table of mounts cannot be read."""
    found = None
    with suppress(OSError):
        for line in (mounts or MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            mount = Mount(point=before.split(" ")[4], kind=after.split(" ")[0])
            # A later mount hides an earlier one at the same point.
            is_inner = found is None or len(mount.point) >= len(found.point)
            if path.absolute().is_relative_to(mount.point) and is_inner:
                found = mount
    return found


def describe_mount(path: Path) -> str:
    """Return the type of the file system of a path and its mount point, as in `nfs4 at /home`."""
    mount = find_mount(path)
    return f"{mount.kind} at {mount.point}" if mount else "of unknown type"


@contextmanager
def acquire_lock(
    path: Path, *, shared: bool = False, wait: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Hold a lock; `wait` is called if another process holds it. Yields False if the file system has no locks."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        with _open_for_lock(path) as file:
            held = _lock_file(file, kind, wait)
            if held and not _is_same_file(file, path):
                continue
            try:
                yield held
            finally:
                if not shared and _is_same_file(file, path):
                    path.unlink(missing_ok=True)
            return


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold a lock unless another process holds it. Yields True if this process holds it."""
    with _open_for_lock(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield _is_same_file(file, path)


@contextmanager
def _open_for_lock(path: Path) -> Iterator[BinaryIO]:
    """Yield a lock file; release its lock at the end. A process that was forked meanwhile also has the file open."""
    with _open_lock_file(path) as file:
        try:
            yield file
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


def _open_lock_file(path: Path) -> BinaryIO:
    """Open a lock file for reading and writing: NFS needs reading for a shared lock, writing for an exclusive one."""
    while True:
        with suppress(FileNotFoundError):  # another process has just removed the folder
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                # mkdir looks only afterwards if a folder is in the way, which may have been removed by then.
                if stat.S_ISDIR(os.lstat(error.filename).st_mode):
                    continue
                raise
            return path.open("a+b")


def _lock_file(file: BinaryIO, kind: int, wait: Callable[[], None]) -> bool:
    """Lock a file; call `wait` first if another process holds the lock. Return False if there are no locks."""
    try:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, kind)
    except OSError:
        return False
    return True


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    """Return True if the path still names this open file. The last holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def hold_shared(path: Path) -> BinaryIO:
    """Hold a shared lock as long as the returned file is open, without waiting for an exclusive holder."""
    file = _open_lock_file(path)
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return file


def is_shared_by_others(file: BinaryIO) -> bool:
    """Return True if other processes hold a lock that this process holds, too."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        return False
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return False


class TurnLock:
    """A lock through which processes take turns. Without support for locks, all of them run at once."""

    def __init__(self, path: Path) -> None:
        self._file = _open_lock_file(path)
        self._is_held = False

    def acquire(self) -> None:
        if not self._is_held:
            self._is_held = True
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the turn for good and remove the file, which all others have opened by then."""
        self.release()
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)
