"""How likely a vertex is in a mini-batch: the analysis by which SALIENT++ fills its caches (Kaler et al., MLSys 2023).

A vertex u of the frontier draws its neighbour v with chance min(1, s / d_u), d_u its neighbours but itself. So with p
the chance of being in the frontier, hop after hop

    1 - p'(v) = (1 - p(v)) product over u of (1 - p(u) min(1, s / d_u)),

as if the vertices of a frontier were independent. The graph is read in stripes of rows, one at a time.
Verifier (tests/parallel/test_cache.py): dense matrices, and how often samplers meet a vertex.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.kernels import Csr, row_of

Stripe = Callable[[range], Csr]
"""Some rows of a graph, with all its columns."""


def inclusion(graph: Stripe, blocks: Sequence[range], p: Tensor, fanouts: Sequence[int]) -> Tensor:
    """The chance of every vertex to be in a batch's input, `p` that of being in the batch; float64."""
    for fanout in fanouts:
        absent = torch.log1p(-p)
        for rows in blocks:
            u, v = edges(graph(rows), rows)
            degree = u.bincount(minlength=rows.stop).clamp(min=1).double()
            drawn = p[u] * (fanout / degree[u]).clamp(max=1)
            absent += v.bincount(torch.log1p(-drawn), minlength=len(p))
        p = -torch.expm1(absent)
    return p


def listeners(graph: Stripe, blocks: Sequence[range], vertices: int) -> Tensor:
    """How many rows have an entry in the column of every vertex, its own not counted; float64."""
    counts = torch.zeros(vertices, dtype=torch.float64)
    for rows in blocks:
        counts += edges(graph(rows), rows)[1].bincount(minlength=vertices)
    return counts


def edges(A: Csr, rows: range) -> tuple[Tensor, Tensor]:
    """Row and column of every entry of these rows of a graph, loops left out."""
    u, v = row_of(A) + rows.start, A.col.long()
    return u[u != v], v[u != v]
