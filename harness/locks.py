"""Locks between processes, by the name of a file: one process holds a lock alone, or several share the lock.

The system frees the lock of a process that was killed, and NFS the lock of a machine that is gone, when its lease ends:
a file that was left behind blocks nobody. Some file systems have no locks; work under a lock must be sound without the
lock, and is at worst done twice.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Holds the lock; `wait` is called if another process holds it. Yields False on a file system without locks."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        with _opened(path) as file:
            held = _take(file, kind, wait)
            if held and not _is(file, path):
                continue
            try:
                yield held
            finally:
                if not shared and _is(file, path):
                    path.unlink(missing_ok=True)
            return


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Holds the lock if no other process does, and yields whether this succeeded."""
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield _is(file, path)


def _opened(path: Path) -> BinaryIO:
    """Opens the file for reading and writing: NFS needs reading for a shared lock, and writing for an exclusive one."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process has just removed the folder
            return path.open("a+b")


def _take(file: BinaryIO, kind: int, wait: Callable[[], None]) -> bool:
    try:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, kind)
    except OSError:
        return False
    return True


def _is(file: BinaryIO, path: Path) -> bool:
    """True if the path still names this open file: the last holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class Turn:
    """The turn of one process among those that open the same file: they work one after the other.

    A file system without locks lets all of them work at once.
    """

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self._mine = False

    def take(self) -> None:
        if not self._mine:
            self._mine = True
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX)

    def give(self) -> None:
        if self._mine:
            self._mine = False
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the turn away for good, and closes the file."""
        self.give()
        self._file.close()
