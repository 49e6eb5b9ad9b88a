"""Numbers per vertex in a file of their own: features, labels or a split, as .npy, or as .csv, .tsv, .txt."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.sources.refusal import refusing

EXPECTED = "a .npy array, or text with one vertex a line and numbers separated by commas or white space"


def read_table(path: Path, n: int) -> NDArray[Any]:
    """An (n, columns) array of numbers; vertex v is row v."""
    with refusing(path, EXPECTED):
        table = _numbers(path)
    if table.ndim > 2 or len(table) != n:
        raise UserError(
            f"{path} has the shape {table.shape}, but there are {n} vertices. Expected one row for each."
        )
    if not np.issubdtype(table.dtype, np.number):
        raise UserError(f"{path} holds {table.dtype} values. Expected numbers: {EXPECTED}.")
    return table.reshape(n, -1)


def read_column(path: Path, n: int) -> NDArray[np.int64]:
    """One integer per vertex; NaN, which some publishers write for "no label", becomes -1."""
    table = read_table(path, n)
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} columns. Expected one integer per vertex.")
    column = table[:, 0]
    if np.issubdtype(column.dtype, np.floating):
        column = np.where(np.isnan(column), -1, column)
    whole = column.astype(np.int64)
    if not np.array_equal(whole, column):
        first = int(np.flatnonzero(whole != column)[0])
        raise UserError(f"{path}, vertex {first}: {column[first]} is not an integer.")
    return whole


def read_label_sets(path: Path, n: int) -> NDArray[np.int8]:
    """A row of zeros and ones per vertex, one a class; NaN in all of it, which stands for "no label", becomes -1."""
    table = read_table(path, n)
    if np.issubdtype(table.dtype, np.floating):
        table = np.where(np.isnan(table), -1, table)
    small = table.astype(np.int8)
    if not np.array_equal(small, table):
        first = int(np.flatnonzero((small != table).any(axis=1))[0])
        raise UserError(
            f"{path}, vertex {first}: labels of many classes are 0, 1, or -1 throughout for none."
        )
    return small


def read_some_labels(path: Path) -> NDArray[Any]:
    """Labels whatever the number of their rows: a column of classes, or a column for each class."""
    with refusing(path, EXPECTED):
        table = _numbers(path)
    if not table.size or not np.issubdtype(table.dtype, np.number):
        raise UserError(f"{path} holds no labels. Expected one integer per vertex, or zeros and ones.")
    return table.reshape(len(table), -1)


def _numbers(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    import pandas as pd  # half a second that opening a drawn graph does not need

    plain = path.name.removesuffix(".gz")
    separator = "," if plain.endswith(".csv") else r"\s+"
    return pd.read_csv(path, sep=separator, header=None, comment="#").to_numpy()
