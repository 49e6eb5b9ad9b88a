"""The loop of `harness.sources.text`: bytes to pairs of ids."""

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
