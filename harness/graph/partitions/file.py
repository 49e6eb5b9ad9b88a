"""A user's partition file: one part number per line, as METIS, PaToH and KaHyPar write partitions.

Line v holds the part of vertex v, in the original order of the dataset's vertices.
"""

import re
from pathlib import Path

import numpy as np

from harness.base.errors import UserError
from harness.graph.model import Ints
from harness.spec.dataset import DatasetChoice

FOLDER = "partitions"
EXPECTED = "one part number per line, in the order of the dataset's vertices"


def list_partition_files(choice: DatasetChoice) -> list[str]:
    """Return the name of the partition file of a choice in the data folder, if it names one."""
    return [] if choice.file is None else [f"{FOLDER}/{choice.file}"]


def get_partition_files(choice: DatasetChoice, folder: Path) -> dict[str, Path]:
    """Return the partition file of a choice, if it names one, by its name in the data folder."""
    files = {name: folder / name for name in list_partition_files(choice)}
    for path in files.values():
        check_partition_file(path)
    return files


def read_partition_file(path: Path, n: int, parts: int) -> Ints:
    """Return the part of every vertex, shape (n,)."""
    check_partition_file(path)
    part = _read_numbers(path)
    if len(part) != n:
        raise UserError(
            f"{path} holds {len(part):,} lines, but the graph has {n:,} vertices: it is a partition of another graph. "
            f"Expected {EXPECTED}."
        )
    wrong = np.flatnonzero((part < 0) | (part >= parts))
    if len(wrong):
        raise UserError(
            f"{path}, line {wrong[0] + 1}: {part[wrong[0]]} is not one of the parts 0 .. {parts - 1}. Correct the "
            "file, or set --parts to the number of parts that it has."
        )
    return part


def check_partition_file(path: Path) -> None:
    """Raise an error if the partition file does not exist."""
    if not path.is_file():
        raise UserError(
            f"{path} is not a file. Your own partition is read from this path: {EXPECTED}. Write the file, or choose "
            "another partition."
        )


def _read_numbers(path: Path) -> Ints:
    import pandas as pd  # takes half a second, and most runs do not need it

    try:
        table = pd.read_csv(path, header=None, dtype=np.int64, skip_blank_lines=False)
    except pd.errors.EmptyDataError:
        return np.zeros(0, dtype=np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be read: {_describe_first_bad_line(path) or error}. Expected {EXPECTED}."
        ) from None
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} numbers per line. Expected {EXPECTED}.")
    return table[0].to_numpy(copy=True)


def _describe_first_bad_line(path: Path) -> str:
    """Return a description of the first line that is not a number."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not re.fullmatch(r"-?\d{1,18}", line.strip()):
                return f"line {number} is {line.strip()[:40]!r}"
    return ""
