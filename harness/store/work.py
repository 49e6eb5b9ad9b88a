"""An unfinished store: a hidden folder beside the store's place that survives its builder.

Every array in it is whole and has a record, or is absent; a builder that follows one that was killed makes only the
missing arrays. One builder works alone and others wait, or several jobs work together, each on its share. Work of
other settings is discarded by a builder that is alone. The meaning of the arrays is not known in this module.

Nothing relies on listing a folder: files that another machine has written may not be listed yet.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from harness.errors import RunError, UserError
from harness.files import (
    DATASETS,
    HashedFile,
    explain_os_errors,
    map_array,
    publish_folder,
    remove_folder,
    remove_leftovers,
    temporary_path,
    write_synced,
)
from harness.locks import acquire_lock, file_system, has_locks, try_lock
from harness.store.manifest import FileRecord

LOCK, SETTINGS, PARTIAL = ".lock", "settings.json", "partial"
TRIES = 50
"""Attempts to join the work, while jobs that begin together agree on the one that begins: some seconds."""
Say = Callable[[str], None]


def silent(_: str) -> None:
    """Says nothing."""


class Work:
    """The unfinished store that `working` yields."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.scratch = path / "scratch"
        """The folder of files that are no part of the store."""
        self._path, self._folder = path, folder
        self._whole, self._notes, self._partial = path / "whole", path / "notes", path / PARTIAL

    def put(self, name: str, array: NDArray[Any], **attributes: Any) -> None:
        """Writes an array as NAME.npy, unless the array is whole already, and notes its attributes."""
        if self.noted(f"{name}.npy"):
            return
        with self.rows(name, array.shape, array.dtype, **attributes) as write:
            write(array)

    @contextmanager
    def rows(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, **attributes: Any
    ) -> Iterator[Callable[[NDArray[Any]], int]]:
        """Yields a function that writes the next rows of the array NAME.npy; notes its attributes at the end."""
        with self._whole_file(self._whole / f"{name}.npy") as file:
            hashed = HashedFile(file)
            head = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": shape,
            }
            np.lib.format.write_array_header_1_0(hashed, head)
            yield lambda rows: hashed.write(_bytes_of(np.ascontiguousarray(rows, dtype)))
        record = {"bytes": hashed.bytes, "sha256": hashed.sha256.hexdigest()}
        self.note(f"{name}.npy", record=record, **attributes)

    def aside(self, name: str, *arrays: NDArray[Any]) -> None:
        """Writes the bytes of some arrays as a file of `scratch`."""
        with self._whole_file(self.scratch / name) as file:
            for array in arrays:
                file.write(_bytes_of(np.ascontiguousarray(array)))

    def note(self, name: str, **attributes: Any) -> None:
        """Keeps some attributes under a name, whole or not at all."""
        with self._whole_file(self._notes / f"{name}.json") as file:
            file.write(json.dumps(attributes).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """The attributes that `note` kept under a name, or None."""
        try:
            attributes: dict[str, Any] = json.loads((self._notes / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        return attributes

    def array(self, name: str) -> NDArray[Any]:
        """A whole array, mapped; changes of its values stay in memory."""
        return map_array(self._whole / f"{name}.npy", "c")

    def files(self, names: Iterable[str]) -> dict[str, FileRecord]:
        """The records of these arrays, which are all whole."""
        records = {}
        for name in names:
            attributes = self.noted(f"{name}.npy")
            assert attributes is not None, name
            records[f"{name}.npy"] = FileRecord(**attributes["record"])
        return records

    def locked(self, part: str) -> Any:
        """Holds the lock of a part of the work: no other job makes this part at the same time."""
        return acquire_lock(self._path / f".{part}.lock")

    def seal(self, name: str, text: str) -> None:
        """Writes the last file, NAME, and gives the folder its place."""
        with explain_os_errors(self._folder, DATASETS):
            write_synced(self._whole / name, text.encode())
            publish_folder(self._whole, self._folder, name, replace=True)
        self.discard()

    def discard(self) -> None:
        """Removes all work."""
        shutil.rmtree(self._path, ignore_errors=True)

    @contextmanager
    def _whole_file(self, path: Path) -> Iterator[BinaryIO]:
        """Yields a file that gets its name once whole; two writers of one file do each other no harm."""
        unfinished = temporary_path(self._partial / path.name)
        with explain_os_errors(self._folder, DATASETS):
            for folder in (path.parent, unfinished.parent):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                with unfinished.open("wb") as file:
                    yield file
                unfinished.rename(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


@contextmanager
def working(folder: Path, settings: dict[str, Any], say: Say, *, together: bool = False) -> Iterator[Work]:
    """Yields the work on this folder, with everything that earlier builders of the same settings made.

    No other process works on the folder; or, with `together`, only other jobs of the same build.
    """
    path, asked = _path_of(folder), json.dumps(settings, sort_keys=True).encode()
    wait = partial(say, f"somebody else is building {folder.name}: waiting for it")
    with ExitStack() as stack:
        if together:
            _join(stack, path, asked, wait)
        else:
            path = _alone(stack, path, asked, wait)
        with explain_os_errors(folder, DATASETS):
            remove_leftovers(path / PARTIAL)
        yield Work(path, folder)


def discard_if_idle(folder: Path) -> None:
    """Removes the leftover work on a finished store, unless another process still holds it."""
    if folder.exists():
        _discard(folder)


def remove_store(folder: Path) -> None:
    """Removes a store and its work, unless another process holds the work."""
    if _discard(folder):
        with explain_os_errors(folder, DATASETS):
            remove_folder(folder)


def _discard(folder: Path) -> bool:
    """Removes the work on a store; False if another process holds it."""
    remove_leftovers(folder.parent)
    path = _path_of(folder)
    if path.exists():
        with try_lock(path / LOCK) as free:
            if free:
                shutil.rmtree(path, ignore_errors=True)
            return free
    return True


def _path_of(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.work"


def _alone(stack: ExitStack, path: Path, asked: bytes, wait: Callable[[], None]) -> Path:
    """The folder, while this process holds its lock; on a file system without locks, a folder of its own."""
    with explain_os_errors(path, DATASETS):
        stack.callback(_remove_if_empty, path)
        if not stack.enter_context(acquire_lock(path / LOCK, wait=wait)):
            remove_leftovers(path.parent)  # which builders that were killed have left
            path = temporary_path(path)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
        if not _holds(path / SETTINGS, asked):
            _begin(path, asked)
    return path


def _join(stack: ExitStack, path: Path, asked: bytes, wait: Callable[[], None]) -> None:
    """Shares the lock of the folder, whose settings are these."""
    with explain_os_errors(path.parent, DATASETS):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not has_locks(path.parent):
            raise UserError(
                f"{path.parent} is on a file system without locks ({file_system(path)}), so jobs cannot share a build "
                f"there. Build without --share, or {DATASETS}."
            )
    for _ in range(TRIES):
        with ExitStack() as attempt, explain_os_errors(path, DATASETS):
            attempt.enter_context(acquire_lock(path / LOCK, shared=True, wait=wait))
            if _holds(path / SETTINGS, asked):
                stack.enter_context(attempt.pop_all())
                return
        with explain_os_errors(path, DATASETS), try_lock(path / LOCK) as free:
            if free:
                _begin(path, asked)
                continue
        time.sleep(random.uniform(0.02, 0.2))
    raise RunError(
        f"others are at work in {path}, with another --memory or from other files. Give all jobs of a build the same, "
        "or wait for them to end."
    )


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _begin(path: Path, asked: bytes) -> None:
    """Empties the folder except for its lock, and writes the settings."""
    path.mkdir(exist_ok=True)
    for other in path.iterdir():
        if other.name != LOCK:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    write_synced(path / SETTINGS, asked)


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data
