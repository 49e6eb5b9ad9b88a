"""Reads arrays in .npz files, also inside archives, in chunks: no array is ever entirely in memory.

An .npz file cannot be memory-mapped, and a compressed member cannot be read from the middle; but several readers can
read it from the beginning at once.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.base.files import (
    DATASETS,
    check_free_space,
    explain_os_errors,
    map_array,
    temporary_path,
)
from harness.base.locks import acquire_lock
from harness.graph.sources.archive import open_member
from harness.graph.sources.stream import Edges

COPY_BYTES = 1 << 24
"""The number of bytes copied at a time."""


class ArrayRef(NamedTuple):
    """An array in an .npz file, which may be a member of an archive."""

    path: Path
    members: tuple[str, ...]
    """The names of nested archives, then the name of the array without .npy."""

    def __str__(self) -> str:
        return f"{self.path} ({', '.join(self.members)})"


class ArrayHeader(NamedTuple):
    """The shape and the dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@contextmanager
def open_array(array: ArrayRef) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
    """Yield the header of an array, and a file positioned at its data."""
    with ExitStack() as stack:
        archive = stack.enter_context(ZipFile(array.path))
        for name in array.members[:-1]:
            inner = stack.enter_context(open_member(archive, name, array))
            archive = stack.enter_context(ZipFile(inner))
        file = stack.enter_context(open_member(archive, f"{array.members[-1]}.npy", array))
        version = np.lib.format.read_magic(cast(Any, file))
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise UserError(f"{array} has the array format {version}. Expected version 1.0 or 2.0.")
        shape, in_columns, dtype = readers[version](cast(Any, file))
        if dtype.hasobject or (in_columns and len(shape) > 1):
            raise UserError(
                f"{array} holds {dtype} in Fortran order or as objects. Expected numbers in C order."
            )
        yield ArrayHeader(shape, dtype), file


def read_header(array: ArrayRef) -> ArrayHeader:
    """Return the shape and the dtype of an array."""
    with open_array(array) as (header, _):
        return header


def read_in_chunks(array: ArrayRef, start: int, count: int, at_once: int) -> Iterator[NDArray[Any]]:
    """Yield `count` numbers from position `start`, in the order of the file, at most `at_once` at a time."""
    with open_array(array) as (header, file):
        skipped_bytes = start * header.dtype.itemsize
        for done in range(0, skipped_bytes, COPY_BYTES):
            _read_exactly(file, min(COPY_BYTES, skipped_bytes - done), array)
        for done in range(0, count, at_once):
            size = min(at_once, count - done) * header.dtype.itemsize
            yield np.frombuffer(_read_exactly(file, size, array), header.dtype)


def read_edges(
    ends: tuple[ArrayRef, ArrayRef], starts: tuple[int, int], edges: int, at_once: int
) -> Iterator[Edges]:
    """Yield edges by two readers: sources from the first array, targets from the second, from given positions."""
    readers = (
        read_in_chunks(array, start, edges, at_once) for array, start in zip(ends, starts, strict=True)
    )
    for sources, targets in zip(*readers, strict=True):
        yield sources.astype(np.int64), targets.astype(np.int64)


def read_array(array: ArrayRef) -> NDArray[Any]:
    """Return a small array."""
    header = read_header(array)
    count = int(np.prod(header.shape))
    parts = list(read_in_chunks(array, 0, count, max(count, 1)))
    return (parts[0] if parts else np.zeros(0, header.dtype)).reshape(header.shape)


def map_extracted(array: ArrayRef, path: Path) -> NDArray[Any]:
    """Map a large array from the file `path`, which the first reader extracts."""
    if not path.exists():
        lock, part = path.with_name(f".{path.name}.lock"), path.with_name(f"{path.name}.part")
        with explain_os_errors(path, DATASETS), acquire_lock(lock) as is_locked:
            if not path.exists():
                _extract(array, path, part if is_locked else temporary_path(path))
    return map_array(path, "r")


def _extract(array: ArrayRef, path: Path, partial: Path) -> None:
    with open_array(array) as (header, file):
        check_free_space(path, int(np.prod(header.shape)) * header.dtype.itemsize)
        extracted = np.lib.format.open_memmap(partial, "w+", header.dtype, header.shape)
        data = extracted.reshape(-1).view(np.uint8)
        for start in range(0, data.size, COPY_BYTES):
            part = data[start : start + COPY_BYTES]
            part[:] = np.frombuffer(_read_exactly(file, part.size, array), np.uint8)
        extracted.flush()
        partial.rename(path)


def _read_exactly(file: IO[bytes], size: int, array: ArrayRef) -> bytes:
    """Return the next `size` bytes of an array."""
    data = file.read(size)
    if len(data) < size:
        raise UserError(f"{array} ends too early: download the archive again.")
    return data
