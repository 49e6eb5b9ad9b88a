"""A store in the making: a hidden folder beside it that survives its builder.

Every array in it is whole and has a record, or is not there; a builder that comes after one that was killed makes only
what is missing. One builder is at it alone and others wait, or several jobs are at it together, each at its share. What
was asked for with other settings is thrown away by whoever is alone. It does not know what the arrays mean.

Nothing here is found by listing a folder: what other machines have put there may not be listed yet.
"""

import errno
import json
import random
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from harness.errors import RunError
from harness.files import DATASETS, mapped_array, refusals, sibling, sweep, write_synced
from harness.locks import locked, locked_if_free
from harness.store.manifest import FileRecord
from harness.store.writer import HashedFile, remove_folder

LOCK, SETTINGS, PARTIAL = ".lock", "settings.json", "partial"
TRIES = 50
"""To be the one who begins, among jobs that begin together: some seconds."""
Say = Callable[[str], None]


def silent(_: str) -> None:
    """Says nothing."""


class Work:
    """What `working` hands out."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.scratch = path / "scratch"
        """For what is not part of the store."""
        self._path, self._folder = path, folder
        self._whole, self._notes, self._partial = path / "whole", path / "notes", path / PARTIAL

    def put(self, name: str, array: NDArray[Any], **told: Any) -> None:
        """An array as NAME.npy, unless it is there, and whatever else is to be remembered of it."""
        if self.noted(f"{name}.npy"):
            return
        with self.rows(name, array.shape, array.dtype, **told) as write:
            write(array)

    @contextmanager
    def rows(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, **told: Any
    ) -> Iterator[Callable[[NDArray[Any]], None]]:
        """The same, some rows at a time."""
        with self._whole_file(self._whole / f"{name}.npy") as file:
            hashed = HashedFile(file)
            head = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": shape,
            }
            np.lib.format.write_array_header_1_0(hashed, head)
            yield lambda rows: hashed.write_array(np.ascontiguousarray(rows, dtype))
        record = {"bytes": hashed.bytes, "sha256": hashed.sha256.hexdigest()}
        self.note(f"{name}.npy", record=record, **told)

    def aside(self, name: str, *arrays: NDArray[Any]) -> None:
        """The bytes of some arrays as a file of `scratch`."""
        with self._whole_file(self.scratch / name) as file:
            for array in arrays:
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def note(self, name: str, **told: Any) -> None:
        """Something to be remembered, whole or not at all."""
        with self._whole_file(self._notes / f"{name}.json") as file:
            file.write(json.dumps(told).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """What was noted, or None."""
        try:
            found: dict[str, Any] = json.loads((self._notes / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        return found

    def array(self, name: str) -> NDArray[Any]:
        """An array that was put, mapped; what is written into it stays in memory."""
        return mapped_array(self._whole / f"{name}.npy", "c")

    def files(self, names: Iterable[str]) -> dict[str, FileRecord]:
        """The records of these arrays, which are all there."""
        found = {}
        for name in names:
            told = self.noted(f"{name}.npy")
            assert told is not None, name
            found[f"{name}.npy"] = FileRecord(**told["record"])
        return found

    def alone_at(self, what: str) -> Any:
        """While this lasts, no other job is at it."""
        return locked(self._path / f".{what}.lock")

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
    def _whole_file(self, path: Path) -> Iterator[BinaryIO]:
        """A file that has its name only when it is whole; two that write the same one do each other no harm."""
        partial = sibling(self._partial / path.name)
        with refusals(self._folder, DATASETS):
            for folder in (path.parent, partial.parent):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("wb") as file:
                    yield file
                partial.rename(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


@contextmanager
def working(folder: Path, settings: dict[str, Any], say: Say, *, together: bool = False) -> Iterator[Work]:
    """The work on this folder, as far as those with the same settings have brought it.

    Nobody else is at it; or, with `together`, only others who say so too.
    """
    path, asked = _path_of(folder), json.dumps(settings, sort_keys=True).encode()
    wait = partial(say, f"somebody else is building {folder.name}: waiting for it")
    with ExitStack() as stack:
        if together:
            _join(stack, path, asked, wait)
        else:
            path = _alone(stack, path, asked, wait)
        with refusals(folder, DATASETS):
            sweep(path / PARTIAL)
        yield Work(path, folder)


def forget_if_idle(folder: Path) -> None:
    """Throws the work on a store away that somebody else has finished, unless others are still at it."""
    if folder.exists():
        _forget(folder)


def take_back(folder: Path) -> None:
    """Throws a store away, and the work on it, unless others are at it."""
    if _forget(folder):
        remove_folder(folder)


def _forget(folder: Path) -> bool:
    """Whether nobody is at work on a store; then nothing is left of earlier work."""
    for old in folder.parent.glob(f".{folder.name}.*.old"):
        shutil.rmtree(old, ignore_errors=True)
    path = _path_of(folder)
    if path.exists():
        with locked_if_free(path / LOCK) as free:
            if free:
                shutil.rmtree(path, ignore_errors=True)
            return free
    return True


def _path_of(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.work"


def _alone(stack: ExitStack, path: Path, asked: bytes, wait: Callable[[], None]) -> Path:
    """The folder, while this process holds its lock; one of its own where nobody can lock."""
    with refusals(path, DATASETS):
        if not stack.enter_context(locked(path / LOCK, wait=wait)):
            path = path.with_suffix(f".{secrets.token_hex(4)}.work")
            stack.callback(shutil.rmtree, path, ignore_errors=True)
        if not _holds(path / SETTINGS, asked):
            _begin(path, asked)
    return path


def _join(stack: ExitStack, path: Path, asked: bytes, wait: Callable[[], None]) -> None:
    """Shares the lock of the folder, with settings that are these."""
    for _ in range(TRIES):
        with ExitStack() as attempt, refusals(path, DATASETS):
            held = attempt.enter_context(locked(path / LOCK, shared=True, wait=wait))
            if not held and not (path / SETTINGS).exists():
                write_synced(path / SETTINGS, asked)
            if _holds(path / SETTINGS, asked):
                stack.enter_context(attempt.pop_all())
                return
        with refusals(path, DATASETS), locked_if_free(path / LOCK) as free:
            if free:
                _begin(path, asked)
                continue
        time.sleep(random.uniform(0.02, 0.2))
    raise RunError(
        f"others are at work in {path}, with another --memory or from other files. Give all jobs of a build the same, "
        "or wait for them to end."
    )


def _begin(path: Path, asked: bytes) -> None:
    """With nothing but the lock and the settings."""
    path.mkdir(exist_ok=True)
    for other in path.iterdir():
        if other.name != LOCK:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    write_synced(path / SETTINGS, asked)


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data
