"""A partition that the user brings: one part number a line, as METIS, PaToH and KaHyPar write them.

Line v is the part of vertex v, in the order of the dataset's vertices before any permutation.
"""

import re
from pathlib import Path

import numpy as np

from harness.errors import UserError
from harness.graph.model import Ints

EXPECTED = "one part number a line, in the order of the dataset's vertices"


def read_partition(path: Path, n: int, parts: int) -> Ints:
    """The part of every vertex, (n,)."""
    check_there(path)
    part = _numbers(path)
    if len(part) != n:
        raise UserError(
            f"{path} holds {len(part):,} lines, but the graph has {n:,} vertices: it is a partition of another graph. "
            f"Expected {EXPECTED}."
        )
    wrong = np.flatnonzero((part < 0) | (part >= parts))
    if len(wrong):
        raise UserError(
            f"{path}, line {wrong[0] + 1}: {part[wrong[0]]} is not one of the parts 0 .. {parts - 1}. Correct the "
            "file, or ask for as many parts as it has."
        )
    return part


def check_there(path: Path) -> None:
    """Refuses a partition that nobody has put there."""
    if not path.is_file():
        raise UserError(
            f"{path} is no file. A partition of your own stands there: {EXPECTED}. Put it there, or choose another "
            "partition."
        )


def _numbers(path: Path) -> Ints:
    import pandas as pd  # half a second that opening a drawn graph does not need

    try:
        table = pd.read_csv(path, header=None, dtype=np.int64, skip_blank_lines=False)
    except pd.errors.EmptyDataError:
        return np.zeros(0, dtype=np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read: {_fault(path) or error}. Expected {EXPECTED}.") from None
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} numbers a line. Expected {EXPECTED}.")
    return table[0].to_numpy(copy=True)


def _fault(path: Path) -> str:
    """The first line that is no number."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not re.fullmatch(r"-?\d{1,18}", line.strip()):
                return f"line {number} is {line.strip()[:40]!r}"
    return ""
