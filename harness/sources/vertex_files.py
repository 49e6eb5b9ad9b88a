"""Numbers per vertex in a file of their own: features, labels or a split, as .npy, or as .csv, .tsv, .txt.

A first line of text without a number names the columns. Where vertices have names, a line of text begins with the name
of its vertex, and lines are in any order. A vertex that is not named has no label and no part in a split; features are
needed of all. An .npy is in the order of the names.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.files import map_array
from harness.graph.model import NO_LABEL, SPLITS, LabelTask
from harness.sources.refusal import refusing
from harness.sources.text import is_number
from harness.validation import CLASSES, clip_line

NAMED_EXPECTED = "the name of a vertex and its numbers a line, separated by commas or white space"
EXPECTED = "a .npy array, or text with one vertex a line and numbers separated by commas or white space"


def read_table(path: Path, n: int, names: Any = None, missing: float | None = None) -> NDArray[Any]:
    """An (n, columns) array of numbers; vertex v is row v. `missing` is the number of a vertex that is not named."""
    table = _table(path)[0] if names is None or path.suffix == ".npy" else _by_name(path, names, missing)
    if len(table) != n:
        raise UserError(
            f"{path} has {len(table):,} rows, but there are {n:,} vertices. Expected one row for each."
        )
    return table


def read_column(path: Path, n: int, names: Any = None, missing: float | None = NO_LABEL) -> NDArray[np.int64]:
    """One integer per vertex; NaN, which some publishers write for "no label", becomes -1."""
    table = read_table(path, n, names, missing)
    if table.shape[1] != 1:
        raise UserError(f"{path} has {table.shape[1]} columns. Expected one integer per vertex.")
    whole, column = _whole(table, np.int64)
    if not np.array_equal(whole, column):
        first = int(np.flatnonzero(whole != column)[0])
        raise UserError(f"{path}, vertex {called(first, names)}: {column[first, 0]} is not an integer.")
    return whole[:, 0]


def read_split(path: Path, n: int, names: Any = None) -> NDArray[np.int64]:
    """The part of every vertex: a column of their numbers, or a mask a column for training, validation and test."""
    table = read_table(path, n, names, 0)
    if table.shape[1] == 1:
        return read_column(path, n, names, 0)
    if table.shape[1] != len(SPLITS) or not np.isin(table, (0, 1)).all():
        raise UserError(
            f"{path} has {table.shape[1]} columns. A split is one column of 0 (none), 1 train, 2 valid, 3 test; or "
            "three masks of 0 and 1, or false and true: train, valid, test."
        )
    masks = table.astype(bool)
    twice = np.flatnonzero(masks.sum(axis=1) > 1)
    if len(twice):
        raise UserError(
            f"{path}, vertex {called(twice[0], names)}: its masks overlap. A vertex is in one of them, or in none."
        )
    return masks @ np.array(list(SPLITS.values()), np.int64)


def read_label_sets(path: Path, n: int, names: Any = None) -> NDArray[np.int8]:
    """A row of zeros and ones per vertex, one a class; a row of NaN, which stands for "no label", becomes -1."""
    small, table = _whole(read_table(path, n, names, NO_LABEL), np.int8)
    if not np.array_equal(small, table):
        first = int(np.flatnonzero((small != table).any(axis=1))[0])
        raise UserError(
            f"{path}, vertex {called(first, names)}: labels of many classes are 0, 1, or -1 throughout for none."
        )
    return small


def classes_in(path: Path, *, named: bool = False) -> tuple[LabelTask, int]:
    """The task and the number of classes of labels: one column needs the largest label's, several a class each.

    In a `named` text, the names of the vertices come first.
    """
    named = named and path.suffix != ".npy"
    table, names = _table(path, named=named)
    if not table.size:
        raise UserError(f"{path} holds no labels. Expected one integer per vertex, or zeros and ones.")
    if table.shape[1] > 1:
        return "multi-label", table.shape[1]
    known = names.unique().sort() if named else None
    labels = read_column(path, len(table), known)
    check_labels(path, labels, CLASSES, known)
    return "single-label", max(int(labels.max()), 0) + 1


def check_labels(where: Path | str, labels: NDArray[Any], classes: int, names: Any = None) -> None:
    """Refuses a number that is no class, and not -1 for none."""
    if len(labels) and not (labels.min() >= NO_LABEL and labels.max() < classes):
        wrong = np.flatnonzero((labels < NO_LABEL) | (labels >= classes))
        raise UserError(
            f"{where}, vertex {called(wrong[0], names)}: the label {labels[wrong[0]]} is none. Labels are "
            f"0 .. {classes - 1:,}, or {NO_LABEL} for a vertex without one."
        )


def _whole(table: NDArray[Any], kind: type[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The numbers as integers of a type, and as they were; NaN is -1 in both."""
    if np.issubdtype(table.dtype, np.floating):
        table = np.where(np.isnan(table), NO_LABEL, table)
    with np.errstate(invalid="ignore"):
        return table.astype(kind), table


def _by_name(path: Path, names: Any, missing: float | None) -> NDArray[Any]:
    """The rows of a named text, in the order of the names."""
    import pyarrow.compute as pc

    rows, owners = _table(path, named=True)
    place = pc.index_in(owners, names)
    if place.null_count:
        stranger = _shown(owners[pc.index(place.is_null(), True).as_py()])
        raise UserError(
            f"{path}: {stranger} is no vertex of the graph. Vertices are those that the edges name: leave its line out."
        )
    place = np.asarray(place, dtype=np.int64)
    times = np.bincount(place, minlength=len(names))
    if len(wrong := np.flatnonzero(times > 1)):
        raise UserError(f"{path} names the vertex {_shown(names[int(wrong[0])])} {times[wrong[0]]} times.")
    if missing is None and len(wrong := np.flatnonzero(times == 0)):
        raise UserError(f"{path} has no line for the vertex {_shown(names[int(wrong[0])])}.")
    table = np.full((len(names), rows.shape[1]), 0 if missing is None else missing, rows.dtype)
    table[place] = rows
    return table


def called(vertex: int, names: Any) -> str:
    """The name of a vertex, or its number if it has none."""
    return str(vertex) if names is None else _shown(names[int(vertex)])


def _shown(name: Any) -> str:
    return clip_line(name.as_py().decode(errors="replace"), 60)


def _table(path: Path, *, named: bool = False) -> tuple[NDArray[Any], Any]:
    """All rows of numbers in a file, and the names before them."""
    with refusing(path, NAMED_EXPECTED if named else EXPECTED):
        table, names = _named_rows(path) if named else (_numbers(path), None)
    if table.ndim not in (1, 2):
        raise UserError(f"{path} has the shape {table.shape}. Expected {EXPECTED}.")
    if table.dtype.kind not in "biuf":
        raise UserError(
            f"{path} holds {clip_line(str(table.dtype), 60)} values. Expected numbers: {EXPECTED}."
        )
    return table if table.ndim == 2 else table[:, None], names


def _named_rows(path: Path) -> tuple[NDArray[Any], Any]:
    """The numbers of a text, and the name at the start of each line as bytes."""
    import pandas as pd
    import pyarrow as pa

    separator = _separator(path, named=True)
    words = pd.read_csv(path, sep=separator, header=None, comment="#", dtype=str, keep_default_na=False)
    if not any(not word or is_number(word) for word in words.iloc[0, 1:]) and words.shape[1] > 1:
        words = words.iloc[1:]
    numbers = words.iloc[:, 1:].apply(lambda column: pd.to_numeric(column.replace("", "nan")))
    if not numbers.shape[1]:
        raise ValueError("a line has a name and no number")
    return numbers.to_numpy(), pa.array(words[0].str.encode("utf-8"), pa.binary())


def _numbers(path: Path) -> NDArray[Any]:
    if path.suffix == ".npy":
        return np.asarray(map_array(path, "r"))
    import pandas as pd  # half a second that opening a drawn graph does not need

    how: dict[str, Any] = {"sep": _separator(path), "comment": "#"}
    begin = pd.read_csv(path, header=None, nrows=2, **how)  # an error if the first line is the shorter
    names_columns = all(isinstance(word, str) for word in begin.iloc[0])
    return np.asarray(pd.read_csv(path, header=0 if names_columns else None, **how))


def _separator(path: Path, *, named: bool = False) -> str:
    """What stands between the columns of a text; names may have spaces where tabs separate."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    return "," if suffix == ".csv" else "\t" if named and suffix == ".tsv" else r"\s+"
