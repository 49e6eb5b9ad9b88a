"""Parses pairs of ids, one per line, from large text files: plain files by byte ranges, gzip files from the start.

The third column is a weight if weights are asked for; further columns are ignored; # and % start a comment. Callers
interpret the ids.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.graph.model import EdgeWeights, Ints
from harness.graph.sources.archive import FileRef, open_file
from harness.graph.sources.stream import Edges, Piece

MIN_LINE_BYTES = 4
"""The length of the shortest line with a pair."""
MAX_WEIGHT_BYTES = 64
"""The length of the longest weight."""
MakeError = Callable[[], Exception]
"""Returns the error for the first line that is not a pair."""
ReadLines = Callable[[], Iterator[NDArray[np.uint8]]]
"""Reads the bytes of some lines, chunk by chunk, from the beginning at every call."""


class LinePosition(NamedTuple):
    """The start of a line: the number of bytes and of lines before it."""

    byte: int = 0
    line: int = 0


START = LinePosition()
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The UTF-8 byte order mark that some programs write."""


def read_numbered_lines(text: FileRef, start: LinePosition = START) -> Iterator[tuple[str, LinePosition]]:
    """Yield every line from `start` on, without a byte order mark, and the position after it.

    `line` of this position is the number of the line, counted from 1.
    """
    byte, number = start
    with open_file(text) as file:
        file.read(byte)
        for line in file:
            byte, number = byte + len(line), number + 1
            yield line.decode("utf-8-sig", errors="replace"), LinePosition(byte, number)


def strip_comment(line: str) -> str:
    """Remove the comment of a line, and surrounding white space."""
    return re.split("[#%]", line, maxsplit=1)[0].strip()


def is_number(word: str) -> bool:
    """Return True for a word that is parsed as a weight, whether or not the weight is valid."""
    try:
        float(word)
    except ValueError:
        return False
    return len(word) <= MAX_WEIGHT_BYTES


def cut_into_pairs(
    text: FileRef, at_once: int, start: LinePosition, make_error: MakeError, *, weighted: bool = False
) -> list[Piece]:
    """Cut a file into pieces of pairs, with weights if `weighted`."""
    return [
        partial(_parse_pairs, lines, make_error, weighted) for lines in cut_into_lines(text, at_once, start)
    ]


def cut_into_lines(text: FileRef, at_once: int, start: LinePosition) -> list[ReadLines]:
    """Cut a file into pieces of lines that can be read independently; a compressed file is one piece."""
    if not text.is_plain:
        return [partial(read_line_blocks, text, at_once, start)]
    ranges = _cut_byte_ranges(text.path, at_once, start.byte)
    return [partial(_read_range, text.path, first, last) for first, last in ranges]


def _cut_byte_ranges(path: Path, at_once: int, start: int) -> list[tuple[int, int]]:
    """Cut a file into byte ranges that end at line ends."""
    size = path.stat().st_size
    with path.open("rb") as file:
        cuts = [start or len(BYTE_ORDER_MARK) * (file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK)]
        while cuts[-1] + at_once * MIN_LINE_BYTES < size:
            file.seek(cuts[-1] + at_once * MIN_LINE_BYTES)
            file.readline()
            cuts.append(file.tell())
    return list(pairwise([*cuts, size])) if cuts[-1] < size else list(pairwise(cuts))


def _read_range(path: Path, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    yield np.fromfile(path, np.uint8, stop - start, offset=start)


def read_line_blocks(text: FileRef, at_once: int, start: LinePosition) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a file from `start` on, in blocks of whole lines."""
    with open_file(text) as file:
        file.read(start.byte)
        rest = b"" if start.byte else file.read(len(BYTE_ORDER_MARK)).removeprefix(BYTE_ORDER_MARK)
        while block := file.read(at_once * MIN_LINE_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            yield np.frombuffer(whole + newline, np.uint8)
        yield np.frombuffer(rest, np.uint8)


def _parse_pairs(lines: ReadLines, make_error: MakeError, weighted: bool) -> Iterator[Edges]:
    from harness.graph.sources.text_loops import parse_pairs

    for data in lines():
        first, second = (np.empty(len(data) // MIN_LINE_BYTES + 1, np.int64) for _ in range(2))
        count, wrong = parse_pairs(data, first, second)
        if wrong >= 0:
            raise make_error()
        weight = [_parse_weights(data, count, make_error)] if weighted else []
        yield (first[:count], second[:count], *weight)  # type: ignore[misc]


def _parse_weights(data: NDArray[np.uint8], count: int, make_error: MakeError) -> EdgeWeights:
    """Parse the third column of `count` pairs."""
    from harness.graph.sources.text_loops import find_third_words

    start, length = (np.empty(len(data) // MIN_LINE_BYTES + 1, np.int64) for _ in range(2))
    if find_third_words(data, start, length, MAX_WEIGHT_BYTES) < count:
        raise make_error()
    try:
        return _parse_numbers(data, start[:count], length[:count])
    except ValueError:
        raise make_error() from None


def _parse_numbers(data: NDArray[np.uint8], start: Ints, length: Ints) -> EdgeWeights:
    """Parse the numbers at these positions, each rounded once; raise ValueError if one is not a number."""
    if not len(start):
        return np.zeros(0)
    offset = np.arange(int(length.max()))
    inside = offset < length[:, None]
    words = np.where(inside, data[np.where(inside, start[:, None] + offset, 0)], 0).astype(np.uint8)
    return words.view(f"S{len(offset)}")[:, 0].astype(np.float64)
