"""Compiled loops that parse text: bytes to ids. Imported when a file is read, because they import numba.

Verifier (tests/sources/test_streams.py): Python's own splitting of lines.
"""

from typing import Any

from harness.kernels.jit import compiled

NEWLINE, RETURN, TAB, SPACE, COMMA = 10, 13, 9, 32, 44
HASH, PERCENT, ZERO, NINE = 35, 37, 48, 57
MAX_DIGITS = 18
"""Every number with this many digits fits in 64 bits."""
THIRD = 3
LINE_ENDS, SEPARATORS = (NEWLINE, HASH, PERCENT), (SPACE, TAB, COMMA, RETURN)


@compiled(nogil=True)
def find_third_words(data: Any, start: Any, length: Any, longest: int) -> int:
    """Find the third word of every pair; return the number of pairs before the first that has none, or a longer one."""
    i, count = 0, 0
    while i < data.size:
        words = size = 0
        while i < data.size and data[i] not in LINE_ENDS:
            inside = data[i] not in SEPARATORS
            words += inside and size == 0
            size = size + 1 if inside else 0
            if inside and words == THIRD:
                start[count], length[count] = i + 1 - size, size
            i += 1
        if words and (words < THIRD or length[count] > longest):
            return count
        count += words > 0
        while i < data.size and data[i] != NEWLINE:
            i += 1
        i += 1
    return count


@compiled(nogil=True)
def parse_pairs(data: Any, first: Any, second: Any) -> tuple[int, int]:
    """Parse the first two numbers of every line.

    Return the number of pairs, and the start of the first line that is not a pair, or -1.
    """
    i, size, count = 0, data.size, 0
    while i < size:
        line_start = i
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
                if i == start or i - start > MAX_DIGITS or not ends:
                    return count, line_start
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
    """Count the lines that are not comments, as `parse_rows` does."""
    rows, is_line_start = 0, True
    for byte in data:
        rows += is_line_start and byte != PERCENT
        is_line_start = byte == NEWLINE
    return rows


@compiled(nogil=True)
def parse_rows(
    data: Any, row: int, skip: int, step: int, source: Any, target: Any, weight: Any
) -> tuple[int, int, int]:
    """Parse the neighbours of a vertex from each line, from `row` on: every `step`-th number after the first `skip`.

    The number after a neighbour is the weight of the edge, which is read unless `weight` is None. Return the number of
    neighbours, the next row, and the first row that is malformed, or -1.
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
            if i == start or i - start > MAX_DIGITS or not ends:
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
