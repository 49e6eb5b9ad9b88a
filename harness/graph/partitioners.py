"""Partitioners: libraries, each imported when it is first needed, for most runs need none; and a vertex cut."""

import ctypes
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError
from harness.kernels.csr import Csr, row_indices
from harness.kernels.jit import compiled
from harness.kernels.random import Purpose, random_order

PACKAGES = {
    "metis": "pymetis",
    "metis-balanced": "pymetis",
    "g3-literal": "pymetis",
    "g3-guarded": "pymetis",
    "hypergraph": "mtkahypar",
}
"""The package behind each method."""

COMPUTED_FROM_EDGES = (*PACKAGES, "libra")
"""The methods that need the graph."""

WITH_THREADS = ("hypergraph",)
"""The methods that compute one partition with all threads. Their library works in no fork of a process that used it."""


def library(method: str) -> Any:
    """The module behind a method."""
    package = PACKAGES[method]
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(
            f"the partition {method} needs the package {package}, which cannot be imported ({error}). Install it: "
            "pip install 'parallel-gnn-harness[partition]'. Without it there are block, random and file:NAME."
        ) from None


def engine(method: str) -> str:
    """The library of a method and its version; empty if the method needs no library."""
    package = PACKAGES.get(method)
    return f"{package} {version(package)}" if package else ""


# METIS: parts of equal numbers of vertices that cut few edges (Karypis and Kumar, 1998), as CAGNET uses it.
#
# METIS gets the undirected graph without loops: u and v are neighbours if A has (u, v) or (v, u). Vertices and edges
# weigh 1, so METIS balances vertices, not nonzeros, and minimises cut edges, not words. Parts may be empty.

SEEDS = 1 << 31
"""The number of seeds that METIS accepts."""
METIS_BYTES_PER_ENTRY = 160
"""Bytes of memory for every neighbour of a vertex: METIS keeps the graphs of all levels of coarsening."""


def metis_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """The part of every vertex, by k-way partitioning."""
    pymetis = library("metis")
    index = pymetis.zero_copy_dtype()
    M = neighbours(A)
    graph = pymetis.CSRAdjacency(M.indptr.astype(index), M.indices.astype(index))
    options = pymetis.Options(seed=seed % SEEDS)
    result = pymetis.part_graph(parts, graph, recursive=False, options=options)
    return torch.from_numpy(np.array(result.vertex_part, dtype=np.int64))


def neighbours(A: Csr) -> Any:
    """The pattern of A + A^T without the diagonal, as a boolean scipy matrix."""
    from scipy.sparse import csr_array

    pattern = csr_array((np.ones(A.nnz, dtype=bool), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    M = (pattern + pattern.T).tocsr()
    M.setdiag(False)
    M.eliminate_zeros()
    return M


# METIS with two constraints: parts of equal numbers of vertices and of equal sums of degrees (G3, equations 1 to 3).
#
# pymetis has no call for several constraints, and accepts a list of weights of any length silently. So METIS's own
# function is called in the library inside pymetis, after a trial on a small graph: with one constraint, METIS would
# balance only one of the two sums there.
# Verifier (tests/graph/test_partition_swap.py): both balances, counted.

Ints = NDArray[np.int64]
OPTIONS, OK = 40, 1
STAR = 32
TOLERANCE = 1.2
"""The imbalance allowed on the small graph, where a single vertex is 3 % of a part."""


def balanced_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """The part of every vertex, by METIS with two constraints."""
    metis = library("metis-balanced")
    _try(metis)
    M = neighbours(A)
    degrees = np.diff(M.indptr)
    weights = np.stack([np.ones_like(degrees), degrees], axis=1)
    return torch.from_numpy(kway(metis, M.indptr, M.indices, weights, parts, seed % SEEDS))


def kway(metis: Any, starts: Any, ends: Any, weights: Any, parts: int, seed: int) -> Ints:
    """METIS_PartGraphKway with as many constraints as the weights have columns, and METIS's own tolerances."""
    call, defaults = _functions(metis)
    index = metis.zero_copy_dtype()
    xadj, adjncy, vwgt = (np.ascontiguousarray(each, dtype=index) for each in (starts, ends, weights))
    options, part, cut = np.zeros(OPTIONS, index), np.zeros(len(xadj) - 1, index), np.zeros(1, index)
    defaults(options.ctypes)
    options[int(metis._internal.options_indices.SEED)] = seed
    n, constraints, few = (np.array([each], index) for each in (len(part), vwgt.shape[1], parts))
    arguments = [n, constraints, xadj, adjncy, vwgt, None, None, few, None, None, options, cut, part]
    status = call(*(None if each is None else each.ctypes for each in arguments))
    assert status == OK, f"METIS ended with status {status}"
    return part.astype(np.int64)


def _functions(metis: Any) -> tuple[Any, Any]:
    """METIS_PartGraphKway and METIS_SetDefaultOptions of the library inside pymetis."""
    try:
        inside = ctypes.CDLL(metis._internal.__file__)
        return inside.METIS_PartGraphKway, inside.METIS_SetDefaultOptions
    except (OSError, AttributeError) as error:
        raise UserError(_refusal(f"has no METIS_PartGraphKway ({error})")) from None


def _try(metis: Any) -> None:
    """Tries METIS on a clique beside a path: balanced by vertices alone, one half would have nearly all degrees."""
    clique = [(i, j) for i in range(STAR) for j in range(STAR) if i != j]
    path = [(i, i + 1) for i in range(STAR, 2 * STAR - 1)]
    edges = np.array(sorted([*clique, *path, *((j, i) for i, j in path)]))
    degrees = np.bincount(edges[:, 0], minlength=2 * STAR)
    starts = np.concatenate([[0], degrees.cumsum()])
    weights = np.stack([np.ones_like(degrees), degrees], axis=1)
    part = kway(metis, starts, edges[:, 1], weights, 2, seed=0)
    for each in weights.T:
        worst = np.bincount(part, weights=each, minlength=2).max() / (each.sum() / 2)
        if worst > TOLERANCE:
            raise UserError(_refusal(f"left one of two equal halves {worst:.2f} times as heavy as the mean"))


def _refusal(reason: str) -> str:
    return (
        f"the partition metis-balanced needs METIS with two constraints, and the library of this pymetis {reason}. "
        "Install the version of constraints.txt, or use metis or hypergraph."
    )


# Mt-KaHyPar: parts of equal numbers of nonzeros that exchange few rows, in the place of CAGNET's Graph-VB.
#
# The column-net model (Çatalyürek and Aykanat, 1999): vertex i is row i of A and weighs its nonzeros; net j holds the
# rows with a nonzero in column j, and row j itself. A net that touches k parts is a row of H that k - 1 other parts
# need. So the metric km1, which is minimised, is exactly the number of rows sent in an aggregation. Graph-VB also
# bounds the largest share of a part; this model does not (`harness.graph.partition` counts the shares).

HYPERGRAPH_BYTES_PER_ENTRY = 320
"""Bytes of memory for every nonzero."""
EPSILON = 0.03
"""The weight that a part may have above the mean, as a share of the mean."""


def hypergraph_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """The part of every vertex, by minimising km1.

    The preset gives the same partition on any number of threads and, up to version 1.7, for any argument of `set_seed`.
    So the seed numbers the vertices instead.
    """
    mtkahypar = library("hypergraph")
    number = random_order(seed, Purpose.PARTITION, range(A.rows))
    weights = np.empty(A.rows, dtype=np.int64)
    weights[number] = A.rowptr.diff().numpy()
    start = mtkahypar.initialize(torch.get_num_threads(), False)
    context = start.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(parts, EPSILON, mtkahypar.Objective.KM1)
    context.logging = False
    ones = np.ones(A.cols, dtype=np.int64)
    graph = start.create_hypergraph(context, A.rows, A.cols, nets(A, number.numpy()), weights, ones)
    part = np.asarray(graph.partition(context).get_partition(), dtype=np.int64)
    return torch.from_numpy(part)[number]


def nets(A: Csr, number: Any) -> list[Any]:
    """The net of every column j: the numbers of the rows with a nonzero in column j, and of row j."""
    from scipy.sparse import csr_array, eye_array

    pattern = csr_array((np.ones(A.nnz, dtype=bool), A.col.numpy(), A.rowptr.numpy()), shape=A.shape)
    columns = (pattern + eye_array(A.rows, dtype=bool)).tocsc()
    return np.split(number[columns.indices], columns.indptr[1:-1])


# Libra: a vertex cut. Edges are assigned to parts, and a vertex has a copy in every part with an edge of its own
# (Xie, Yan, Li and Zhang, Distributed power-law graph computing, NIPS 2014, as DistGNN uses it, Md et al., SC 2021).
#
# The edges come one by one, in an order drawn from the seed. An edge goes to the part with the fewest edges so far
#
#   1. among those that have copies of both ends;
#   2. if no part has: among those that have a copy of the end with fewer neighbours;
#   3. if one end has no copy yet: among those of the other end; if none has: among all.
#
# Both directions of an edge are in one part. One copy of a vertex is its master: of the parts that have a copy, the one
# with the fewest masters so far. A loop, and a vertex without edges, is in the part of the master.
# Verifier (tests/graph/test_partition.py): the rules in plain Python, and copies counted by scipy.

LIBRA_BYTES_PER_ENTRY = 96
"""Bytes of memory for every nonzero: keys of edges, sorted, and places of these."""
WORD = 64
"""The parts of which one number says whether a vertex has a copy there."""


@dataclass(frozen=True)
class VertexCut:
    """A partition of the edges."""

    part: Tensor
    """The part of every vertex's master, (n,)."""
    edges: Tensor
    """The part of every nonzero of A, row by row, (nnz,) of int32."""
    copies: tuple[int, ...]
    """The vertices that each part has a copy of."""

    @property
    def report(self) -> dict[str, Any]:
        """The report for a record."""
        entries = torch.bincount(self.edges, minlength=len(self.copies)).tolist()
        return {"copies": list(self.copies), "entries": entries}


def libra_parts(A: Csr, parts: int, seed: int) -> VertexCut:
    """The vertex cut of a graph."""
    row, col = row_indices(A).numpy(), A.col.numpy().astype(np.int64)
    apart = row != col
    key = np.minimum(row, col)[apart] * A.rows + np.maximum(row, col)[apart]
    keys, edge_of = np.unique(key, return_inverse=True)
    one, other = np.divmod(keys, max(A.rows, 1))
    degree = np.bincount(one, minlength=A.rows) + np.bincount(other, minlength=A.rows)
    order = random_order(seed, Purpose.PARTITION, range(len(keys))).numpy()
    copies = np.zeros((A.rows, -(-parts // WORD)), np.uint64)
    part_of = np.empty(len(keys), np.int32)
    _assign_edges(one, other, order, degree, copies, np.zeros(parts, np.int64), part_of)
    master = np.empty(A.rows, np.int32)
    _choose_masters(copies, np.zeros(parts, np.int64), master)
    edges = master[row]
    edges[apart] = part_of[edge_of]
    held = tuple(
        int((copies[:, p // WORD] >> np.uint64(p % WORD) & np.uint64(1)).sum()) for p in range(parts)
    )
    return VertexCut(torch.from_numpy(master), torch.from_numpy(edges), held)


@compiled()
def _has(copies: Any, part: int) -> Any:
    return (copies[part // WORD] >> np.uint64(part % WORD)) & np.uint64(1) != 0


@compiled()
def _add(copies: Any, part: int) -> None:
    copies[part // WORD] |= np.uint64(1) << np.uint64(part % WORD)


@compiled()
def _assign_edges(
    one: Any, other: Any, order: Any, degree: Any, copies: Any, load: Any, part_of: Any
) -> None:
    """Assigns every edge; of equally loaded parts, the first."""
    for edge in order:
        u, v = one[edge], other[edge]
        both = least_u = least_v = least = -1
        for part in range(load.size):
            in_u, in_v = _has(copies[u], part), _has(copies[v], part)
            if in_u and in_v and (both < 0 or load[part] < load[both]):
                both = part
            if in_u and (least_u < 0 or load[part] < load[least_u]):
                least_u = part
            if in_v and (least_v < 0 or load[part] < load[least_v]):
                least_v = part
            if least < 0 or load[part] < load[least]:
                least = part
        if both >= 0:
            chosen = both
        elif least_u >= 0 and least_v >= 0:
            chosen = least_u if degree[u] < degree[v] else least_v
        elif least_u >= 0:
            chosen = least_u
        else:
            chosen = least_v if least_v >= 0 else least
        part_of[edge] = chosen
        load[chosen] += 1
        _add(copies[u], chosen)
        _add(copies[v], chosen)


@compiled()
def _choose_masters(copies: Any, masters: Any, master: Any) -> None:
    """Chooses every vertex's master; a vertex without edges gets its only copy there."""
    for vertex in range(master.size):
        chosen = least = -1
        for part in range(masters.size):
            if _has(copies[vertex], part) and (chosen < 0 or masters[part] < masters[chosen]):
                chosen = part
            if least < 0 or masters[part] < masters[least]:
                least = part
        if chosen < 0:
            chosen = least
            _add(copies[vertex], chosen)
        master[vertex] = chosen
        masters[chosen] += 1
