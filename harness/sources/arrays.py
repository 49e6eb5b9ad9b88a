"""Arrays in .npz files, in archives too, read a part at a time: no array is ever whole in memory.

An .npz cannot be mapped, and a compressed member cannot be entered in the middle; but it can be read from its
beginning, by several readers at once.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.files import DATASETS, check_free_space, explain_os_errors, map_array, temporary_path
from harness.locks import acquire_lock
from harness.sources.archive import open_member
from harness.sources.stream import Edges

BLOCK = 1 << 24
"""Bytes copied at a time."""


class ArrayIn(NamedTuple):
    """An array, by its name in an .npz that is a file or a member of an archive."""

    path: Path
    members: tuple[str, ...]
    """Archives within each other; the last name is the array's, without .npy."""

    def __str__(self) -> str:
        return f"{self.path} ({', '.join(self.members)})"


class ArrayHead(NamedTuple):
    """The shape and the type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@contextmanager
def reading(array: ArrayIn) -> Iterator[tuple[ArrayHead, IO[bytes]]]:
    """The head of an array, and its bytes from the first number on."""
    with ExitStack() as stack:
        archive = stack.enter_context(ZipFile(array.path))
        for name in array.members[:-1]:
            inner = stack.enter_context(open_member(archive, name, array))
            archive = stack.enter_context(ZipFile(inner))
        file = stack.enter_context(open_member(archive, f"{array.members[-1]}.npy", array))
        version = np.lib.format.read_magic(cast(Any, file))
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise UserError(f"{array} has the array format {version}. Expected version 1.0 or 2.0.")
        shape, in_columns, dtype = read[version](cast(Any, file))
        if dtype.hasobject or (in_columns and len(shape) > 1):
            raise UserError(f"{array} holds {dtype} by columns or as objects. Expected numbers, row by row.")
        yield ArrayHead(shape, dtype), file


def head_of(array: ArrayIn) -> ArrayHead:
    """The shape and the type of an array."""
    with reading(array) as (head, _):
        return head


def part_of(array: ArrayIn, start: int, count: int, at_once: int) -> Iterator[NDArray[Any]]:
    """`count` numbers from the start-th on, in the order of the file, at most `at_once` at a time."""
    with reading(array) as (head, file):
        skipped = start * head.dtype.itemsize
        for done in range(0, skipped, BLOCK):
            _next(file, min(BLOCK, skipped - done), array)
        for done in range(0, count, at_once):
            size = min(at_once, count - done) * head.dtype.itemsize
            yield np.frombuffer(_next(file, size, array), head.dtype)


def edges_of(
    ends: tuple[ArrayIn, ArrayIn], starts: tuple[int, int], edges: int, at_once: int
) -> Iterator[Edges]:
    """Edges by two readers side by side: sources from a number of the first array on, targets of the second."""
    readers = (part_of(array, start, edges, at_once) for array, start in zip(ends, starts, strict=True))
    for sources, targets in zip(*readers, strict=True):
        yield sources.astype(np.int64), targets.astype(np.int64)


def whole_array(array: ArrayIn) -> NDArray[Any]:
    """All of a small array."""
    head = head_of(array)
    count = int(np.prod(head.shape))
    parts = list(part_of(array, 0, count, max(count, 1)))
    return (parts[0] if parts else np.zeros(0, head.dtype)).reshape(head.shape)


def mapped(array: ArrayIn, beside: Path) -> NDArray[Any]:
    """A large array, mapped from a file of its own, which the first reader makes."""
    if not beside.exists():
        with (
            explain_os_errors(beside, DATASETS),
            acquire_lock(beside.with_name(f".{beside.name}.lock")) as held,
        ):
            if not beside.exists():
                _extract(
                    array, beside, beside.with_name(f"{beside.name}.part") if held else temporary_path(beside)
                )
    return map_array(beside, "r")


def _extract(array: ArrayIn, beside: Path, partial: Path) -> None:
    with reading(array) as (head, file):
        check_free_space(beside, int(np.prod(head.shape)) * head.dtype.itemsize)
        made = np.lib.format.open_memmap(partial, "w+", head.dtype, head.shape)
        room = made.reshape(-1).view(np.uint8)
        for start in range(0, room.size, BLOCK):
            part = room[start : start + BLOCK]
            part[:] = np.frombuffer(_next(file, part.size, array), np.uint8)
        made.flush()
        partial.rename(beside)


def _next(file: IO[bytes], size: int, array: ArrayIn) -> bytes:
    """The next `size` bytes of an array."""
    data = file.read(size)
    if len(data) < size:
        raise UserError(f"{array} ends too early: download the archive again.")
    return data
