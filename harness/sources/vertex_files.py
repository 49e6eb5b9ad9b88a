"""Reads numbers per vertex from a file: .npy, .csv, .tsv or .txt. `label_files` reads labels and splits.

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
from harness.graph.model import NO_LABEL
from harness.sources.read_errors import convert_read_errors
from harness.sources.text import is_number
from harness.validation import clip_line

NAMED_EXPECTED = "text with the name of a vertex and its numbers per line, separated by commas or white space"
EXPECTED = "a .npy array, or text with one vertex per line and numbers separated by commas or white space"


def read_table(path: Path, n: int, names: Any = None, missing: float | None = None) -> NDArray[Any]:
    """Read an array (n, columns) with vertex v in row v. `missing` is the value of a named vertex without a line."""
    if names is None or path.suffix == ".npy":
        table, _ = read_rows(path)
    else:
        table = order_by_name(path, *read_rows(path, named=True), names, missing)
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


def read_rows(path: Path, *, named: bool = False) -> tuple[NDArray[Any], Any]:
    """Read all rows of numbers in a file, and the names before them."""
    with convert_read_errors(path, NAMED_EXPECTED if named else EXPECTED):
        table, names = _read_named_rows(path) if named else (_read_numbers(path), None)
    if table.ndim not in (1, 2):
        raise UserError(f"{path} has shape {table.shape}. Expected {EXPECTED}.")
    if wrong := _find_word(table):
        raise UserError(
            f"{path}, row {wrong[0] + 1:,}: {clip_line(wrong[1], 60)!r} is not a number. Expected numbers: {EXPECTED}."
        )
    if table.dtype.kind not in "biuf":
        raise UserError(f"{path} has {clip_line(str(table.dtype), 60)} values. Expected numbers: {EXPECTED}.")
    return table if table.ndim == 2 else table[:, None], names


def _find_word(table: NDArray[Any]) -> tuple[int, str] | None:
    """Return the first cell that is not a number, with its row; None if there is none, or only numbers are possible."""
    if table.dtype.kind != "O":
        return None
    cells = ((row, cell) for row, line in enumerate(table) for cell in np.atleast_1d(line))
    return next(((row, cell) for row, cell in cells if isinstance(cell, str) and not is_number(cell)), None)


def _read_named_rows(path: Path) -> tuple[NDArray[Any], Any]:
    """Read the numbers of a text file, and the name at the start of each line as bytes."""
    import pandas as pd
    import pyarrow as pa

    separator = choose_separator(path, named=True)
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

    options: dict[str, Any] = {"sep": choose_separator(path), "comment": "#"}
    # An error if the first line is shorter than the second.
    first_lines = pd.read_csv(path, header=None, nrows=2, **options)
    names_columns = all(isinstance(word, str) for word in first_lines.iloc[0])
    return np.asarray(pd.read_csv(path, header=0 if names_columns else None, **options))


def choose_separator(path: Path, *, named: bool = False) -> str:
    """Return the column separator of a text file; names may contain spaces if tabs separate columns."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    return "," if suffix == ".csv" else "\t" if named and suffix == ".tsv" else r"\s+"
