"""Pairs of ids in text, a line each, out of files too large to hold: plain files in ranges of bytes, gzip as it comes.

Further columns are ignored; # and % begin a comment. No reader here knows what the ids mean or where they start.
Verifier (tests/sources/test_streams.py): Python's own splitting of lines.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
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
    from harness.sources.text_compiled import parse_pairs

    for data in lines():
        first, second = (np.empty(len(data) // SHORTEST + 1, np.int64) for _ in range(2))
        found, wrong = parse_pairs(data, first, second)
        if wrong >= 0:
            raise fault()
        yield first[:found], second[:found]
