"""Reads a row per vertex from .npy or from text. `label_files` interprets the rows of labels and splits.

Commas separate the columns of .csv, tabs those of .tsv, and white space those of other text. # starts a comment. The
first line is skipped if it names the columns: if none of its words is a number, and a later one is, or if it calls the
first column a vertex or the last one a label. If vertices have names, each line of text starts with the name of its
vertex, and lines are in any order. An .npy array is in the order of the names.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.base.files import map_array
from harness.base.validation import clip_line
from harness.graph.model import NO_LABEL
from harness.graph.sources.read_errors import convert_read_errors
from harness.graph.sources.text import is_number

NAMED_EXPECTED = "text with the name of a vertex and its numbers per line, separated by commas or white space"
EXPECTED = "a .npy array, or text with one vertex per line and numbers separated by commas or white space"
VERTEX_COLUMNS = {"node", "vertex", "id", "nodeid", "vertexid", "nodeidx"}
"""Names of a column of vertex ids, as `_normalise` writes them."""
VALUE_COLUMNS = {"label", "labels", "class", "y", "target", "category", "split"}
"""Names of a column of labels or parts. Above words, any other first line is a word too."""
MISSING = ("", "nan", "NaN", "NAN", "na", "NA", "n/a", "N/A", "null", "NULL", "none", "None", "<NA>")
"""Words for a missing value."""
FLAGS = {"true", "false"}
SAMPLE = 1000
"""The number of lines by which column names are recognised."""


class TextRows(NamedTuple):
    """The rows of a text file."""

    cells: Any
    """A data frame of the columns, without the names of vertices. A column of numbers has a type of numbers."""
    names: Any
    """The name of the vertex of each row, as an arrow array of bytes; None if lines do not start with names."""
    column_names: tuple[str, ...] | None
    """The words of the first line, if it names the columns."""

    @property
    def has_ids(self) -> bool:
        """True if the first line calls the first of several columns a vertex."""
        return _is_vertex_column(self.column_names or ())


def read_text(path: Path, *, named: bool = False) -> TextRows:
    """Read a text file. If `named`, its first column has the names of vertices."""
    import pandas as pd
    import pyarrow as pa

    with convert_read_errors(path, NAMED_EXPECTED if named else EXPECTED):
        options: dict[str, Any] = {"sep": _choose_separator(path), "comment": "#", "keep_default_na": False}
        sample = pd.read_csv(path, header=None, dtype=str, nrows=SAMPLE, **options).fillna("")
        first, *others = sample.itertuples(index=False, name=None)
        has_header = _names_columns(first, others, first_value=int(named))
        columns = list(range(len(first)))
        options |= {
            "header": 0 if has_header else None,
            "names": columns,
            "dtype": {0: str} if named else None,
            "na_values": {column: list(MISSING) for column in columns[int(named) :]},
        }
        cells: Any = pd.read_csv(path, **options)
        names = None
        if named:
            names = pa.array(cells.pop(0).str.encode("utf-8"), pa.binary())
            if cells.empty:
                raise ValueError("a line has a name but no number")
        return TextRows(cells, names, first if has_header else None)


def _choose_separator(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix
    return {".csv": ",", ".tsv": "\t"}.get(suffix, r"\s+")


def _names_columns(first: Sequence[str], others: Sequence[Sequence[str]], first_value: int) -> bool:
    """Return True if the first line names the columns. Values begin in the column `first_value`."""
    if any(is_number(word) or is_missing(word) or word.lower() in FLAGS for word in first[first_value:]):
        return False
    if _is_vertex_column(first) or _normalise(first[-1]) in VALUE_COLUMNS:
        return True
    words = (word.strip() for line in others for word in line[first_value:])
    return any(word.lower() in FLAGS or (is_number(word) and not is_missing(word)) for word in words)


def _is_vertex_column(column_names: Sequence[str]) -> bool:
    return len(column_names) > 1 and _normalise(column_names[0]) in VERTEX_COLUMNS


def is_missing(word: str) -> bool:
    """Return True for a word that means no value, or no label."""
    return word.strip() in (*MISSING, str(NO_LABEL))


def _normalise(word: str) -> str:
    """Return a word in lower case, without spaces, hyphens and underscores."""
    return word.strip().lower().replace("_", "").replace("-", "").replace(" ", "")


def read_array(path: Path, kinds: str = "biuf") -> NDArray[Any]:
    """Map an .npy array as (rows, columns). `kinds` are the accepted kinds of dtypes: by default numbers."""
    with convert_read_errors(path, EXPECTED):
        array = np.asarray(map_array(path, "r"))
    if array.ndim not in (1, 2):
        raise UserError(f"{path} has shape {array.shape}. Expected {EXPECTED}.")
    if array.dtype.kind not in kinds:
        raise UserError(f"{path} has {clip_line(str(array.dtype), 60)} values. Expected numbers: {EXPECTED}.")
    return array if array.ndim == 2 else array[:, None]


def convert_to_numbers(path: Path, cells: Any) -> NDArray[Any]:
    """Return a data frame as numbers, or raise an error that names its first word."""
    import pandas as pd

    columns = []
    for name in cells:
        column = pd.to_numeric(cells[name], errors="coerce")
        words = np.flatnonzero(column.isna() & cells[name].notna())
        if len(words):
            word = clip_line(str(cells[name].iloc[words[0]]), 60)
            raise UserError(
                f"{path}, row {words[0] + 1:,}: {word!r} is not a number. Expected numbers: {EXPECTED}."
            )
        columns.append(column.to_numpy())
    return np.column_stack(columns)


def read_table(path: Path, n: int, names: Any = None) -> NDArray[Any]:
    """Read the features, an array (n, columns) with vertex v in row v."""
    if path.suffix == ".npy":
        table = read_array(path)
    else:
        text = read_text(path, named=names is not None)
        table = convert_to_numbers(path, text.cells)
        if names is not None:
            table = order_by_name(path, table, text.names, names, None)
    if len(table) != n:
        raise UserError(
            f"{path} has {len(table):,} rows, but there are {n:,} vertices. Expected one row for each."
        )
    return table


def convert_to_integers(table: NDArray[Any], kind: type[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a table as integers, and as it was, with NaN replaced by -1 in both."""
    if np.issubdtype(table.dtype, np.floating):
        table = np.where(np.isnan(table), NO_LABEL, table)
    with np.errstate(invalid="ignore"):
        return table.astype(kind), table


def order_by_name(
    path: Path, rows: NDArray[Any], owners: Any, names: Any, missing: float | None
) -> NDArray[Any]:
    """Return rows in the order of the names; `owners` has the name of each row."""
    import pyarrow.compute as pc

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
