"""Pairs of ids in text, a line each, out of files too large to hold: plain files in ranges of bytes, gzip as it comes.

Further columns are ignored; # and % begin a comment. No reader here knows what the ids mean or where they start.
Verifier (tests/sources/test_streams.py): Python's own splitting of lines.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.kernels.jit import compiled
from harness.sources.archive import Place, opened
from harness.sources.refusal import IN_CARD
from harness.sources.stream import Edges, Piece

AT_ONCE = 1 << 22
"""Pairs in a chunk, where nothing else is asked."""
SHORTEST = 4
"""Bytes of a line, at least."""
Fault = Callable[[], Exception]
"""What to raise where a line is no pair."""
Lines = Callable[[], Iterator[NDArray[np.uint8]]]
"""Reads the bytes of some lines, chunk by chunk."""


class Counted(NamedTuple):
    """What a first pass finds; of no pairs, the largest id is -1."""

    pairs: int
    smallest: int
    largest: int

    def within(self, ids: range) -> bool:
        """Whether there are none but these."""
        return not self.pairs or (self.smallest in ids and self.largest in ids)

    def vertices(self, path: Path, n: int | None) -> int:
        """How many a card says there are; if it does not, the largest id decides."""
        if n is None and not self.pairs:
            raise UserError(
                f"{path} holds no edge, and nothing says how many vertices there are: {IN_CARD['n']}."
            )
        return self.largest + 1 if n is None else n


class Begin(NamedTuple):
    """Where data begin; at first, where the file does."""

    byte: int = 0
    line: int = 0


START = Begin()
MARK = b"\xef\xbb\xbf"
"""The byte order mark with which some programs begin a text."""


def counted(pieces: Sequence[Piece]) -> Counted:
    """All pairs, read and counted."""
    pairs, smallest, largest = 0, 0, -1
    for piece in pieces:
        for first, second in piece():
            if len(first):
                low, high = min(first.min(), second.min()), max(first.max(), second.max())
                smallest, largest = min(smallest, int(low)) if pairs else int(low), max(largest, int(high))
                pairs += len(first)
    return Counted(pairs, smallest, largest)


def skipped(text: Place, wanted: Callable[[str], bool], begin: Begin = START, more: int = 0) -> Begin:
    """The first line from `begin` on that is wanted, or so many lines more."""
    place, lines = begin
    with opened(text) as file:
        file.read(place)
        for line in file:
            if more == 0 and wanted(decoded(line)):
                break
            place, lines, more = place + len(line), lines + 1, max(more - 1, 0)
    return Begin(place, lines)


def decoded(line: bytes) -> str:
    """A line as text, without the mark that the first one may begin with."""
    return line.decode("utf-8-sig", errors="replace")


def pairs_of(text: Place, at_once: int, begin: Begin, fault: Fault) -> list[Piece]:
    """The pairs of a file in pieces."""
    return [partial(_parsed, lines, fault) for lines in lines_of(text, at_once, begin)]


def lines_of(text: Place, at_once: int, begin: Begin) -> list[Lines]:
    """The lines of a file in pieces that can be read by themselves; what is not plain has one piece."""
    if not text.is_plain:
        return [partial(blocks, text, at_once, begin)]
    ranges = _ranges(text.path, at_once, begin.byte)
    return [partial(_of_range, text.path, start, stop) for start, stop in ranges]


def _ranges(path: Path, at_once: int, start: int) -> list[tuple[int, int]]:
    """Of bytes, each up to a line's end."""
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


def blocks(text: Place, at_once: int, begin: Begin) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a file from `begin` on, whole lines of them at a time."""
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
        found, wrong = parse_pairs(data, first, second)
        if wrong >= 0:
            raise fault()
        yield first[:found], second[:found]


# The loops of `harness.sources.text` and `harness.sources.metis`: bytes to pairs of ids.

NEWLINE, RETURN, TAB, SPACE, COMMA = 10, 13, 9, 32, 44
HASH, PERCENT, ZERO, NINE = 35, 37, 48, 57
DIGITS = 18
"""The most that surely fit 64 bits."""


@compiled(nogil=True)
def parse_pairs(data: Any, first: Any, second: Any) -> tuple[int, int]:
    """The first two numbers of every line; how many lines had them, and where one stands that has not, or -1."""
    i, size, found = 0, data.size, 0
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
                    return found, begun
                if column:
                    second[found] = value
                else:
                    first[found] = value
            found += 1
        while i < size and data[i] != NEWLINE:
            i += 1
        i += 1
    return found, -1


@compiled(nogil=True)
def count_rows(data: Any) -> int:
    """Lines that are no comments, as `parse_rows` counts them."""
    rows, begins = 0, True
    for byte in data:
        rows += begins and byte != PERCENT
        begins = byte == NEWLINE
    return rows


@compiled(nogil=True)
def parse_rows(data: Any, row: int, skip: int, step: int, source: Any, target: Any) -> tuple[int, int, int]:
    """Line by line, from `row` on: the neighbours of a vertex, in every `step`th number after `skip` of them.

    How many neighbours there were, the row after the last, and the row that is no such list, or -1.
    """
    i, size, found = 0, data.size, 0
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
                return found, row, row
            if column >= skip and (column - skip) % step == 0:
                source[found] = row
                target[found] = value - 1
                found += 1
            column += 1
        if column > skip and (column - skip) % step:
            return found, row, row
        if not comment:
            row += 1
        i += 1
    return found, row, -1
