"""The loops of `harness.sources.text` and `harness.sources.metis`: bytes to pairs of ids."""

from typing import Any

from harness.kernels.jit import compiled

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
