"""METIS: parts with equal numbers of vertices (Karypis and Kumar, 1998), as CAGNET, BNS-GCN and PipeGCN use it.

METIS gets the undirected graph without loops: u and v are neighbours if A has (u, v) or (v, u). Vertices and edges have
the weight 1, so METIS balances vertices, not nonzeros. It minimises the cut edges, or the volume: the number of pairs
of a vertex and another part with a neighbour of it, which is the number of rows that parts send. Parts may be empty.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.graph.model import Ints
from harness.graph.partitions.partitioners import import_library
from harness.kernels.csr import Csr

SEED_COUNT = 1 << 31
"""METIS accepts seeds below this number."""
METIS_BYTES_PER_ENTRY = 160
"""Memory for each neighbour of a vertex: METIS keeps the graphs of all levels of coarsening."""


def partition_with_metis(A: Csr, parts: int, seed: int, *, volume: bool = False) -> Tensor:
    """Return the part of every vertex, by k-way partitioning. `volume` minimises the volume instead of the cut."""
    pymetis = import_library("metis")
    index = pymetis.zero_copy_dtype()
    M = find_neighbours(A)
    graph = pymetis.CSRAdjacency(M.indptr.astype(index), M.indices.astype(index))
    kinds = pymetis._internal.ObjType
    objective = kinds.VOL if volume else kinds.CUT
    options = pymetis.Options(seed=seed % SEED_COUNT, objtype=int(objective))
    result = pymetis.part_graph(parts, graph, recursive=False, options=options)
    return torch.from_numpy(np.array(result.vertex_part, dtype=np.int64))


def find_neighbours(A: Csr) -> Any:
    """Return the pattern of A + A^T without the diagonal, as a boolean scipy matrix."""
    from scipy.sparse import csr_array

    pattern = csr_array((np.ones(A.nnz, dtype=bool), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    M = (pattern + pattern.T).tocsr()
    M.setdiag(False)
    M.eliminate_zeros()
    return M


# METIS with two constraints: equal numbers of vertices and equal sums of degrees (G3, equations 1 to 3).
#
# pymetis has no call for several constraints, and silently accepts weights of any length. So METIS's own function is
# called in the library inside pymetis, after a test on a small graph: if METIS took only one constraint, it would
# balance only one of the two sums there.
# Verifier (tests/graph/test_partition_swap.py): both balances, counted.

OPTION_COUNT, OK = 40, 1
CLIQUE = 32
TOLERANCE = 1.2
"""The imbalance accepted on the small graph, where a single vertex is 3 % of a part."""


def partition_with_balanced_metis(A: Csr, parts: int, seed: int) -> Tensor:
    """Return the part of every vertex, by METIS with two constraints."""
    metis = import_library("metis-balanced")
    _check_two_constraints(metis)
    M = find_neighbours(A)
    degrees = np.diff(M.indptr)
    weights = np.stack([np.ones_like(degrees), degrees], axis=1)
    return torch.from_numpy(call_metis_kway(metis, M.indptr, M.indices, weights, parts, seed % SEED_COUNT))


def call_metis_kway(metis: Any, starts: Any, ends: Any, weights: Any, parts: int, seed: int) -> Ints:
    """Call METIS_PartGraphKway with one constraint per column of the weights and with default tolerances."""
    call, set_defaults = _load_functions(metis)
    index = metis.zero_copy_dtype()
    xadj, adjncy, vwgt = (np.ascontiguousarray(each, dtype=index) for each in (starts, ends, weights))
    options, part, cut = np.zeros(OPTION_COUNT, index), np.zeros(len(xadj) - 1, index), np.zeros(1, index)
    set_defaults(options.ctypes)
    options[int(metis._internal.options_indices.SEED)] = seed
    n, constraints, part_count = (np.array([each], index) for each in (len(part), vwgt.shape[1], parts))
    arguments = [n, constraints, xadj, adjncy, vwgt, None, None, part_count, None, None, options, cut, part]
    status = call(*(None if each is None else each.ctypes for each in arguments))
    assert status == OK, f"METIS ended with status {status}"
    return part.astype(np.int64)


def _load_functions(metis: Any) -> tuple[Any, Any]:
    """Load METIS_PartGraphKway and METIS_SetDefaultOptions from the library inside pymetis."""
    try:
        library = ctypes.CDLL(metis._internal.__file__)
        return library.METIS_PartGraphKway, library.METIS_SetDefaultOptions
    except (OSError, AttributeError) as error:
        raise UserError(_explain_unusable(f"has no METIS_PartGraphKway ({error})")) from None


def _check_two_constraints(metis: Any) -> None:
    """Partition a clique and a path: if only vertices were balanced, one half would have nearly all degrees."""
    clique = [(i, j) for i in range(CLIQUE) for j in range(CLIQUE) if i != j]
    path = [(i, i + 1) for i in range(CLIQUE, 2 * CLIQUE - 1)]
    edges = np.array(sorted([*clique, *path, *((j, i) for i, j in path)]))
    degrees = np.bincount(edges[:, 0], minlength=2 * CLIQUE)
    starts = np.concatenate([[0], degrees.cumsum()])
    weights = np.stack([np.ones_like(degrees), degrees], axis=1)
    part = call_metis_kway(metis, starts, edges[:, 1], weights, 2, seed=0)
    for column in weights.T:
        worst = np.bincount(part, weights=column, minlength=2).max() / (column.sum() / 2)
        if worst > TOLERANCE:
            raise UserError(
                _explain_unusable(f"left one of two halves {worst:.2f} times as heavy as the mean")
            )


def _explain_unusable(reason: str) -> str:
    """Return the message for a METIS that cannot partition with two constraints."""
    return (
        f"the partition metis-balanced needs METIS with two constraints, and the library of this pymetis {reason}. "
        "Install the version of constraints.txt, or use metis or hypergraph."
    )
