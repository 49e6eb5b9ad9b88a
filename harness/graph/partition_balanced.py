"""METIS with two constraints: parts of equal numbers of vertices and of equal sums of degrees (G3, equations 1 to 3).

pymetis has no call for several constraints, and takes a list of weights of any length without a word, so METIS's own
function is called in the library that pymetis brings. Whether that works is tried on a small graph first, of which
one constraint alone would balance only one of the two.
Verifier (tests/graph/test_partition_swap.py): both balances, counted.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.errors import UserError
from harness.graph.partition_engine import library
from harness.graph.partition_metis import SEEDS, neighbours
from harness.kernels.csr import Csr

Ints = NDArray[np.int64]
OPTIONS, OK = 40, 1
STAR = 32
TOLERANCE = 1.2
"""What METIS may miss its 3 % by on the small graph, where a vertex is 3 % of a part."""


def balanced_parts(A: Csr, parts: int, seed: int) -> Tensor:
    """The part of every vertex."""
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
    given = [n, constraints, xadj, adjncy, vwgt, None, None, few, None, None, options, cut, part]
    status = call(*(None if each is None else each.ctypes for each in given))
    assert status == OK, f"METIS ended with status {status}"
    return part.astype(np.int64)


def _functions(metis: Any) -> tuple[Any, Any]:
    """In the library that pymetis is made of, by METIS's own names."""
    try:
        inside = ctypes.CDLL(metis._internal.__file__)
        return inside.METIS_PartGraphKway, inside.METIS_SetDefaultOptions
    except (OSError, AttributeError) as error:
        raise UserError(_told(f"has no METIS_PartGraphKway ({error})")) from None


def _try(metis: Any) -> None:
    """A complete graph beside as many vertices on a path: by number alone, one half has nearly all degrees."""
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
            raise UserError(_told(f"left one of two equal halves {worst:.2f} times as heavy as the mean"))


def _told(what: str) -> str:
    return (
        f"the partition metis-balanced needs METIS with two constraints, and the library of this pymetis {what}. "
        "Install the version of constraints.txt, or use metis or hypergraph."
    )
