"""Arrays in .npz files, in archives too, read a part at a time: none of them is ever whole in memory.

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
from harness.files import DATASETS, check_room, mapped_array, refusals, sibling
from harness.locks import locked
from harness.sources.stream import Edges

BLOCK = 1 << 24
"""Bytes copied at a time."""


class ArrayIn(NamedTuple):
    """An array, by its name in a .npz that is a file, or a member of an archive."""

    path: Path
    members: tuple[str, ...]
    """Of archives within each other; the last one is the array's name, without .npy."""

    @property
    def told(self) -> str:
        return f"{self.path} ({', '.join(self.members)})"


class Head(NamedTuple):
    """What an array is."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@contextmanager
def reading(array: ArrayIn) -> Iterator[tuple[Head, IO[bytes]]]:
    """What it is, and its numbers from the first on."""
    with ExitStack() as stack:
        archive = stack.enter_context(ZipFile(array.path))
        for name in array.members[:-1]:
            inner = stack.enter_context(archive.open(_known(archive, name, array)))
            archive = stack.enter_context(ZipFile(inner))
        file = stack.enter_context(archive.open(_known(archive, f"{array.members[-1]}.npy", array)))
        version = np.lib.format.read_magic(cast(Any, file))
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise UserError(f"{array.told} has the format {version} of arrays, which is not read.")
        shape, in_columns, dtype = read[version](cast(Any, file))
        if dtype.hasobject or (in_columns and len(shape) > 1):
            raise UserError(f"{array.told} holds {dtype} by columns or objects, which are not read.")
        yield Head(shape, dtype), file


def head_of(array: ArrayIn) -> Head:
    """What an array is."""
    with reading(array) as (head, _):
        return head


def part_of(array: ArrayIn, start: int, count: int, at_once: int) -> Iterator[NDArray[Any]]:
    """So many of its numbers, in the order in which they lie, from the start-th on."""
    with reading(array) as (head, file):
        _skip(file, start * head.dtype.itemsize, array)
        for done in range(0, count, at_once):
            size = min(at_once, count - done) * head.dtype.itemsize
            yield np.frombuffer(_next(file, size, array), head.dtype)


def edges_of(
    ends: tuple[ArrayIn, ArrayIn], starts: tuple[int, int], edges: int, at_once: int
) -> Iterator[Edges]:
    """So many edges, by two readers side by side: sources from a number of one array on, targets of the other."""
    readers = (part_of(array, start, edges, at_once) for array, start in zip(ends, starts, strict=True))
    for sources, targets in zip(*readers, strict=True):
        yield sources.astype(np.int64), targets.astype(np.int64)


def whole_array(array: ArrayIn) -> NDArray[Any]:
    """All of a small one."""
    head = head_of(array)
    count = int(np.prod(head.shape))
    found = list(part_of(array, 0, count, max(count, 1)))
    return (found[0] if found else np.zeros(0, head.dtype)).reshape(head.shape)


def mapped(array: ArrayIn, beside: Path) -> NDArray[Any]:
    """A large one as a file of its own, made by the first who asks, and mapped."""
    if not beside.exists():
        with refusals(beside, DATASETS), locked(beside.with_name(f".{beside.name}.lock")) as held:
            if not beside.exists():
                _extract(array, beside, beside.with_name(f"{beside.name}.part") if held else sibling(beside))
    return mapped_array(beside, "r")


def _extract(array: ArrayIn, beside: Path, partial: Path) -> None:
    with reading(array) as (head, file):
        check_room(beside, int(np.prod(head.shape)) * head.dtype.itemsize)
        made = np.lib.format.open_memmap(partial, "w+", head.dtype, head.shape)
        place = made.reshape(-1).view(np.uint8)
        for start in range(0, place.size, BLOCK):
            data = file.read(min(BLOCK, place.size - start))
            place[start : start + len(data)] = np.frombuffer(data, np.uint8)
            if len(data) < min(BLOCK, place.size - start):
                raise UserError(f"{array.told} ends too early: download the archive again.")
        made.flush()
        partial.rename(beside)


def _skip(file: IO[bytes], size: int, array: ArrayIn) -> None:
    while size:
        size -= len(_next(file, min(BLOCK, size), array))


def _next(file: IO[bytes], size: int, array: ArrayIn) -> bytes:
    """So many of its bytes."""
    data = file.read(size)
    if len(data) < size:
        raise UserError(f"{array.told} ends too early: download the archive again.")
    return data


def _known(archive: ZipFile, name: str, array: ArrayIn) -> str:
    names = archive.namelist()
    if name not in names:
        raise UserError(
            f"{array.told}: there is no {name}, but {', '.join(names[:6])}: it is another archive."
        )
    return name
