"""Vertices in the order in which a search comes to them.

Verifier (tests/kernels/test_traverse.py): scipy's search of every component.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.jit import compiled


def breadth_first(A: Csr) -> Tensor:
    """All vertices, component by component: from the first that was not met yet, along the entries of its row."""
    assert A.rows == A.cols
    found = np.empty(A.rows, np.int64)
    _search(A.rowptr.numpy(), A.col.numpy(), found)
    return torch.from_numpy(found)


@compiled()
def _search(rowptr: Any, col: Any, found: Any) -> None:
    met = np.zeros(found.size, np.bool_)
    head = tail = 0
    for first in range(found.size):
        if met[first]:
            continue
        met[first] = True
        found[tail] = first
        tail += 1
        while head < tail:
            v = found[head]
            head += 1
            for e in range(rowptr[v], rowptr[v + 1]):
                u = col[e]
                if not met[u]:
                    met[u] = True
                    found[tail] = u
                    tail += 1
