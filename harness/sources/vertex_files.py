"""Numbers per vertex in a file of their own: features, labels or a split, as .npy, or as .csv, .tsv, .txt."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.files import mapped_array
from harness.graph.model import NO_LABEL, SPLITS, LabelTask
from harness.sources.refusal import refusing
from harness.validation import CLASSES, clipped

EXPECTED = "a .npy array, or text with one vertex a line and numbers separated by commas or white space"


def read_table(path: Path, n: int) -> NDArray[Any]:
    """An (n, columns) array of numbers; vertex v is row v."""
    table = _table(path)
    if len(table) != n:
        raise UserError(
            f"{path} has {len(table):,} rows, but there are {n:,} vertices. Expected one row for each."
        )
    return table


def read_column(path: Path, n: int) -> NDArray[np.int64]:
    """One integer per vertex; NaN, which some publishers write for "no label", becomes -1."""
    table = read_table(path, n)
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} columns. Expected one integer per vertex.")
    whole, column = _whole(table, np.int64)
    if not np.array_equal(whole, column):
        first = int(np.flatnonzero(whole != column)[0])
        raise UserError(f"{path}, vertex {first}: {column[first, 0]} is not an integer.")
    return whole[:, 0]


def read_split(path: Path, n: int) -> NDArray[np.int64]:
    """The part of every vertex: a column of their numbers, or a mask a column for training, validation and test."""
    table = read_table(path, n)
    if table.shape[1] == 1:
        return read_column(path, n)
    if table.shape[1] != len(SPLITS) or not np.isin(table, (0, 1)).all():
        raise UserError(
            f"{path} has {table.shape[1]} columns. A split is one column of 0 (none), 1 train, 2 valid, 3 test; or "
            "three masks of 0 and 1, or false and true: train, valid, test."
        )
    masks = table.astype(bool)
    twice = np.flatnonzero(masks.sum(axis=1) > 1)
    if len(twice):
        raise UserError(
            f"{path}, vertex {twice[0]}: its masks overlap. A vertex is in one of them, or in none."
        )
    return masks @ np.array(list(SPLITS.values()), np.int64)


def read_label_sets(path: Path, n: int) -> NDArray[np.int8]:
    """A row of zeros and ones per vertex, one a class; a row of NaN, which stands for "no label", becomes -1."""
    small, table = _whole(read_table(path, n), np.int8)
    if not np.array_equal(small, table):
        first = int(np.flatnonzero((small != table).any(axis=1))[0])
        raise UserError(
            f"{path}, vertex {first}: labels of many classes are 0, 1, or -1 throughout for none."
        )
    return small


def classes_in(path: Path) -> tuple[LabelTask, int]:
    """The task and the number of classes of labels: one column needs the largest label's, several a class each."""
    table = _table(path)
    if not table.size:
        raise UserError(f"{path} holds no labels. Expected one integer per vertex, or zeros and ones.")
    if table.shape[1] > 1:
        return "multi-label", table.shape[1]
    labels = read_column(path, len(table))
    check_labels(path, labels, CLASSES)
    return "single-label", max(int(labels.max()), 0) + 1


def check_labels(where: Path | str, labels: NDArray[Any], classes: int) -> None:
    """Refuses a number that is no class, and not -1 for none."""
    if len(labels) and not (labels.min() >= NO_LABEL and labels.max() < classes):
        wrong = np.flatnonzero((labels < NO_LABEL) | (labels >= classes))
        raise UserError(
            f"{where}, vertex {wrong[0]}: the label {labels[wrong[0]]} is none. Labels are 0 .. {classes - 1:,}, or "
            f"{NO_LABEL} for a vertex without one."
        )


def _whole(table: NDArray[Any], kind: type[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The numbers as integers of a type, and as they were; NaN is -1 in both."""
    if np.issubdtype(table.dtype, np.floating):
        table = np.where(np.isnan(table), NO_LABEL, table)
    with np.errstate(invalid="ignore"):
        return table.astype(kind), table


def _table(path: Path) -> NDArray[Any]:
    """All rows of numbers in a file."""
    with refusing(path, EXPECTED):
        table = _numbers(path)
    if table.ndim not in (1, 2):
        raise UserError(f"{path} has the shape {table.shape}. Expected {EXPECTED}.")
    if table.dtype.kind not in "biuf":
        raise UserError(f"{path} holds {clipped(str(table.dtype), 60)} values. Expected numbers: {EXPECTED}.")
    return table if table.ndim == 2 else table[:, None]


def _numbers(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        return np.asarray(mapped_array(path, "r"))
    import pandas as pd  # half a second that opening a drawn graph does not need

    plain = path.name.removesuffix(".gz")
    separator = "," if plain.endswith(".csv") else r"\s+"
    return pd.read_csv(path, sep=separator, header=None, comment="#").to_numpy()
