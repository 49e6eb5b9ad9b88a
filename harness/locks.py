"""Locks between processes, by the name of a file: one process alone, or several that share it.

The system frees the lock of a process that was killed, and NFS that of a machine that is gone, when its lease ends: a
file that was left behind holds nobody up. Some file systems have no locks; what is done under one must be sound without
it, and is at worst done twice.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Holds the lock; `wait` is called if somebody else does. False where there are no locks."""
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
    """Whether it could be had at once, by nobody else; then it is held."""
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield _is(file, path)


def _opened(path: Path) -> BinaryIO:
    """For reading and writing: NFS asks for the one to share a lock, and for the other to have it alone."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # whoever had the folder has just thrown it away
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
    """Whether the file is still the one of this name: whoever held the lock may have thrown it away."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
