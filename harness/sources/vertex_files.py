"""Reads vertex data from a file: features, labels or a split, as .npy, .csv, .tsv or .txt.

A first line of text without a number is read as column names. If vertices have names, each line of text starts with the
name of its vertex, and lines are in any order. Vertices without a line have no label and belong to no split; features
are required for all. An .npy array is in the order of the names.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.files import map_array
from harness.graph.model import NO_LABEL, SPLITS, LabelTask
from harness.sources.read_errors import convert_read_errors
from harness.sources.text import is_number
from harness.validation import CLASSES, clip_line

NAMED_EXPECTED = "text with the name of a vertex and its numbers per line, separated by commas or white space"
EXPECTED = "a .npy array, or text with one vertex per line and numbers separated by commas or white space"


def read_table(path: Path, n: int, names: Any = None, missing: float | None = None) -> NDArray[Any]:
    """Read an array (n, columns) with vertex v in row v. `missing` is the value of a named vertex without a line."""
    if names is None or path.suffix == ".npy":
        table, _ = _read_table(path)
    else:
        table = _order_by_name(path, names, missing)
    if len(table) != n:
        raise UserError(
            f"{path} has {len(table):,} rows, but there are {n:,} vertices. Expected one row for each."
        )
    return table


def read_column(path: Path, n: int, names: Any = None, missing: float | None = NO_LABEL) -> NDArray[np.int64]:
    """Read one integer per vertex; NaN, which some publishers write for no label, becomes -1."""
    table = read_table(path, n, names, missing)
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} columns. Expected one integer per vertex.")
    integers, column = _convert_to_integers(table, np.int64)
    if not np.array_equal(integers, column):
        first = int(np.flatnonzero(integers != column)[0])
        raise UserError(
            f"{path}, vertex {format_vertex(first, names)}: {column[first, 0]} is not an integer."
        )
    return integers[:, 0]


def read_split(path: Path, n: int, names: Any = None) -> NDArray[np.int64]:
    """Read a split: one column of part numbers, or three columns of masks for training, validation and test."""
    table = read_table(path, n, names, 0)
    if table.shape[1] == 1:
        return read_column(path, n, names, 0)
    if table.shape[1] != len(SPLITS) or not np.isin(table, (0, 1)).all():
        raise UserError(
            f"{path} has {table.shape[1]} columns. Expected one column with 0 none, 1 train, 2 valid, 3 test; "
            "or three masks (train, valid, test) of 0 and 1, or of false and true."
        )
    masks = table.astype(bool)
    twice = np.flatnonzero(masks.sum(axis=1) > 1)
    if len(twice):
        raise UserError(
            f"{path}, vertex {format_vertex(twice[0], names)}: its masks overlap. A vertex is in at most one of them."
        )
    return masks @ np.array(list(SPLITS.values()), np.int64)


def read_label_sets(path: Path, n: int, names: Any = None) -> NDArray[np.int8]:
    """Read a row with a 0 or 1 for each class per vertex; a row of NaN, which means no label, becomes -1."""
    small, table = _convert_to_integers(read_table(path, n, names, NO_LABEL), np.int8)
    if not np.array_equal(small, table):
        first = int(np.flatnonzero((small != table).any(axis=1))[0])
        raise UserError(
            f"{path}, vertex {format_vertex(first, names)}: multi-label rows hold 0 and 1, or -1 throughout."
        )
    return small


def infer_classes(path: Path, *, named: bool = False) -> tuple[LabelTask, int]:
    """Infer the task and the number of classes from a label file: several columns mean one class each.

    If `named`, lines of text start with vertex names.
    """
    named = named and path.suffix != ".npy"
    table, names = _read_table(path, named=named)
    if not table.size:
        raise UserError(f"{path} has no labels. Expected one integer per vertex, or zeros and ones.")
    if table.shape[1] > 1:
        return "multi-label", table.shape[1]
    vertices = names.unique().sort() if named else None
    labels = read_column(path, len(table), vertices)
    check_labels(path, labels, CLASSES, vertices)
    return "single-label", max(int(labels.max()), 0) + 1


def check_labels(where: Path | str, labels: NDArray[Any], classes: int, names: Any = None) -> None:
    """Raise an error for a label that is neither a class nor -1."""
    if len(labels) and not (labels.min() >= NO_LABEL and labels.max() < classes):
        wrong = np.flatnonzero((labels < NO_LABEL) | (labels >= classes))
        raise UserError(
            f"{where}, vertex {format_vertex(wrong[0], names)}: label {labels[wrong[0]]} is out of range. Labels are "
            f"0 .. {classes - 1:,}, or {NO_LABEL} for no label."
        )


def _convert_to_integers(table: NDArray[Any], kind: type[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a table as integers, and as it was, with NaN replaced by -1 in both."""
    if np.issubdtype(table.dtype, np.floating):
        table = np.where(np.isnan(table), NO_LABEL, table)
    with np.errstate(invalid="ignore"):
        return table.astype(kind), table


def _order_by_name(path: Path, names: Any, missing: float | None) -> NDArray[Any]:
    """Read text with vertex names, and return its rows in the order of the names."""
    import pyarrow.compute as pc

    rows, owners = _read_table(path, named=True)
    position = pc.index_in(owners, names)
    if position.null_count:
        unknown = _format_name(owners[pc.index(position.is_null(), True).as_py()])
        raise UserError(
            f"{path}: {unknown} is not a vertex of the graph, because no edge has it. Remove its line."
        )
    position = np.asarray(position, dtype=np.int64)
    times = np.bincount(position, minlength=len(names))
    if len(wrong := np.flatnonzero(times > 1)):
        raise UserError(
            f"{path} has {times[wrong[0]]} lines for the vertex {_format_name(names[int(wrong[0])])}."
        )
    if missing is None and len(wrong := np.flatnonzero(times == 0)):
        raise UserError(f"{path} has no line for the vertex {_format_name(names[int(wrong[0])])}.")
    table = np.full((len(names), rows.shape[1]), 0 if missing is None else missing, rows.dtype)
    table[position] = rows
    return table


def format_vertex(vertex: int, names: Any) -> str:
    """Return the name of a vertex, or its number if it has none."""
    return str(vertex) if names is None else _format_name(names[int(vertex)])


def _format_name(name: Any) -> str:
    return clip_line(name.as_py().decode(errors="replace"), 60)


def _read_table(path: Path, *, named: bool = False) -> tuple[NDArray[Any], Any]:
    """Read all rows of numbers in a file, and the names before them."""
    with convert_read_errors(path, NAMED_EXPECTED if named else EXPECTED):
        table, names = _read_named_rows(path) if named else (_read_numbers(path), None)
    if table.ndim not in (1, 2):
        raise UserError(f"{path} has shape {table.shape}. Expected {EXPECTED}.")
    if table.dtype.kind not in "biuf":
        raise UserError(f"{path} has {clip_line(str(table.dtype), 60)} values. Expected numbers: {EXPECTED}.")
    return table if table.ndim == 2 else table[:, None], names


def _read_named_rows(path: Path) -> tuple[NDArray[Any], Any]:
    """Read the numbers of a text file, and the name at the start of each line as bytes."""
    import pandas as pd
    import pyarrow as pa

    separator = _choose_separator(path, named=True)
    words = pd.read_csv(path, sep=separator, header=None, comment="#", dtype=str, keep_default_na=False)
    if not any(not word or is_number(word) for word in words.iloc[0, 1:]) and words.shape[1] > 1:
        words = words.iloc[1:]
    numbers = words.iloc[:, 1:].apply(lambda column: pd.to_numeric(column.replace("", "nan")))
    if not numbers.shape[1]:
        raise ValueError("a line has a name but no number")
    return numbers.to_numpy(), pa.array(words[0].str.encode("utf-8"), pa.binary())


def _read_numbers(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        return np.asarray(map_array(path, "r"))
    import pandas as pd  # takes half a second, and most runs do not need it

    options: dict[str, Any] = {"sep": _choose_separator(path), "comment": "#"}
    # An error if the first line is shorter than the second.
    first_lines = pd.read_csv(path, header=None, nrows=2, **options)
    names_columns = all(isinstance(word, str) for word in first_lines.iloc[0])
    return np.asarray(pd.read_csv(path, header=0 if names_columns else None, **options))


def _choose_separator(path: Path, *, named: bool = False) -> str:
    """Return the column separator of a text file; names may contain spaces if tabs separate columns."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    return "," if suffix == ".csv" else "\t" if named and suffix == ".tsv" else r"\s+"
