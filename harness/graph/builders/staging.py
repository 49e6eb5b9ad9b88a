"""The staging folder of a store: a hidden folder next to the store in which it is built, and which outlives a crash.

Every array in the folder is either complete, with saved attributes, or absent, so a builder that takes over from a
killed one writes only what is missing. Either one builder holds the folder exclusively while others wait, or several
jobs of one build share it. An exclusive builder discards work that was done with other settings. This module does not
know what the arrays mean.

Directory listings are not used, because files written by another machine may not be listed yet.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from harness.base.errors import RunError, UserError
from harness.base.files import (
    DATASETS,
    HashedFile,
    explain_os_errors,
    has_content,
    map_array,
    publish_folder,
    remove_folder,
    remove_leftovers,
    temporary_path,
    write_synced,
)
from harness.base.locks import acquire_lock, describe_mount, has_locks, try_lock
from harness.base.progress import Log
from harness.graph.store.manifest import FileRecord

LOCK, SETTINGS, PARTIAL = ".lock", "settings.json", "partial"
JOIN_ATTEMPTS = 50
"""Attempts to join a build, while jobs that start together agree on which one sets up the folder: a few seconds."""


class StagingFolder:
    """An unfinished store, as yielded by `open_staging`."""

    def __init__(self, path: Path, store: Path) -> None:
        self.scratch = path / "scratch"
        """Files that do not become part of the store."""
        self._path, self._store = path, store
        self._arrays, self._attributes, self._partial = path / "whole", path / "notes", path / PARTIAL

    def write_array(self, name: str, array: NDArray[Any], **attributes: Any) -> None:
        """Write an array as NAME.npy with its attributes, unless it is already complete."""
        if self.has(f"{name}.npy"):
            return
        with self.open_array(name, array.shape, array.dtype, **attributes) as write:
            write(array)

    @contextmanager
    def open_array(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, **attributes: Any
    ) -> Iterator[Callable[[NDArray[Any]], int]]:
        """Yield a function that appends rows to the array NAME.npy; save its attributes on exit."""
        with self._open_atomically(self._arrays / f"{name}.npy") as file:
            hashed = HashedFile(file)
            header = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": shape,
            }
            np.lib.format.write_array_header_1_0(hashed, header)
            yield lambda rows: hashed.write(_view_bytes(np.ascontiguousarray(rows, dtype)))
        record = {"bytes": hashed.bytes, "sha256": hashed.sha256.hexdigest()}
        self.save_attributes(f"{name}.npy", record=record, **attributes)

    def write_scratch(self, name: str, *arrays: NDArray[Any]) -> None:
        """Write the bytes of some arrays to one scratch file."""
        with self._open_atomically(self.scratch / name) as file:
            for array in arrays:
                file.write(_view_bytes(np.ascontiguousarray(array)))

    def save_attributes(self, name: str, **attributes: Any) -> None:
        """Save attributes under a name, atomically."""
        with self._open_atomically(self._attributes / f"{name}.json") as file:
            file.write(json.dumps(attributes).encode())

    def has(self, name: str) -> bool:
        """Return True if attributes were saved under this name."""
        return (self._attributes / f"{name}.json").exists()

    def load_attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes that were saved under a name."""
        attributes: dict[str, Any] = json.loads((self._attributes / f"{name}.json").read_bytes())
        return attributes

    def map_array(self, name: str) -> NDArray[Any]:
        """Map a complete array into memory. Changes to it are not written back."""
        return map_array(self._arrays / f"{name}.npy", "c")

    def get_file_records(self, names: Iterable[str]) -> dict[str, FileRecord]:
        """Return the sizes and checksums of these arrays, all of which must be complete."""
        return {f"{name}.npy": FileRecord(**self.load_attributes(f"{name}.npy")["record"]) for name in names}

    def lock(self, part: str) -> AbstractContextManager[bool]:
        """Hold the lock of one part of the build, so that no other job builds the same part."""
        return acquire_lock(self._path / f".{part}.lock")

    def publish(self, name: str, text: str) -> None:
        """Write the last file, NAME, and move the folder to its final place."""
        with explain_os_errors(self._store, DATASETS):
            write_synced(self._arrays / name, text.encode())
            publish_folder(self._arrays, self._store, name, replace=True)
        self.discard()

    def discard(self) -> None:
        """Remove the staging folder."""
        shutil.rmtree(self._path, ignore_errors=True)

    @contextmanager
    def _open_atomically(self, path: Path) -> Iterator[BinaryIO]:
        """Yield a file that is renamed to `path` once complete. Concurrent writers of one file do not interfere."""
        unfinished = temporary_path(self._partial / path.name)
        with explain_os_errors(self._store, DATASETS):
            for folder in (path.parent, unfinished.parent):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                with unfinished.open("wb") as file:
                    yield file
                unfinished.rename(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise


def _view_bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


@contextmanager
def open_staging(
    store: Path, settings: dict[str, Any], log: Log, *, shared: bool = False
) -> Iterator[StagingFolder]:
    """Yield the staging folder of a store, with everything that earlier builders with equal settings wrote.

    No other process uses the folder meanwhile; if `shared`, only other jobs of the same build do.
    """
    path, wanted = _get_staging_path(store), json.dumps(settings, sort_keys=True).encode()
    wait = partial(log, f"another process is building {store.name}: waiting for it")
    with ExitStack() as stack:
        if shared:
            _join_build(stack, path, wanted, wait)
        else:
            path = _take_over_build(stack, path, wanted, wait)
        with explain_os_errors(store, DATASETS):
            remove_leftovers(path / PARTIAL)
        yield StagingFolder(path, store)


def discard_idle_staging(store: Path) -> None:
    """Remove what is left of the staging folder of a finished store, unless another process holds it."""
    if store.exists():
        _discard_staging(store)


def remove_store(store: Path) -> None:
    """Remove a store and its staging folder, unless another process holds the staging folder."""
    if _discard_staging(store):
        with explain_os_errors(store, DATASETS):
            remove_folder(store)


def _discard_staging(store: Path) -> bool:
    """Remove the staging folder of a store; return False if another process holds it."""
    remove_leftovers(store.parent)
    path = _get_staging_path(store)
    if path.exists():
        with try_lock(path / LOCK) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)
            return is_free
    return True


def _get_staging_path(store: Path) -> Path:
    return store.parent / f".{store.name}.work"


def _take_over_build(stack: ExitStack, path: Path, settings: bytes, wait: Callable[[], None]) -> Path:
    """Lock the folder for this process and return it; on a file system without locks, return a private folder."""
    with explain_os_errors(path, DATASETS):
        stack.callback(_remove_if_empty, path)
        if not stack.enter_context(acquire_lock(path / LOCK, wait=wait)):
            remove_leftovers(path.parent)  # folders left by builders that were killed
            path = temporary_path(path)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
        if not has_content(path / SETTINGS, settings):
            _reset(path, settings)
    return path


def _join_build(stack: ExitStack, path: Path, settings: bytes, wait: Callable[[], None]) -> None:
    """Share the lock of the folder with other jobs that have the same settings."""
    with explain_os_errors(path.parent, DATASETS):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not has_locks(path.parent):
            raise UserError(
                f"{path.parent} is on a file system without locks ({describe_mount(path)}), so jobs cannot share a "
                f"build there. Build without --share, or {DATASETS}."
            )
    for _ in range(JOIN_ATTEMPTS):
        with ExitStack() as attempt, explain_os_errors(path, DATASETS):
            attempt.enter_context(acquire_lock(path / LOCK, shared=True, wait=wait))
            if has_content(path / SETTINGS, settings):
                stack.enter_context(attempt.pop_all())
                return
        with explain_os_errors(path, DATASETS), try_lock(path / LOCK) as is_free:
            if is_free:
                _reset(path, settings)
                continue
        time.sleep(random.uniform(0.02, 0.2))
    raise RunError(
        f"other jobs are using {path} with a different --memory or different source files. Use the same settings for "
        "all jobs of a build, or wait for the others to finish."
    )


def _remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _reset(path: Path, settings: bytes) -> None:
    """Remove everything in the folder except its lock, and write the settings."""
    path.mkdir(exist_ok=True)
    for other in path.iterdir():
        if other.name != LOCK:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    write_synced(path / SETTINGS, settings)
