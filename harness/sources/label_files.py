"""Reads labels and splits from .npy or text: one line per vertex in order, or lines that name their vertices.

    a line          1 | cat            the label of the next vertex, a number or a word
    pairs           node,label         then 17,cat: any order, and vertices without a line have no label
    sets            0,1,1              a column for each class, or node,class,class,class and lines of pairs

Two columns are pairs if a header line names the first one `node`, `vertex` or `id`, if the second one holds words, or
if the first one holds distinct ids. They are sets if all values are 0 or 1. Text that could be both is refused.

Classes named by words are numbered in the sorted order of the words. An empty field, NaN and -1 mean no label.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.files import map_array
from harness.graph.model import NO_LABEL, SPLITS, LabelTask
from harness.sources.read_errors import check_ids, convert_read_errors
from harness.sources.text import is_number
from harness.sources.vertex_files import (
    EXPECTED,
    NAMED_EXPECTED,
    choose_separator,
    convert_to_integers,
    format_vertex,
    order_by_name,
    read_rows,
)
from harness.validation import CLASSES, clip_line

VERTEX_COLUMNS = {"node", "vertex", "id", "nodeid", "vertexid", "nodeidx"}
"""Names of a column of vertex ids, in lower case and without spaces, hyphens and underscores."""
VALUE_COLUMNS = {"label", "labels", "class", "y", "target", "category", "split"}
"""Names of a column of words, written in the same way. Any other word in the first line is a label."""
MISSING = {"", "nan", str(NO_LABEL)}
"""Words for no label, in lower case."""
FLAGS = {"true", "false"}
SPLIT_WORDS = {**SPLITS, "val": SPLITS["valid"], "validation": SPLITS["valid"], "none": 0}
SAMPLE, ROWS = 1000, 1 << 18
"""The number of lines by which the layout of a file is recognised, and the number of lines read at a time."""
HOW_TO_SAY = "Name the columns in the first line: node,label for pairs, or the names of the classes for sets of classes"


class LabelRows(NamedTuple):
    """The rows of a file of labels or of a split."""

    values: NDArray[Any]
    """(rows, columns), with NaN or -1 for no label."""
    owners: Any = None
    """The vertex of each row, by its number (NumPy) or its name (Arrow); None if rows are in the order of vertices."""
    words: list[str] | None = None
    """The words that the numbers of `values` stand for; None if the file has numbers."""


class _Layout(NamedTuple):
    """How to read a text file."""

    separator: str
    columns: int
    has_header: bool
    is_keyed: bool | None
    """True if the first column has ids or names of vertices; None if the values must decide."""
    has_words: bool


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
    if path.suffix != ".npy" and not _recognise_layout(path, named).has_words:
        return None
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
    named = named and path.suffix != ".npy"
    with convert_read_errors(path, NAMED_EXPECTED if named else EXPECTED):
        if path.suffix == ".npy":
            array = map_array(path, "r")
            if array.dtype.kind == "U" and array.ndim in (1, 2) and array.size == len(array):
                flat = array.reshape(-1)
                pieces = (flat[at : at + ROWS].astype(str).tolist() for at in range(0, len(flat), ROWS))
                return _number_words(path, ((None, piece) for piece in pieces), words)
            return LabelRows(read_rows(path)[0])
        layout = _recognise_layout(path, named)
        if layout.has_words:
            with closing(_read_words(path, layout, named=named)) as pieces:
                return _number_words(path, pieces, words)
    values, owners = read_rows(path, named=named)
    if named or layout.columns < 2 or layout.is_keyed is False:
        return LabelRows(values, owners)
    if layout.is_keyed or _are_pairs(path, values, layout):
        return LabelRows(values[:, 1:], _convert_ids(path, values[:, 0]))
    return LabelRows(values)


def _recognise_layout(path: Path, named: bool) -> _Layout:
    """Recognise the layout of a text file by its first lines."""
    import pandas as pd

    separator = choose_separator(path, named=named)
    options: dict[str, Any] = {"comment": "#", "header": None, "dtype": str, "keep_default_na": False}
    with convert_read_errors(path, NAMED_EXPECTED if named else EXPECTED):
        if path.name.removesuffix(".gz").endswith(".tsv"):
            lines = pd.read_csv(path, sep="\t", nrows=SAMPLE, **options)
            if any(_is_word(part) for line in lines.iloc[1:, -1].fillna("") for part in line.split()):
                separator = "\t"  # words may contain spaces
        lines = pd.read_csv(path, sep=separator, nrows=SAMPLE, **options)
    first, *others = lines.fillna("").itertuples(index=False, name=None)
    columns = len(first)
    names_vertices = columns > 1 and _normalise(first[0]) in VERTEX_COLUMNS
    has_words = (2 if named else 1) <= columns <= 2 and any(_is_word(row[-1]) for row in others or [first])
    if has_words:
        header = names_vertices or _normalise(first[-1]) in VALUE_COLUMNS
        return _Layout(separator, columns, header, columns == 2, has_words=True)
    header = not any(_is_value(word) for word in first)
    is_keyed = True if names_vertices else None if columns == 2 else False
    return _Layout(separator, columns, header, is_keyed, has_words=False)


def _read_words(path: Path, layout: _Layout, *, named: bool) -> Generator[tuple[Any, list[str]]]:
    """Yield the owners and the words of some lines at a time."""
    import pandas as pd

    options: dict[str, Any] = {"comment": "#", "header": None, "dtype": str, "keep_default_na": False}
    with pd.read_csv(path, sep=layout.separator, chunksize=ROWS, **options) as chunks:
        for number, lines in enumerate(chunks):
            rows = lines.iloc[1:] if layout.has_header and number == 0 else lines
            owners = None
            if layout.columns == 2:
                column = rows.iloc[:, 0]
                owners = (
                    column if named else _convert_ids(path, pd.to_numeric(column, errors="coerce").to_numpy())
                )
            yield owners, rows.iloc[:, -1].fillna("").tolist()


def _number_words(
    path: Path, pieces: Iterator[tuple[Any, list[str]]], known: Mapping[str, int] | None
) -> LabelRows:
    """Return numbers for words, in the sorted order of the words unless their numbers are known."""
    numbers: dict[str, int] = {}
    all_owners, all_values = [], []
    for owners, raw in pieces:
        words = [word.strip() for word in raw]
        for word in dict.fromkeys(words):
            if word not in numbers and word.lower() not in MISSING:
                numbers[word] = _number_word(path, word, len(numbers), known)
        missing = np.nan
        all_values.append(np.array([numbers.get(word, missing) for word in words], np.float64))
        all_owners.append(owners)
    values = np.concatenate(all_values) if all_values else np.empty(0)
    order = sorted(numbers, key=str.encode)
    if known is None and numbers:
        place = np.empty(len(order))
        place[[numbers[word] for word in order]] = np.arange(len(order))
        given = ~np.isnan(values)
        values[given] = place[values[given].astype(np.int64)]
    return LabelRows(values[:, None], _join_owners(all_owners), order)


def _number_word(path: Path, word: str, count: int, known: Mapping[str, int] | None) -> int:
    """Return the number of a new word, or raise an error if it is not accepted."""
    shown = repr(clip_line(word, 60))
    if is_number(word):
        raise UserError(
            f"{path} has both words and numbers: {shown} is a number. Write all labels as words, or all as numbers."
        )
    if any(ord(letter) < 32 for letter in word):
        raise UserError(f"{path}: the word {shown} has a control character. Remove it.")
    if known is not None:
        if word.lower() not in known:
            raise UserError(f"{path}: {shown} is not a part of a split. Expected {', '.join(known)}.")
        return known[word.lower()]
    if count >= CLASSES:
        raise UserError(f"{path} has more than {CLASSES:,} different labels, which is the maximum.")
    return count


def _join_owners(pieces: list[Any]) -> Any:
    if not pieces or pieces[0] is None:
        return None
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    import pandas as pd
    import pyarrow as pa

    return pa.array(pd.concat(pieces).str.encode("utf-8"), pa.binary())


def _are_pairs(path: Path, values: NDArray[Any], layout: _Layout) -> bool:
    """Return True if two columns of numbers are pairs of a vertex and its label, and False if they are sets."""
    first = values[:, 0]
    are_flags = bool(np.isin(np.where(np.isnan(values), NO_LABEL, values), (NO_LABEL, 0, 1)).all())
    are_ids = bool(
        (first >= 0).all() and (first == np.floor(first)).all() and len(np.unique(first)) == len(first)
    )
    if are_ids == are_flags and not (are_flags and layout.has_header):
        what = (
            "could be pairs or sets of classes"
            if are_ids
            else "hold neither ids with labels nor only 0 and 1"
        )
        raise UserError(f"{path}: its two columns {what}. {HOW_TO_SAY}.")
    return are_ids and not are_flags


def _convert_ids(path: Path, column: NDArray[Any]) -> NDArray[np.int64]:
    """Return a column of vertex ids as integers."""
    with np.errstate(invalid="ignore"):
        ids = column.astype(np.int64)
    if len(wrong := np.flatnonzero(ids != column)):
        raise UserError(
            f"{path}, row {wrong[0] + 1:,}: the first of the columns is not an integer. Expected the id of a vertex "
            "first, and its label second. Columns are separated by commas in .csv, and by tabs in .tsv."
        )
    return ids


def _normalise(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "").replace(" ", "")


def _is_value(word: str) -> bool:
    """Return True for a number, a flag or a missing value."""
    word = word.strip()
    return is_number(word) or word.lower() in MISSING | FLAGS | {"na", "none", "null", "n/a"}


def _is_word(word: str) -> bool:
    return not _is_value(word)
