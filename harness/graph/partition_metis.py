"""METIS: parts of equal numbers of vertices that cut few edges (Karypis and Kumar, 1998), as CAGNET uses it.

METIS sees the undirected graph without loops: u and v are neighbours if A has (u, v) or (v, u). Vertices and edges
weigh 1, so it balances vertices, not nonzeros, and counts cut edges, not words. It may leave parts empty.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.graph.partition_engine import library
from harness.kernels.csr import Csr

SEEDS = 1 << 31
"""METIS takes so many seeds."""
BYTES_AN_ENTRY = 160
"""Of memory, for every neighbour of a vertex: METIS keeps the graphs of all levels, many of one that coarsens badly."""


def metis_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """The part of every vertex, by k-way partitioning."""
    pymetis = library("metis")
    index = pymetis.zero_copy_dtype()
    M = neighbours(A)
    graph = pymetis.CSRAdjacency(M.indptr.astype(index), M.indices.astype(index))
    options = pymetis.Options(seed=seed % SEEDS)
    found = pymetis.part_graph(parts, graph, recursive=False, options=options)
    return torch.from_numpy(np.array(found.vertex_part, dtype=np.int64))


def neighbours(A: Csr) -> Any:
    """A or A^T without the diagonal, as a boolean scipy matrix."""
    from scipy.sparse import csr_array

    pattern = csr_array((np.ones(A.nnz, dtype=bool), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    M = (pattern + pattern.T).tocsr()
    M.setdiag(False)
    M.eliminate_zeros()
    return M
