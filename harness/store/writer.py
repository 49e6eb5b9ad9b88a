"""A folder of arrays that appears whole or not at all.

Arrays go to a hidden sibling of the folder; `seal` writes the last file and renames it. Whatever stops the
writer, an error, a full disk or a signal, leaves nothing under the folder's name. It does not know what the
arrays mean.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from harness.errors import RunError
from harness.files import DATASETS, check_room, refusals
from harness.store.manifest import FileRecord

LOCK = ".lock"


class FolderWriter:
    """What `whole_folder` hands out: puts arrays, and seals when all are there."""

    def __init__(self, part: Path, folder: Path) -> None:
        self.files: dict[str, FileRecord] = {}
        self._part = part
        self._folder = folder

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Writes an array as NAME.npy."""
        path = self._part / f"{name}.npy"
        with refusals(self._folder, DATASETS):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                hashing = HashedFile(file)
                np.lib.format.write_array(hashing, np.ascontiguousarray(array), allow_pickle=False)
        self.files[f"{name}.npy"] = FileRecord(bytes=hashing.bytes, sha256=hashing.sha256.hexdigest())

    def seal(self, name: str, text: str) -> None:
        """Writes the last file and gives the folder its name; if another writer was first, theirs stays."""
        with refusals(self._folder, DATASETS):
            with (self._part / name).open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            (self._part / LOCK).unlink()
            try:
                self._part.rename(self._folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                if not (self._folder / name).exists():
                    raise RunError(f"{self._folder} is in the way and is no store. Remove it.") from None


@contextmanager
def whole_folder(folder: Path, needs: int) -> Iterator[FolderWriter]:
    """A writer of this folder, which must not exist and will take `needs` bytes."""
    part = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.part"
    unlocked = part.with_suffix(".new")
    try:
        with refusals(folder, DATASETS):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            check_room(folder, needs)
            unlocked.mkdir()
            lock = (unlocked / LOCK).open("w")
        with lock:
            _try_lock(lock)
            with refusals(folder, DATASETS):
                unlocked.rename(part)  # only now may others look at it: the lock is held
            yield FolderWriter(part, folder)
    finally:
        shutil.rmtree(unlocked, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder, if it is there; its name is free at once, and nobody meets it half removed."""
    aside = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.old"
    with refusals(folder, DATASETS):
        try:
            folder.rename(aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside, ignore_errors=True)  # what resists is swept by the next writer


class HashedFile:
    """A file that counts and hashes what passes through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.bytes += len(data)
        return self._file.write(data)

    def write_array(self, array: NDArray[Any]) -> None:
        """The bytes of a contiguous array."""
        data = array.reshape(-1).view(np.uint8).data
        self.sha256.update(data)
        self.bytes += data.nbytes
        self._file.write(data)


def _sweep(folder: Path) -> None:
    """Removes what was left when a writer or a remover was killed: a living writer holds its lock."""
    for old in folder.parent.glob(f".{folder.name}.*.old"):
        shutil.rmtree(old, ignore_errors=True)
    for part in folder.parent.glob(f".{folder.name}.*.part"):
        try:
            with (part / LOCK).open("r+") as lock:
                if _try_lock(lock):
                    shutil.rmtree(part, ignore_errors=True)
        except OSError:  # gone by now, or about to get its lock or its name
            continue


def _try_lock(file: Any) -> bool:
    """Whether this process now holds the lock. On a file system without locks nobody does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
