"""A dataset in memory, for small graphs and the graphs of tests. Weights are kept in float64."""

import hashlib
from functools import cached_property

from torch import Tensor

from harness.graph.blocks import assert_within
from harness.graph.model import Graph
from harness.graph.order import Orders, Permutation, orders, permuted
from harness.graph.partition import Partition
from harness.kernels.csr import Csr
from harness.kernels.parts import extract_block


class MemoryStore:
    """`Blocks` over a graph, permuted or partitioned."""

    def __init__(
        self,
        graph: Graph,
        permutation: Permutation = "none",
        seed: int = 0,
        partition: Partition | None = None,
    ) -> None:
        assert permutation == "none" or partition is None
        self.permutation: Permutation = permutation
        self.bounds = partition.bounds if partition else None
        self._graph = graph
        self.n, self.features, self.nnz = graph.n, graph.X.shape[1], graph.A.nnz
        self.task, self.classes, self.directed = graph.task, graph.classes, graph.directed
        self.weights = graph.weights
        self.orders: Orders[Tensor] = partition.orders if partition else orders(permutation, graph.n, seed)
        self._A = [permuted(graph.A, self.orders.p, self.orders.q)]
        edges = partition.edges if partition else None
        self._edges = None if edges is None else permuted(graph.A._replace(val=edges), *self.orders)
        """The part of every entry, as a matrix."""
        if permutation == "double":
            self._A.append(permuted(graph.A, self.orders.q, self.orders.p))

    @cached_property
    def manifest_hash(self) -> str:
        attributes = f"memory {self.permutation} {self.bounds} {self.classes} {self.directed}"
        digest = hashlib.sha256(attributes.encode())
        A = self._graph.A
        edges = [self._edges.val] if self._edges else []
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
        if self._edges is None:
            return None
        first, last = self._edges.rowptr[rows.start], self._edges.rowptr[rows.stop]
        return self._edges.val[first:last].clone()

    def feature_block(self, rows: range, cols: range) -> Tensor:
        assert_within(self.n, rows)
        assert_within(self.features, cols)
        return self._graph.X[self.orders.q[rows.start : rows.stop], cols.start : cols.stop]

    def labels(self, rows: range, order: int = 0) -> Tensor:
        return self._graph.y[self._original(rows, order)]

    def split(self, rows: range, order: int = 0) -> Tensor:
        return self._graph.split[self._original(rows, order)]

    def _original(self, rows: range, order: int) -> Tensor:
        assert_within(self.n, rows)
        return self.orders.rows(order)[rows.start : rows.stop]
