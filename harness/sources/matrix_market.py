"""Matrix Market files (.mtx, .mtx.gz), as SuiteSparse publishes them.

An entry (i, j) is the edge from vertex i to vertex j, whatever its value: a stored zero is an edge too. scipy
parses; it turns ids to start at 0 and adds the mirror entries that a symmetric header stands for.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.io import mminfo, mmread

from harness.errors import UserError
from harness.graph.model import RawGraph
from harness.sources.refusal import refusing
from harness.sources.source import Rest, Source

EXPECTED = (
    "a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY', comments with %, a line 'rows columns entries', "
    "and that many lines 'row column [value]' with ids from 1"
)


def read_matrix_market(path: Path) -> RawGraph:
    """The graph whose adjacency the file holds; its size line says the number of vertices."""
    with refusing(path, EXPECTED):
        rows, cols, _, layout, _, _ = mminfo(path)
        if layout != "coordinate":
            raise UserError(
                f"{path}, line 1: the layout is {layout!r}, which lists every element. {_wanted()}"
            )
        if rows != cols or rows < 1:
            raise UserError(f"{path}: the matrix is {rows} x {cols}, but an adjacency is square. {_wanted()}")
        matrix: Any = mmread(path, spmatrix=False)
    return RawGraph(rows, matrix.row.astype(np.int64), matrix.col.astype(np.int64))


def _wanted() -> str:
    return f"Expected {EXPECTED}."


class MatrixMarket(Source):
    """A Matrix Market file, .mtx or .mtx.gz."""

    kind: Literal["mtx"]
    path: str

    def files(self) -> list[str]:
        return [self.path]

    def graph(self, rest: Rest) -> RawGraph:
        return read_matrix_market(rest.folder / self.path)
