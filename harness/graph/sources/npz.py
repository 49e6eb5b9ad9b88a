"""Graphs in .npz files, in one of three layouts that differ in their keys. Nothing is unpickled.

    scipy          data indices indptr shape format     as scipy.sparse.save_npz writes; GraphSAINT's adj_full
    gnn-benchmark  adj_* attr_* labels                  Coauthor, Amazon Photo; features as stored, not binarised
    heterophilous  edges node_features node_labels train_masks val_masks test_masks     tolokers and related datasets

An entry (i, j) of a matrix is the edge from vertex i to vertex j. If the card has weights, its value is the weight; the
third layout has weights in an array edge_weight.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.graph.model import RawGraph
from harness.graph.sources.read_errors import check_ids, convert_read_errors
from harness.graph.sources.remote import RemoteFile
from harness.graph.sources.source import FileSource, ReadOptions
from harness.graph.sources.splits import MASK_NAMES, make_split_from_masks
from harness.graph.sources.stream import check_graph_weights, make_missing_weights_error

if TYPE_CHECKING:
    from scipy.sparse import csr_array

EXPECTED = (
    "the keys of scipy's save_npz, of gnn-benchmark (adj_data, adj_indices, adj_indptr, adj_shape, attr_*, labels) "
    "or of heterophilous-graphs (edges, node_features, node_labels, train_masks, val_masks, test_masks)"
)
Arrays = Mapping[str, NDArray[Any]]


class Npz(FileSource):
    """A .npz file: scipy's save_npz, or the layouts of gnn-benchmark and heterophilous-graphs."""

    kind: Literal["npz"]
    reads_weights: ClassVar[bool] = True
    url: str | None = None
    """The URL of a published file."""
    sha256: str | None = None

    def list_remote_files(self) -> list[RemoteFile]:
        return [RemoteFile(url=self.url, file=self.path, sha256=self.sha256)] if self.url else []

    def read_graph(self, options: ReadOptions) -> RawGraph:
        path = options.folder / self.path
        graph = read_npz(path, options.split)
        if options.weights and graph.weight is None:
            raise make_missing_weights_error(path, "it does not have an array edge_weight")
        return check_graph_weights(path, graph, options.weights)


def read_npz(path: Path, split: int = 0) -> RawGraph:
    """Read the graph of a file; `split` selects one of several splits."""
    with (
        convert_read_errors(path, EXPECTED),
        path.open("rb") as file,
    ):  # numpy does not close a broken archive
        with np.load(file, allow_pickle=False) as arrays:
            keys = set(arrays.files)
            if "edges" in keys:
                return _read_heterophilous(path, arrays, split)
            if "adj_indptr" in keys:
                return _read_gnn_benchmark(path, arrays)
        if "format" in keys:
            from scipy.sparse import load_npz

            file.seek(0)
            return _make_graph(path, load_npz(file))
        raise UserError(f"{path} has the keys {', '.join(sorted(keys)) or '(none)'}. Expected {EXPECTED}.")


def _make_graph(path: Path, matrix: Any, **known: Any) -> RawGraph:
    """Convert a sparse matrix to edges. Its indices are untrusted, so they are checked first."""
    if matrix.shape[0] != matrix.shape[1]:
        raise UserError(
            f"{path}: the matrix is {matrix.shape[0]} x {matrix.shape[1]}, but an adjacency is square."
        )
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    entries = matrix.tocoo()
    ends = entries.row.astype(np.int64), entries.col.astype(np.int64)
    return RawGraph(matrix.shape[0], *ends, **known, weight=entries.data)


def _read_csr(arrays: Arrays, prefix: str) -> "csr_array":
    from scipy.sparse import csr_array

    parts = (arrays[f"{prefix}_data"], arrays[f"{prefix}_indices"], arrays[f"{prefix}_indptr"])
    matrix = csr_array(parts, shape=tuple(arrays[f"{prefix}_shape"]))
    matrix.check_format(full_check=True)
    return matrix


def _read_gnn_benchmark(path: Path, arrays: Arrays) -> RawGraph:
    features = _read_csr(arrays, "attr").toarray() if "attr_indptr" in arrays else arrays["attr_matrix"]
    labels = arrays["labels"].astype(np.int64)
    return _make_graph(path, _read_csr(arrays, "adj"), X=features.astype(np.float32), y=labels)


def _read_heterophilous(path: Path, arrays: Arrays, split: int) -> RawGraph:
    ends = arrays["edges"].astype(np.int64)
    n = len(arrays["node_features"])
    check_ids(path, "edges", ends, n)
    masks = {part: arrays[f"{name}s"] for name, part in MASK_NAMES.items()}
    return RawGraph(
        n,
        ends[:, 0],
        ends[:, 1],
        X=arrays["node_features"].astype(np.float32),
        y=arrays["node_labels"].astype(np.int64),
        split=make_split_from_masks(path, masks, split),
        weight=arrays.get("edge_weight"),
    )
