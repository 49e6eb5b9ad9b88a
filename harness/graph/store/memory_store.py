"""A dataset in memory, for small graphs and for tests. Adjacency values are float64."""

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from harness.graph.blocks import assert_within
from harness.graph.model import Graph, Permutation
from harness.graph.order import Orders, make_orders, permute_matrix
from harness.kernels.csr import Csr
from harness.kernels.parts import extract_block

if TYPE_CHECKING:
    from harness.graph.partitions.partition import Partition


class MemoryStore:
    """Implements `Blocks` for a graph in memory, permuted or partitioned."""

    def __init__(
        self,
        graph: Graph,
        permutation: Permutation = "none",
        seed: int = 0,
        partition: "Partition | None" = None,
        graph_hash: str = "",
    ) -> None:
        """Serve a graph in an order.

        Args:
            graph_hash: identifies the graph; empty for a graph without a card.
        """
        assert permutation == "none" or partition is None
        self.permutation: Permutation = permutation
        self.bounds = partition.bounds if partition else None
        self._graph, self.graph_hash = graph, graph_hash
        self.n, self.features, self.nnz = graph.n, graph.X.shape[1], graph.A.nnz
        self.task, self.classes, self.directed = graph.task, graph.classes, graph.directed
        self.weights = graph.weights
        self.orders: Orders[Tensor] = (
            partition.orders if partition else make_orders(permutation, graph.n, seed)
        )
        self._A = [permute_matrix(graph.A, self.orders.p, self.orders.q)]
        self._edge_parts: Csr | None = None
        """The part of every entry, as a matrix in the order of the store."""
        if partition and partition.edges is not None:
            self._edge_parts = permute_matrix(graph.A._replace(val=partition.edges), *self.orders)
        if permutation == "double":
            self._A.append(permute_matrix(graph.A, self.orders.q, self.orders.p))

    @cached_property
    def manifest_hash(self) -> str:
        attributes = f"memory {self.permutation} {self.bounds} {self.classes} {self.directed}"
        digest = hashlib.sha256(attributes.encode())
        A = self._graph.A
        edges = [self._edge_parts.val] if self._edge_parts else []
        vertices = (self._graph.X, self._graph.y, self._graph.split, *self.orders)
        for tensor in (A.rowptr, A.col, A.val, *vertices, *edges):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        assert_within(self.n, rows, cols)
        A = extract_block(self._A[order if self.permutation == "double" else 0], rows, cols)
        return A._replace(rowptr=A.rowptr.clone(), col=A.col.clone(), val=A.val.clone())

    def edge_parts(self, rows: range) -> Tensor | None:
        if self._edge_parts is None:
            return None
        first, last = self._edge_parts.rowptr[rows.start], self._edge_parts.rowptr[rows.stop]
        return self._edge_parts.val[first:last].clone()

    def feature_block(self, rows: range, cols: range) -> Tensor:
        assert_within(self.n, rows)
        assert_within(self.features, cols)
        return self._graph.X[self.orders.q[rows.start : rows.stop], cols.start : cols.stop]

    def labels(self, rows: range, order: int = 0) -> Tensor:
        return self._graph.y[self._get_vertices(rows, order)]

    def split(self, rows: range, order: int = 0) -> Tensor:
        return self._graph.split[self._get_vertices(rows, order)]

    def _get_vertices(self, rows: range, order: int) -> Tensor:
        """Return the original vertices of these rows."""
        assert_within(self.n, rows)
        return self.orders.rows(order)[rows.start : rows.stop]
