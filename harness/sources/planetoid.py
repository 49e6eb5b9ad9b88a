"""The eight files ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index} of Planetoid: Cora, Citeseer, Pubmed.

Rows of allx and ally are the vertices 0 .. m; rows of tx and ty are the vertices that test.index names, in
its order. Citeseer's test range has 15 vertices without a row: they keep zero features and have no label (other
readers give them class 0). The public split is the rows of y, the 500 after them, and test.index.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.graph.model import NO_LABEL, TEST, TRAIN, VALID, Bytes, Ints, RawGraph
from harness.sources.refusal import refusing
from harness.sources.remote import Remote
from harness.sources.source import Rest, Source
from harness.sources.unpickle import read_pickle

PICKLES = ("x", "tx", "allx", "y", "ty", "ally", "graph")
PARTS = (*PICKLES, "test.index")
VALIDATION = 500
PUBLISHED = "https://github.com/kimiyoung/planetoid/raw/master/data"
FETCHED = "raw/planetoid"


def read_planetoid(folder: Path, name: str) -> RawGraph:
    """The graph with features, labels and the public split."""
    parts = {part: read_pickle(folder / f"ind.{name}.{part}") for part in PICKLES}
    test = _test_index(folder / f"ind.{name}.test.index")
    n = len(parts["graph"])
    known = len(parts["ally"])
    _check(folder / f"ind.{name}.test.index", test, range(known, n), len(parts["ty"]))
    source, target = _edges(folder / f"ind.{name}.graph", parts["graph"])
    return RawGraph(
        n,
        source,
        target,
        X=_features(parts, test, n),
        y=_labels(parts, test, n),
        split=_split(len(parts["y"]), known, test, n),
    )


def _test_index(path: Path) -> Ints:
    with refusing(path, "one vertex id a line"):
        return np.array(path.read_text(encoding="ascii").split(), dtype=np.int64)


def _check(path: Path, test: Ints, ids: range, rows: int) -> None:
    """The test vertices come after the known ones, inside the graph, one per row of ty."""
    if len(test) != rows or not len(test) or test.min() < ids.start or test.max() >= ids.stop:
        raise UserError(
            f"{path} names {len(test)} vertices that must be {rows} ids among {ids.start} .. {ids.stop - 1}: "
            "the files do not belong together."
        )


def _edges(path: Path, graph: dict[int, list[int]]) -> tuple[Ints, Ints]:
    """The dictionary of neighbour lists as edges, from the key to the neighbour."""
    with refusing(path, "a dictionary from vertex to the list of its neighbours"):
        lengths = [len(neighbours) for neighbours in graph.values()]
        source = np.repeat(np.fromiter(graph.keys(), np.int64, len(graph)), lengths)
        target = np.array([vertex for neighbours in graph.values() for vertex in neighbours], dtype=np.int64)
        ends = np.concatenate([source, target])
        if len(ends) and not (ends.min() >= 0 and ends.max() < len(graph)):
            raise UserError(f"{path} names vertices {ends.min()} .. {ends.max()}, but it holds {len(graph)}.")
    return source, target


def _features(parts: dict[str, Any], test: Ints, n: int) -> NDArray[np.float32]:
    known = parts["allx"].toarray()
    X = np.zeros((n, known.shape[1]), dtype=np.float32)
    X[: len(known)] = known
    X[test] = parts["tx"].toarray()
    return X


def _labels(parts: dict[str, Any], test: Ints, n: int) -> Ints:
    y = np.full(n, NO_LABEL, dtype=np.int64)
    y[: len(parts["ally"])] = _classes(parts["ally"])
    y[test] = _classes(parts["ty"])
    return y


def _classes(one_hot: NDArray[Any]) -> Ints:
    """The class of each row; a row of zeros has none."""
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), NO_LABEL)


def _split(train: int, known: int, test: Ints, n: int) -> Bytes:
    split = np.zeros(n, dtype=np.uint8)
    split[:train] = TRAIN
    split[train : min(train + VALIDATION, known)] = VALID
    split[test] = TEST
    return split


class Planetoid(Source):
    """The eight files ind.NAME.* of Cora, Citeseer or Pubmed."""

    kind: Literal["planetoid"]
    dataset: str
    """Their NAME, for instance cora."""
    path: str | None = None
    """Their folder; without one they are those that are published."""
    sha256: dict[str, str] = {}
    """Of the published ones, by part."""

    def remotes(self) -> list[Remote]:
        if self.path is not None:
            return []
        return [
            Remote(
                url=f"{PUBLISHED}/ind.{self.dataset}.{part}",
                file=f"{FETCHED}/ind.{self.dataset}.{part}",
                sha256=self.sha256.get(part),
            )
            for part in PARTS
        ]

    def files(self) -> list[str]:
        return [f"{self.path or FETCHED}/ind.{self.dataset}.{part}" for part in PARTS]

    def graph(self, rest: Rest) -> RawGraph:
        return read_planetoid(rest.folder / (self.path or FETCHED), self.dataset)
