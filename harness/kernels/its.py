"""Inverse transform sampling: some entries of every row of P = Q A, each as likely as its mass says.

Masses are integers, so nothing hangs on the order in which they were summed. A dart is a random number below the mass
that is left in a row, and takes the entry in whose stretch of the running sum it lands; what is taken leaves the row,
or stays if draws are with replacement. A dart is a function of its batch's key, its row and its number alone: whoever
has the row draws the same, whichever other rows and batches stand beside it.

Where Q has one nonzero a row, a row of P is a row of A with equal masses. It is drawn from where it stands, and P is
never written down: that is the whole of GraphSAGE. On a CPU only; of shapes alone, as many entries as the mean row has.
Verifier (tests/kernels/test_its.py): the definition in Python, and every outcome of tiny rows enumerated.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.kernels.csr import Csr
from harness.kernels.random import Purpose, Seed, key_of, signed
from harness.kernels.stack import Stack

DART_BITS = 16
"""Of the counter of a dart; its row has the others."""

MOST = (1 << DART_BITS) - 1
"""Entries that can be drawn of a row."""


def keys_of(seeds: Sequence[Seed]) -> Tensor:
    """The keys of some batches, one row each."""
    keys = [[signed(word) for word in key_of(seed, Purpose.SAMPLE)] for seed in seeds]
    return torch.tensor(keys, dtype=torch.int64).view(len(seeds), 2)


def draw_rows(A: Csr, stack: Stack, fanout: int, keys: Tensor, own: Stack | None = None) -> Csr:
    """`fanout` different entries of each row of Q A, every set as likely, rescaled to the mean of the whole row.

    Q has a one in each row, at the row of A that the stack says; `own` says whose vertex's darts are thrown, where that
    is not the same number. Rows of no more entries stay whole. Columns are those of A.
    """
    assert 0 < fanout <= MOST, fanout
    rows = len(stack.vertices)
    if A.val.is_meta:
        nnz = min(rows * fanout, rows * A.nnz // max(A.rows, 1))
        return Csr(A.rowptr.new_empty(rows + 1), A.col.new_empty(nnz), A.val.new_empty(nnz), A.cols)
    from harness.kernels.its_compiled import draw_uniformly

    most = int(A.rowptr.diff()[stack.vertices].clamp(max=fanout).sum())
    S = Csr(torch.zeros(rows + 1, dtype=torch.int64), A.col.new_empty(most), A.val.new_empty(most), A.cols)
    nnz = draw_uniformly(
        arrays(A),
        arrays(stack),
        (stack if own is None else own).vertices.numpy(),
        fanout,
        keys.numpy(),
        arrays(S),
    )
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


def draw_masses(P: Csr, darts: int, keys: Tensor, *, replacement: bool) -> Csr:
    """The entries of P that are taken, so many darts a row, row i under key i; each by what it is to be multiplied.

    P has masses of 1 or more, int64. An entry of chance p that is taken t times of s is multiplied by t / (s p).
    Without replacement a row of no more entries than darts is taken as it is.
    """
    assert 0 < darts <= MOST, darts
    assert P.val.dtype == torch.int64
    from harness.kernels.its_compiled import draw_by_mass

    most = int(P.rowptr.diff().clamp(max=darts).sum())
    S = Csr(torch.zeros_like(P.rowptr), P.col.new_empty(most), torch.empty(most, dtype=torch.float64), P.cols)
    nnz = draw_by_mass(arrays(P), darts, replacement, keys.numpy(), arrays(S))
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


def arrays(matrix: Csr | Stack) -> tuple[Any, ...]:
    """The tensors of a matrix or a stack as a compiled loop takes them."""
    return tuple(part.numpy() for part in matrix if isinstance(part, Tensor))
