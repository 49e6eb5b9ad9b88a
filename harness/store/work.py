"""A store in the making: a hidden folder beside it that survives its builder.

Every array in it is whole and has a record, or is not there; a builder that comes after one that was killed makes only
what is missing. A lock says that somebody is at it: others wait. What was asked for with other settings is thrown away.
It does not know what the arrays mean.
"""

import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from harness.errors import RunError
from harness.files import DATASETS, refusals, write_synced
from harness.store.manifest import FileRecord
from harness.store.writer import HashedFile, remove_folder

LOCK, SETTINGS = ".lock", "settings.json"
Say = Callable[[str], None]


def silent(_: str) -> None:
    """Says nothing."""


class Work:
    """What `working` hands out."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.scratch = path / "scratch"
        """For what is not part of the store."""
        self._path, self._folder = path, folder
        self._whole, self._notes = path / "whole", path / "notes"

    def put(self, name: str, array: NDArray[Any], **told: int) -> None:
        """An array as NAME.npy, unless it is there, and whatever else is to be remembered of it."""
        if self.noted(f"{name}.npy"):
            return
        with self.rows(name, array.shape, array.dtype, **told) as write:
            write(array)

    @contextmanager
    def rows(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, **told: int
    ) -> Iterator[Callable[[NDArray[Any]], None]]:
        """The same, some rows at a time."""
        path = self._whole / f"{name}.npy"
        partial = path.with_suffix(".part")
        with refusals(self._folder, DATASETS):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                hashed = HashedFile(file)
                head = {
                    "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                    "fortran_order": False,
                    "shape": shape,
                }
                np.lib.format.write_array_header_1_0(hashed, head)
                yield lambda rows: hashed.write_array(np.ascontiguousarray(rows, dtype))
            partial.rename(path)
        record = {"bytes": hashed.bytes, "sha256": hashed.sha256.hexdigest()}
        self.note(f"{name}.npy", record=record, **told)

    def note(self, name: str, **told: Any) -> None:
        """Something to be remembered, whole or not at all."""
        path = self._notes / f"{name}.json"
        with refusals(self._folder, DATASETS):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(told))
            partial.rename(path)

    def noted(self, name: str) -> dict[str, Any] | None:
        """What was noted, or None."""
        try:
            found: dict[str, Any] = json.loads((self._notes / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        return found

    def array(self, name: str) -> NDArray[Any]:
        """An array that was put, mapped."""
        return np.load(self._whole / f"{name}.npy", mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]

    def files(self) -> dict[str, FileRecord]:
        """The records of all arrays."""
        found = {}
        for path in sorted(self._notes.rglob("*.npy.json")):
            name = str(path.relative_to(self._notes)).removesuffix(".json")
            found[name] = FileRecord(**json.loads(path.read_bytes())["record"])
        return found

    def seal(self, name: str, text: str) -> None:
        """Writes the last file and gives the folder its name."""
        with refusals(self._folder, DATASETS):
            write_synced(self._whole / name, text.encode())
            remove_folder(self._folder)
            try:
                self._whole.rename(self._folder)
            except OSError as error:  # only where there are no locks can another have been first
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                if not (self._folder / name).exists():
                    raise RunError(f"{self._folder} is in the way and is no store. Remove it.") from None
        self.forget()

    def forget(self) -> None:
        """Throws everything away."""
        shutil.rmtree(self._path, ignore_errors=True)


@contextmanager
def working(folder: Path, settings: dict[str, Any], say: Say) -> Iterator[Work]:
    """The work on this folder, as far as somebody with the same settings has brought it; nobody else is at it."""
    with refusals(folder, DATASETS):
        folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.work"
    with _locked(path, folder, say) as mine:
        asked = json.dumps(settings, sort_keys=True).encode()
        with refusals(folder, DATASETS):
            if not _holds(mine / SETTINGS, asked):
                for other in mine.iterdir():
                    if other.name != LOCK:
                        shutil.rmtree(other) if other.is_dir() else other.unlink()
                write_synced(mine / SETTINGS, asked)
        yield Work(mine, folder)


@contextmanager
def _locked(path: Path, folder: Path, say: Say) -> Iterator[Path]:
    """The folder, made if need be, while this process holds its lock; one of its own where nobody can lock."""
    while True:
        with refusals(folder, DATASETS):
            path.mkdir(exist_ok=True)
            try:
                file = (path / LOCK).open("w")
            except FileNotFoundError:  # whoever had it has just finished
                continue
        with file:
            try:
                _wait_for(file, folder, say)
            except OSError:
                own = path.with_suffix(f".{secrets.token_hex(4)}.work")
                own.mkdir()
                try:
                    yield own
                finally:
                    shutil.rmtree(own, ignore_errors=True)
                return
            if _same(file, path / LOCK):
                yield path
                return


def _wait_for(file: Any, folder: Path, say: Say) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"somebody else is building {folder.name}: waiting for it")
        fcntl.flock(file, fcntl.LOCK_EX)


def _same(file: Any, path: Path) -> bool:
    """Whether the file is still the one of this name: whoever held the lock may have thrown it away."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data
