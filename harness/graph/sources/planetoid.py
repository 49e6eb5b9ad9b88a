"""The eight files ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index} of Planetoid: Cora, Citeseer, Pubmed.

Rows of allx and ally are vertices 0 .. m; rows of tx and ty are the vertices listed in test.index, in its order. 15
vertices in the test range of Citeseer have no row: they get zero features and no label (other readers give them class
0). The public split is the rows of y, the next 500 vertices, and test.index.
"""

import pickle
import warnings
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.base.errors import UserError
from harness.graph.model import NO_LABEL, Ints, RawGraph
from harness.graph.sources.read_errors import check_ids, convert_read_errors
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.source import ReadOptions, Source
from harness.graph.sources.splits import make_split_from_ids

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PICKLES = ("x", "tx", "allx", "y", "ty", "ally", "graph")
FILE_PARTS = (*PICKLES, "test.index")
VALIDATION = 500
PUBLISHED = "https://github.com/kimiyoung/planetoid/raw/master/data"
FETCHED = "raw/planetoid"


class Planetoid(Source):
    """The eight files ind.NAME.* of Cora, Citeseer or Pubmed."""

    kind: Literal["planetoid"]
    dataset: str
    """The NAME in the file names, for example cora."""
    path: str | None = None
    """The folder of the files; by default they are fetched."""
    sha256: dict[str, str] = {}
    """The checksums of the published files, by part."""

    def list_remote_files(self) -> list[RemoteFile]:
        if self.path is not None:
            return []
        return [
            RemoteFile(
                url=f"{PUBLISHED}/ind.{self.dataset}.{part}",
                file=f"{FETCHED}/ind.{self.dataset}.{part}",
                sha256=self.sha256.get(part),
            )
            for part in FILE_PARTS
        ]

    def list_files(self) -> list[str]:
        return [f"{self.path or FETCHED}/ind.{self.dataset}.{part}" for part in FILE_PARTS]

    def read_graph(self, options: ReadOptions) -> RawGraph:
        return read_planetoid(options.folder / (self.path or FETCHED), self.dataset)


def read_planetoid(folder: Path, name: str) -> RawGraph:
    """Read the graph with features, labels and the public split."""
    paths = {part: folder / f"ind.{name}.{part}" for part in FILE_PARTS}
    parts = {part: read_pickle(paths[part]) for part in PICKLES}
    test = _read_test_index(paths["test.index"])
    n, known = len(parts["graph"]), len(parts["ally"])
    _check_test_index(paths["test.index"], test, range(known, n), len(parts["ty"]))
    train = range(len(parts["y"]))
    valid = range(len(train), min(len(train) + VALIDATION, known))
    members: dict[str, ArrayLike] = {"train": train, "valid": valid, "test": test}
    return RawGraph(
        n,
        *_convert_edges(paths["graph"], parts["graph"]),
        X=_place_features(parts, test, n),
        y=_place_labels(parts, test, n),
        split=make_split_from_ids(paths["test.index"], members, n),
    )


def _read_test_index(path: Path) -> Ints:
    with convert_read_errors(path, "one vertex id per line"):
        return np.array(path.read_text(encoding="ascii").split(), dtype=np.int64)


def _check_test_index(path: Path, test: Ints, ids: range, rows: int) -> None:
    """Raise an error unless the test vertices come after all others, one per row of ty."""
    if len(test) != rows or not len(test) or test.min() < ids.start or test.max() >= ids.stop:
        raise UserError(
            f"{path} has {len(test)} ids. Expected {rows} ids in {ids.start} .. {ids.stop - 1}: the files do not "
            "belong to the same dataset."
        )


def _convert_edges(path: Path, graph: dict[int, list[int]]) -> tuple[Ints, Ints]:
    """Convert neighbour lists to edges, from the key to each neighbour."""
    with convert_read_errors(path, "a dictionary of neighbour lists by vertex"):
        lengths = [len(neighbours) for neighbours in graph.values()]
        source = np.repeat(np.fromiter(graph.keys(), np.int64, len(graph)), lengths)
        target = np.array([vertex for neighbours in graph.values() for vertex in neighbours], dtype=np.int64)
        check_ids(path, "edges", np.concatenate([source, target]), len(graph))
    return source, target


def _place_features(parts: dict[str, Any], test: Ints, n: int) -> NDArray[np.float32]:
    known = parts["allx"].toarray()
    X = np.zeros((n, known.shape[1]), dtype=np.float32)
    X[: len(known)] = known
    X[test] = parts["tx"].toarray()
    return X


def _place_labels(parts: dict[str, Any], test: Ints, n: int) -> Ints:
    y = np.full(n, NO_LABEL, dtype=np.int64)
    y[: len(parts["ally"])] = _decode_one_hot(parts["ally"])
    y[test] = _decode_one_hot(parts["ty"])
    return y


def _decode_one_hot(one_hot: NDArray[Any]) -> Ints:
    """Return the class of each row; a row of zeros has no label."""
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), NO_LABEL)


# A restricted unpickler.
#
# A pickle is a program that may call any function. Here it may use only the names in ALLOWED, which are harmless: a
# sparse matrix becomes a plain record of its attributes. Any other name is refused before it is looked up.

EXPECTED = "a pickle of numpy arrays, scipy CSR matrices, or a dictionary of lists"


class _PickledMatrix:
    """The attributes of a pickled matrix."""


def _encode_latin1(text: str, encoding: str) -> bytes:
    """Decode bytes that Python 3 pickled for Python 2, which always uses latin1."""
    if encoding != "latin1":
        raise UserError(f"the pickle encodes text as {encoding!r}; only latin1 is supported")
    return text.encode("latin1")


def _reconstruct_array(kind: type, shape: tuple[int, ...], code: bytes | str) -> Any:
    """Reconstruct a plain array, in place of numpy's `_reconstruct`."""
    if kind is not np.ndarray:
        raise UserError(f"the pickle has an array of class {kind!r}; only numpy.ndarray is supported")
    dtype = np.dtype(code.decode() if isinstance(code, bytes) else code)
    return np.ndarray.__new__(np.ndarray, shape, dtype=dtype)


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct_array,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct_array,
    ("scipy.sparse.csr", "csr_matrix"): _PickledMatrix,
    ("scipy.sparse._csr", "csr_matrix"): _PickledMatrix,
    ("_codecs", "encode"): _encode_latin1,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Resolve a global name, the only way in which a pickle reaches code."""
        try:
            return ALLOWED[module, name]
        except KeyError:
            known = ", ".join(sorted({".".join(key) for key in ALLOWED}))
            raise UserError(f"the pickle refers to {module}.{name}; only {known} are allowed") from None


def read_pickle(path: Path) -> Any:
    """Read an array, a CSR matrix or a dictionary of lists from a file written by Python 2 or 3."""
    with convert_read_errors(path, EXPECTED), path.open("rb") as file:
        try:
            with warnings.catch_warnings():
                # dtypes of old numpy
                warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
                content = _RestrictedUnpickler(file, encoding="latin1").load()
        except UserError as error:
            raise UserError(f"{path} was refused: {error}. Expected {EXPECTED}.") from None
        except (pickle.UnpicklingError, TypeError, AttributeError, IndexError, ImportError) as error:
            raise ValueError(str(error)) from error
        return _build_matrix(content) if isinstance(content, _PickledMatrix) else content


def _build_matrix(record: _PickledMatrix) -> "csr_array":
    """Build a matrix from its record, and check its indices."""
    from scipy.sparse import csr_array

    parts = vars(record)
    shape = parts.get("_shape", parts.get("shape"))
    matrix = csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
