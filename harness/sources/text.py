"""Pairs of ids in text, a line each, of files too large to hold: plain files in ranges of bytes, gzip from its start.

The third column is a weight, if one is asked for; further columns are ignored; # and % begin a comment. The meaning of
ids, and the first of them, are the caller's.
Verifier (tests/sources/test_streams.py): Python's own splitting of lines.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.graph.model import EdgeWeights, Ints
from harness.kernels.jit import compiled
from harness.sources.archive import FileIn, opened
from harness.sources.stream import Edges, Piece

SHORTEST = 4
"""The fewest bytes of a line."""
Fault = Callable[[], Exception]
"""Makes the error for a line that is no pair."""
Lines = Callable[[], Iterator[NDArray[np.uint8]]]
"""Reads the bytes of some lines, chunk by chunk."""


class Begin(NamedTuple):
    """A place at the start of a line: the bytes and the lines before it."""

    byte: int = 0
    line: int = 0


START = Begin()
MARK = b"\xef\xbb\xbf"
"""The byte order mark with which some programs begin a text."""


def numbered_lines(text: FileIn, begin: Begin = START) -> Iterator[tuple[str, Begin]]:
    """Every line from `begin` on, as text without a byte order mark, and the place after it.

    The number of the line, from 1, is `line` of that place.
    """
    byte, number = begin
    with opened(text) as file:
        file.read(byte)
        for line in file:
            byte, number = byte + len(line), number + 1
            yield line.decode("utf-8-sig", errors="replace"), Begin(byte, number)


def uncommented(line: str) -> str:
    """A line without its comment and the white space around it."""
    return re.split("[#%]", line, maxsplit=1)[0].strip()


def is_number(word: str) -> bool:
    """True for a word that is read as a weight; whether the weight is legal is another question."""
    try:
        float(word)
    except ValueError:
        return False
    return len(word) <= LONGEST


def pairs_of(
    text: FileIn, at_once: int, begin: Begin, fault: Fault, *, weighted: bool = False
) -> list[Piece]:
    """The pairs of a file in pieces, with their weights if these are asked for."""
    parsed = _parsed_with_weights if weighted else _parsed
    return [partial(parsed, lines, fault) for lines in lines_of(text, at_once, begin)]


def lines_of(text: FileIn, at_once: int, begin: Begin) -> list[Lines]:
    """The lines of a file in pieces that can be read by themselves; a file that is not plain is one piece."""
    if not text.is_plain:
        return [partial(blocks, text, at_once, begin)]
    ranges = _ranges(text.path, at_once, begin.byte)
    return [partial(_of_range, text.path, start, stop) for start, stop in ranges]


def _ranges(path: Path, at_once: int, start: int) -> list[tuple[int, int]]:
    """Ranges of bytes, each up to the end of a line."""
    size = path.stat().st_size
    with path.open("rb") as file:
        cuts = [start or len(MARK) * (file.read(len(MARK)) == MARK)]
        while cuts[-1] + at_once * SHORTEST < size:
            file.seek(cuts[-1] + at_once * SHORTEST)
            file.readline()
            cuts.append(file.tell())
    return list(pairwise([*cuts, size])) if cuts[-1] < size else list(pairwise(cuts))


def _of_range(path: Path, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    yield np.fromfile(path, np.uint8, stop - start, offset=start)


def blocks(text: FileIn, at_once: int, begin: Begin) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a file from `begin` on, in blocks of whole lines."""
    with opened(text) as file:
        file.read(begin.byte)
        rest = b"" if begin.byte else file.read(len(MARK)).removeprefix(MARK)
        while block := file.read(at_once * SHORTEST):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            yield np.frombuffer(whole + newline, np.uint8)
        yield np.frombuffer(rest, np.uint8)


def _parsed(lines: Lines, fault: Fault) -> Iterator[Edges]:
    for data in lines():
        first, second = (np.empty(len(data) // SHORTEST + 1, np.int64) for _ in range(2))
        count, wrong = parse_pairs(data, first, second)
        if wrong >= 0:
            raise fault()
        yield first[:count], second[:count]


def _parsed_with_weights(lines: Lines, fault: Fault) -> Iterator[Edges]:
    for data in lines():
        first, second, start, length = (np.empty(len(data) // SHORTEST + 1, np.int64) for _ in range(4))
        count, wrong = parse_pairs(data, first, second)
        if wrong >= 0 or find_third_words(data, start, length) < count:
            raise fault()
        try:
            weight = _numbers(data, start[:count], length[:count])
        except ValueError:
            raise fault() from None
        yield first[:count], second[:count], weight


def _numbers(data: NDArray[np.uint8], start: Ints, length: Ints) -> EdgeWeights:
    """The numbers that are written at these places, each rounded once; a ValueError if one is no number."""
    if not len(start):
        return np.zeros(0)
    place = np.arange(int(length.max()))
    inside = place < length[:, None]
    words = np.where(inside, data[np.where(inside, start[:, None] + place, 0)], 0).astype(np.uint8)
    return words.view(f"S{len(place)}")[:, 0].astype(np.float64)


# The loops of `harness.sources.text` and `harness.sources.metis`: bytes to pairs of ids.

NEWLINE, RETURN, TAB, SPACE, COMMA = 10, 13, 9, 32, 44
HASH, PERCENT, ZERO, NINE = 35, 37, 48, 57
DIGITS = 18
"""The most digits that surely fit 64 bits."""


THIRD = 3
LONGEST = 64
"""The most bytes of a weight."""
LINE_ENDS, BETWEEN = (NEWLINE, HASH, PERCENT), (SPACE, TAB, COMMA, RETURN)


@compiled(nogil=True)
def find_third_words(data: Any, start: Any, length: Any) -> int:
    """The place and the length of the third word of every pair; the number of pairs up to the first without one."""
    i, count = 0, 0
    while i < data.size:
        words = size = 0
        while i < data.size and data[i] not in LINE_ENDS:
            inside = data[i] not in BETWEEN
            words += inside and size == 0
            size = size + 1 if inside else 0
            if inside and words == THIRD:
                start[count], length[count] = i + 1 - size, size
            i += 1
        if words and (words < THIRD or length[count] > LONGEST):
            return count
        count += words > 0
        while i < data.size and data[i] != NEWLINE:
            i += 1
        i += 1
    return count


@compiled(nogil=True)
def parse_pairs(data: Any, first: Any, second: Any) -> tuple[int, int]:
    """The first two numbers of every line. Returns the number of pairs, and the start of the first bad line or -1."""
    i, size, count = 0, data.size, 0
    while i < size:
        begun = i
        while i < size and (data[i] == SPACE or data[i] == TAB or data[i] == RETURN):
            i += 1
        if i < size and data[i] != NEWLINE and data[i] != HASH and data[i] != PERCENT:
            for column in range(2):
                while column and i < size and (data[i] == SPACE or data[i] == TAB or data[i] == COMMA):
                    i += 1
                start, value = i, 0
                while i < size and ZERO <= data[i] <= NINE:
                    value = 10 * value + (data[i] - ZERO)
                    i += 1
                ends = i == size or data[i] in (SPACE, TAB, COMMA, NEWLINE, RETURN, HASH, PERCENT)
                if i == start or i - start > DIGITS or not ends:
                    return count, begun
                if column:
                    second[count] = value
                else:
                    first[count] = value
            count += 1
        while i < size and data[i] != NEWLINE:
            i += 1
        i += 1
    return count, -1


@compiled(nogil=True)
def count_rows(data: Any) -> int:
    """The number of lines without comments, as `parse_rows` counts them."""
    rows, begins = 0, True
    for byte in data:
        rows += begins and byte != PERCENT
        begins = byte == NEWLINE
    return rows


@compiled(nogil=True)
def parse_rows(
    data: Any, row: int, skip: int, step: int, source: Any, target: Any, weight: Any
) -> tuple[int, int, int]:
    """Line by line, from `row` on: the neighbours of a vertex, in every `step`th number after `skip` of them.

    The number after a neighbour is the weight of the edge, which is read unless `weight` is None.

    Returns the number of neighbours, the row after the last, and the first row that is no such list or -1.
    """
    i, size, count = 0, data.size, 0
    while i < size:
        comment = data[i] == PERCENT
        column = 0
        while i < size and data[i] != NEWLINE:
            if comment or data[i] == SPACE or data[i] == TAB or data[i] == RETURN:
                i += 1
                continue
            start, value = i, 0
            while i < size and ZERO <= data[i] <= NINE:
                value = 10 * value + (data[i] - ZERO)
                i += 1
            ends = i == size or data[i] in (SPACE, TAB, NEWLINE, RETURN)
            if i == start or i - start > DIGITS or not ends:
                return count, row, row
            if column >= skip and (column - skip) % step == 0:
                source[count] = row
                target[count] = value - 1
                count += 1
            elif weight is not None and column > skip:
                weight[count - 1] = value
            column += 1
        if column > skip and (column - skip) % step:
            return count, row, row
        if not comment:
            row += 1
        i += 1
    return count, row, -1
