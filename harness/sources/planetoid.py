"""The eight files ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index} of Planetoid: Cora, Citeseer, Pubmed.

Rows of allx and ally are the vertices 0 .. m; rows of tx and ty are the vertices that test.index names, in
its order. Citeseer's test range has 15 vertices without a row: they keep zero features and have no label (other
readers give them class 0). The public split is the rows of y, the 500 after them, and test.index.
"""

import pickle
import warnings
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import UserError
from harness.graph.model import NO_LABEL, Ints, RawGraph
from harness.sources.refusal import check_ids, refusing, split_of_ids
from harness.sources.remote import RemoteFile
from harness.sources.source import Rest, Source

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PICKLES = ("x", "tx", "allx", "y", "ty", "ally", "graph")
PARTS = (*PICKLES, "test.index")
VALIDATION = 500
PUBLISHED = "https://github.com/kimiyoung/planetoid/raw/master/data"
FETCHED = "raw/planetoid"


class Planetoid(Source):
    """The eight files ind.NAME.* of Cora, Citeseer or Pubmed."""

    kind: Literal["planetoid"]
    dataset: str
    """The NAME of the files, for instance cora."""
    path: str | None = None
    """The folder of the files; without one they are the published ones."""
    sha256: dict[str, str] = {}
    """The checksums of the published files, by part."""

    def remotes(self) -> list[RemoteFile]:
        if self.path is not None:
            return []
        return [
            RemoteFile(
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


def read_planetoid(folder: Path, name: str) -> RawGraph:
    """The graph with features, labels and the public split."""
    paths = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    parts = {part: read_pickle(paths[part]) for part in PICKLES}
    test, n, known = _test_index(paths["test.index"]), len(parts["graph"]), len(parts["ally"])
    _check(paths["test.index"], test, range(known, n), len(parts["ty"]))
    train = range(len(parts["y"]))
    valid = range(len(train), min(len(train) + VALIDATION, known))
    members: dict[str, ArrayLike] = {"train": train, "valid": valid, "test": test}
    return RawGraph(
        n,
        *_edges(paths["graph"], parts["graph"]),
        X=_features(parts, test, n),
        y=_labels(parts, test, n),
        split=split_of_ids(paths["test.index"], members, n),
    )


def _test_index(path: Path) -> Ints:
    with refusing(path, "one vertex id a line"):
        return np.array(path.read_text(encoding="ascii").split(), dtype=np.int64)


def _check(path: Path, test: Ints, ids: range, rows: int) -> None:
    """The test vertices come after the known ones, inside the graph, one per row of ty."""
    if len(test) != rows or not len(test) or test.min() < ids.start or test.max() >= ids.stop:
        raise UserError(
            f"{path} holds {len(test)} ids. Expected {rows} of {ids.start} .. {ids.stop - 1}: the files do not belong "
            "together."
        )


def _edges(path: Path, graph: dict[int, list[int]]) -> tuple[Ints, Ints]:
    """The dictionary of neighbour lists as edges, from the key to the neighbour."""
    with refusing(path, "a dictionary from vertex to the list of its neighbours"):
        lengths = [len(neighbours) for neighbours in graph.values()]
        source = np.repeat(np.fromiter(graph.keys(), np.int64, len(graph)), lengths)
        target = np.array([vertex for neighbours in graph.values() for vertex in neighbours], dtype=np.int64)
        check_ids(path, "edges", np.concatenate([source, target]), len(graph))
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


# The reader of Planetoid's pickles, which allows nothing else that a pickle can do.
#
# A pickle is a program. This reader knows a handful of names, and binds each to something harmless: a sparse
# matrix comes back as a plain record of its attributes. Any other name is refused before it is looked up.

EXPECTED = "a pickle of numpy arrays, scipy CSR matrices, or a dictionary of lists"


class _Record:
    """The attributes of a pickled matrix."""


def _latin_bytes(text: str, encoding: str) -> bytes:
    """Decodes bytes as Python 3 pickles them for Python 2, in the one encoding that it uses."""
    if encoding != "latin1":
        raise UserError(f"the pickle encodes text as {encoding!r}; only latin1 is read")
    return text.encode("latin1")


def _new_array(kind: type, shape: tuple[int, ...], code: bytes | str) -> Any:
    """Stands for numpy's own `_reconstruct`, for plain arrays only."""
    if kind is not np.ndarray:
        raise UserError(f"the pickle makes an array of the class {kind!r}; only numpy.ndarray is read")
    return np.ndarray.__new__(
        np.ndarray, shape, dtype=np.dtype(code.decode() if isinstance(code, bytes) else code)
    )


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("scipy.sparse.csr", "csr_matrix"): _Record,
    ("scipy.sparse._csr", "csr_matrix"): _Record,
    ("_codecs", "encode"): _latin_bytes,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The only door by which a pickle reaches code."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            known = ", ".join(sorted({".".join(key) for key in ALLOWED}))
            raise UserError(f"the pickle asks for {module}.{name}; only {known} are read") from None


def read_pickle(path: Path) -> Any:
    """The array, the CSR matrix or the dictionary of lists in a file written by Python 2 or 3."""
    with refusing(path, EXPECTED), path.open("rb") as file:
        try:
            with warnings.catch_warnings():
                # dtypes of old numpy
                warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
                content = _Reader(file, encoding="latin1").load()
        except UserError as error:
            raise UserError(f"{path} was refused: {error}. Expected {EXPECTED}.") from None
        except (pickle.UnpicklingError, TypeError, AttributeError, IndexError, ImportError) as error:
            raise ValueError(str(error)) from error
        return _matrix(content) if isinstance(content, _Record) else content


def _matrix(record: _Record) -> "csr_array":
    """The matrix of a record, its indices checked."""
    from scipy.sparse import csr_array

    parts = vars(record)
    shape = parts.get("_shape", parts.get("shape"))
    matrix = csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
