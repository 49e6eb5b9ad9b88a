"""Libra: a vertex cut. Edges are assigned to parts, and a vertex has a copy in every part that has one of its edges
(Xie, Yan, Li and Zhang, Distributed power-law graph computing, NIPS 2014, as DistGNN uses it, Md et al., SC 2021).

Edges are assigned one by one, in an order drawn from the seed. An edge goes to the part with the fewest edges so far

  1. among the parts that have copies of both ends;
  2. if there are none, among the parts that have a copy of the end with fewer neighbours;
  3. if one end has no copy yet, among the parts that have a copy of the other end; if neither has, among all parts.

Both directions of an edge are in one part. The master of a vertex is its copy in the part that has the fewest masters
so far. A loop is in the part of the master, and so is a vertex without edges.
Verifier (tests/graph/test_partition.py): the rules in plain Python, and copies counted by scipy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr, row_indices
from harness.kernels.jit import compiled
from harness.kernels.random import Purpose, random_order

LIBRA_BYTES_PER_ENTRY = 96
"""Memory for each nonzero: keys of edges, sorted keys, and their positions."""
WORD = 64
"""Parts per word of the bit sets that say where a vertex has copies."""


@dataclass(frozen=True)
class VertexCut:
    """A partition of the edges."""

    part: Tensor
    """The part of the master of every vertex, (n,)."""
    edges: Tensor
    """The part of every nonzero of A, row by row, (nnz,) int32."""
    copies: tuple[int, ...]
    """The number of vertices copied to each part."""

    @property
    def report(self) -> dict[str, Any]:
        """The entries of the partition's record about this cut."""
        entries = torch.bincount(self.edges, minlength=len(self.copies)).tolist()
        return {"copies": list(self.copies), "entries": entries}


def partition_with_libra(A: Csr, parts: int, seed: int) -> VertexCut:
    """Return a vertex cut of a graph."""
    row, col = row_indices(A).numpy(), A.col.numpy().astype(np.int64)
    is_edge = row != col
    key = np.minimum(row, col)[is_edge] * A.rows + np.maximum(row, col)[is_edge]
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
    edges[is_edge] = part_of[edge_of]
    copy_counts = tuple(
        int((copies[:, p // WORD] >> np.uint64(p % WORD) & np.uint64(1)).sum()) for p in range(parts)
    )
    return VertexCut(torch.from_numpy(master), torch.from_numpy(edges), copy_counts)


@compiled()
def _has_copy(copies: Any, part: int) -> Any:
    return (copies[part // WORD] >> np.uint64(part % WORD)) & np.uint64(1) != 0


@compiled()
def _add_copy(copies: Any, part: int) -> None:
    copies[part // WORD] |= np.uint64(1) << np.uint64(part % WORD)


@compiled()
def _assign_edges(
    one: Any, other: Any, order: Any, degree: Any, copies: Any, load: Any, part_of: Any
) -> None:
    """Assign every edge to a part; of equally loaded parts, to the first."""
    for edge in order:
        u, v = one[edge], other[edge]
        both = least_u = least_v = least = -1
        for part in range(load.size):
            in_u, in_v = _has_copy(copies[u], part), _has_copy(copies[v], part)
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
        _add_copy(copies[u], chosen)
        _add_copy(copies[v], chosen)


@compiled()
def _choose_masters(copies: Any, masters: Any, master: Any) -> None:
    """Choose the master of every vertex; a vertex without edges gets its only copy there."""
    for vertex in range(master.size):
        chosen = least = -1
        for part in range(masters.size):
            if _has_copy(copies[vertex], part) and (chosen < 0 or masters[part] < masters[chosen]):
                chosen = part
            if least < 0 or masters[part] < masters[least]:
                least = part
        if chosen < 0:
            chosen = least
            _add_copy(copies[vertex], chosen)
        master[vertex] = chosen
        masters[chosen] += 1
