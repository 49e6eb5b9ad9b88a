"""Reads labels and splits from .npy or text: one line per vertex in order, or lines that name their vertices.

    a line          1 | cat            the label of the next vertex, a number or a word
    pairs           node,label         then 17,cat: any order, and vertices without a line have no label
    sets            0,1,1              a column for each class, or node,class,class,class and lines of pairs

Two columns are pairs if a header line names the first one `node`, `vertex` or `id`, if the second one holds words, or
if the first one holds distinct ids. They are sets if all values are 0 or 1. Text that could be both is refused.

Classes named by words are numbered in the sorted order of the words. An empty field, NaN, NA, null, none and -1 mean no
label.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.base.validation import CLASSES, clip_line
from harness.graph.model import NO_LABEL, SPLITS, LabelTask
from harness.graph.sources.read_errors import check_ids, convert_read_errors
from harness.graph.sources.text import is_number
from harness.graph.sources.vertex_files import (
    EXPECTED,
    NAMED_EXPECTED,
    convert_to_integers,
    convert_to_numbers,
    format_vertex,
    is_missing,
    order_by_name,
    read_array,
    read_text,
)

SPLIT_WORDS = {**SPLITS, "val": SPLITS["valid"], "validation": SPLITS["valid"], "none": 0}
HOW_TO_SAY = "Name the columns in the first line: node,label for pairs, or the names of the classes for sets of classes"


class LabelRows(NamedTuple):
    """The rows of a file of labels or of a split."""

    values: NDArray[Any]
    """(rows, columns), with NaN or -1 for no label."""
    owners: Any = None
    """The vertex of each row, by its number (NumPy) or its name (Arrow); None if rows are in the order of vertices."""
    words: list[str] | None = None
    """The words that the numbers of `values` stand for; None if the file has numbers."""


def read_labels(path: Path, n: int, names: Any = None, base: int = 0) -> NDArray[np.int64]:
    """Read one class per vertex, or -1. `base` is the id of the first vertex in a column of ids."""
    rows = _read_label_rows(path, named=names is not None)
    return _take_integers(path, _order_rows(path, rows, n, names, base, NO_LABEL), names)


def read_label_sets(path: Path, n: int, names: Any = None, base: int = 0) -> NDArray[np.int8]:
    """Read a row with a 0 or 1 for each class per vertex; a row of NaN, which means no label, becomes -1."""
    rows = _read_label_rows(path, named=names is not None)
    small, table = convert_to_integers(_order_rows(path, rows, n, names, base, NO_LABEL), np.int8)
    if not np.array_equal(small, table):
        first = int(np.flatnonzero((small != table).any(axis=1))[0])
        raise UserError(
            f"{path}, vertex {format_vertex(first, names)}: multi-label rows hold 0 and 1, or -1 throughout."
        )
    return small


def read_split(path: Path, n: int, names: Any = None, base: int = 0) -> NDArray[np.int64]:
    """Read a split: a column of part numbers or of part names, or three columns of masks."""
    rows = _read_label_rows(path, named=names is not None, words=SPLIT_WORDS)
    table = _order_rows(path, rows, n, names, base, 0)
    if table.shape[1] == 1:
        return _take_integers(path, np.where(np.isnan(table), 0, table) if rows.words else table, names)
    if table.shape[1] != len(SPLITS) or not np.isin(table, (0, 1)).all():
        raise UserError(
            f"{path} has {table.shape[1]} columns. Expected one column with 0 none, 1 train, 2 valid, 3 test, or with "
            "these words; or three masks (train, valid, test) of 0 and 1, or of false and true."
        )
    masks = table.astype(bool)
    twice = np.flatnonzero(masks.sum(axis=1) > 1)
    if len(twice):
        raise UserError(
            f"{path}, vertex {format_vertex(twice[0], names)}: its masks overlap. A vertex is in at most one of them."
        )
    return masks @ np.array(list(SPLITS.values()), np.int64)


def infer_classes(path: Path, *, named: bool = False) -> tuple[LabelTask, int]:
    """Infer the task and the number of classes from a label file. If `named`, lines of text start with vertex names."""
    values, owners, _ = _read_label_rows(path, named=named)
    if not values.size:
        raise UserError(f"{path} has no labels. Expected one label per vertex, or zeros and ones.")
    if values.shape[1] > 1:
        return "multi-label", values.shape[1]
    names = None
    if named and owners is not None:
        names = owners.unique().sort()
        values = order_by_name(path, values, owners, names, NO_LABEL)
    labels = _take_integers(path, values, names)
    check_labels(path, labels, CLASSES, names)
    return "single-label", max(int(labels.max()), 0) + 1


def read_class_names(path: Path, *, named: bool = False) -> list[str] | None:
    """Return the names of the classes in a label file, in the order of their numbers; None if it has numbers."""
    return _read_label_rows(path, named=named).words


def check_labels(where: Path | str, labels: NDArray[Any], classes: int, names: Any = None) -> None:
    """Raise an error for a label that is neither a class nor -1."""
    if len(labels) and not (labels.min() >= NO_LABEL and labels.max() < classes):
        wrong = np.flatnonzero((labels < NO_LABEL) | (labels >= classes))
        raise UserError(
            f"{where}, vertex {format_vertex(wrong[0], names)}: label {labels[wrong[0]]} is out of range. Labels are "
            f"0 .. {classes - 1:,}, or {NO_LABEL} for no label."
        )


def _take_integers(path: Path, table: NDArray[Any], names: Any) -> NDArray[np.int64]:
    """Return the only column as integers; NaN, which some publishers write for no label, becomes -1."""
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} columns. Expected one integer per vertex.")
    integers, column = convert_to_integers(table, np.int64)
    if not np.array_equal(integers, column):
        first = int(np.flatnonzero(integers != column)[0])
        raise UserError(
            f"{path}, vertex {format_vertex(first, names)}: {column[first, 0]} is not an integer."
        )
    return integers[:, 0]


def _order_rows(path: Path, rows: LabelRows, n: int, names: Any, base: int, missing: int) -> NDArray[Any]:
    """Return the values (n, columns) of all vertices; those without a row have the value `missing`."""
    values, owners, words = rows
    if owners is None:
        if len(values) != n:
            hint = f" If the first line names the column, call it {'label'!r}." if words else ""
            raise UserError(
                f"{path} has {len(values):,} rows, but there are {n:,} vertices. Expected one row for each, or pairs "
                f"of a vertex and its label under the column names node,label.{hint}"
            )
        return values
    if names is not None:
        return order_by_name(path, values, owners, names, missing)
    ids = owners - base
    check_ids(path, "rows", ids, n, f" Ids count from {base} here." if base else "")
    times = np.bincount(ids, minlength=n)
    if len(twice := np.flatnonzero(times > 1)):
        raise UserError(f"{path} has {times[twice[0]]} lines for the vertex {twice[0] + base}.")
    table = np.full((n, values.shape[1]), missing, values.dtype)
    table[ids] = values
    return table


def _read_label_rows(path: Path, *, named: bool, words: Mapping[str, int] | None = None) -> LabelRows:
    """Read all rows of a file. `words` are the accepted words and their numbers; by default, words name classes."""
    import pandas as pd

    named = named and path.suffix != ".npy"
    with convert_read_errors(path, NAMED_EXPECTED if named else EXPECTED):
        if path.suffix == ".npy":
            array = read_array(path, "biufU")
            if array.dtype.kind == "U" and array.shape[1] == 1:
                values, known = _number_words(path, pd.Series(array[:, 0]), words)
                return LabelRows(values, None, known)
            return LabelRows(read_array(path))
        text = read_text(path, named=named)
        columns, last = text.cells.shape[1], text.cells.iloc[:, -1]
        if last.dtype.kind not in "biuf" and columns <= (1 if named else 2):
            owners = text.names if named or columns == 1 else _convert_ids(path, text.cells.iloc[:, 0])
            values, known = _number_words(path, last, words)
            return LabelRows(values, owners, known)
        values = convert_to_numbers(path, text.cells)
        if named or columns == 1:
            return LabelRows(values, text.names)
        if text.has_ids or (columns == 2 and _are_pairs(path, values, text.column_names is not None)):
            return LabelRows(values[:, 1:], _convert_ids(path, text.cells.iloc[:, 0]))
        return LabelRows(values)


def _number_words(
    path: Path, column: Any, known: Mapping[str, int] | None
) -> tuple[NDArray[np.float64], list[str]]:
    """Return a number for each word, and the words: their numbers are `known`, or their places in sorted order."""
    import pandas as pd

    codes, found = pd.factorize(column.astype(str).str.strip())
    words = sorted((word for word in found if not is_missing(word)), key=str.encode)
    if len(words) > CLASSES:
        raise UserError(f"{path} has more than {CLASSES:,} different labels, which is the maximum.")
    for word in words:
        _check_word(path, word, known)
    numbers = {word: known[word.lower()] if known else number for number, word in enumerate(words)}
    values = np.array([*(numbers.get(word, np.nan) for word in found), np.nan])  # the code of a gap is -1
    return values[codes][:, None], words


def _check_word(path: Path, word: str, known: Mapping[str, int] | None) -> None:
    """Raise an error unless the word may name a class, or a part of a split."""
    shown = repr(clip_line(word, 60))
    if all(map(is_number, word.split())):
        raise UserError(
            f"{path} has both words and numbers: {shown} is a number. Write all labels as words, or all as numbers, "
            "with commas between the columns of .csv, and tabs between those of .tsv."
        )
    if any(ord(letter) < 32 for letter in word):
        raise UserError(f"{path}: the word {shown} has a control character. Remove it.")
    if known is not None and word.lower() not in known:
        raise UserError(f"{path}: {shown} is not a part of a split. Expected {', '.join(known)}.")


def _are_pairs(path: Path, values: NDArray[Any], has_header: bool) -> bool:
    """Return True if two columns of numbers are pairs of a vertex and its label, and False if they are sets."""
    first = values[:, 0]
    are_flags = bool(np.isin(np.where(np.isnan(values), NO_LABEL, values), (NO_LABEL, 0, 1)).all())
    are_ids = bool(
        (first >= 0).all() and (first == np.floor(first)).all() and len(np.unique(first)) == len(first)
    )
    if are_ids == are_flags and not (are_flags and has_header):
        what = (
            "could be pairs or sets of classes"
            if are_ids
            else "hold neither ids with labels nor only 0 and 1"
        )
        raise UserError(f"{path}: its two columns {what}. {HOW_TO_SAY}.")
    return are_ids and not are_flags


def _convert_ids(path: Path, column: Any) -> NDArray[np.int64]:
    """Return a column of vertex ids as integers."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").to_numpy()
    with np.errstate(invalid="ignore"):
        ids: NDArray[np.int64] = numbers.astype(np.int64)
    if len(wrong := np.flatnonzero(ids != numbers)):
        raise UserError(
            f"{path}, row {wrong[0] + 1:,}: the first of the columns is not an integer. Expected the id of a vertex "
            "first, and its label second. Columns are separated by commas in .csv, and by tabs in .tsv."
        )
    return ids
