"""Extraction from sampled matrices, batch by batch: which vertices a layer needs, and where they stand in its input.

The input of a layer begins with the vertices of its output and goes on with those that were drawn. A column is found by
a map of all vertices that is never cleared: what counts in it bears the tag of the current batch. On a CPU only.
Verifier (tests/kernels/test_extract.py): scipy's products with the extraction matrices of the paper.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.kernels.csr import Csr, index_dtype
from harness.kernels.its import arrays
from harness.kernels.stack import Stack


class Places:
    """A map of vertices to places in a batch, and the tags that were used in it."""

    def __init__(self, vertices: int) -> None:
        self.where = torch.zeros(vertices, dtype=torch.int64)
        self._used = 0

    def tags(self, batches: int) -> int:
        """The first of so many tags that nobody had."""
        first = self._used + 1
        self._used += batches
        assert self._used < 1 << 31, self._used
        return first


def renumber(S: Csr, stack: Stack, places: Places) -> tuple[Csr, Stack]:
    """GraphSAGE's extraction: empty columns leave, and the others stand as they are met, row after row.

    Returns the stacked matrices and the vertices of their columns: those of the rows, and then each new one once.
    """
    from harness.kernels.extract_compiled import renumber_columns

    found, starts = torch.empty(S.rows + S.nnz, dtype=torch.int64), torch.zeros_like(stack.starts)
    col, val = torch.empty(S.nnz, dtype=index_dtype(S.rows + S.nnz)), torch.empty_like(S.val)
    renumber_columns(
        arrays(S),
        arrays(stack),
        (places.where.numpy(), places.tags(stack.batches)),
        (col.numpy(), val.numpy()),
        (found.numpy(), starts.numpy()),
    )
    inputs = Stack(found[: int(starts[-1])], starts)
    return Csr(S.rowptr, col, val, _widest(inputs)), inputs


def sum_rows(R: Csr, stack: Stack, mass: Callable[[Tensor], Tensor]) -> Csr:
    """Q M, where Q has a row a batch with a one at each of its rows of R, and M is R with these masses, int64."""
    from harness.kernels.extract_compiled import sum_columns

    masses, batches = mass(R.val), stack.batches
    P = Csr(
        torch.zeros(batches + 1, dtype=torch.int64), torch.empty_like(R.col), torch.empty_like(masses), R.cols
    )
    sums = torch.zeros(R.cols, dtype=torch.int64)
    R_arrays = R.rowptr.numpy(), R.col.numpy(), masses.numpy()
    nnz = sum_columns(R_arrays, stack.starts.numpy(), sums.numpy(), arrays(P))
    return P._replace(col=P.col[:nnz].clone(), val=P.val[:nnz].clone())


def join(stack: Stack, chosen: Csr, places: Places) -> Stack:
    """The vertices of every batch, and after them those of its row of `chosen` that are new."""
    from harness.kernels.extract_compiled import join_columns

    found = torch.empty(len(stack.vertices) + chosen.nnz, dtype=torch.int64)
    starts = torch.zeros_like(stack.starts)
    join_columns(
        arrays(stack),
        arrays(chosen)[:2],
        (places.where.numpy(), places.tags(stack.batches)),
        (found.numpy(), starts.numpy()),
    )
    return Stack(found[: int(starts[-1])], starts)


def columns(R: Csr, stack: Stack, inputs: Stack, chosen: Csr, places: Places) -> Csr:
    """R at the chosen columns of every batch, numbered by their places in its input."""
    from harness.kernels.extract_compiled import keep_columns

    rowptr, col, val = torch.zeros_like(R.rowptr), torch.empty_like(R.col), torch.empty_like(R.val)
    nnz = keep_columns(
        arrays(R),
        (stack.starts.numpy(), *arrays(inputs)),
        arrays(chosen),
        (places.where.numpy(), places.tags(stack.batches)),
        (rowptr.numpy(), col.numpy(), val.numpy()),
    )
    return Csr(rowptr, col[:nnz].clone(), val[:nnz].clone(), _widest(inputs))


def _widest(inputs: Stack) -> int:
    return int(inputs.starts.diff().max()) if inputs.batches else 0


def counted(val: Tensor) -> Tensor:
    """Every entry has mass 1."""
    return torch.ones(val.shape, dtype=torch.int64)


ONE = 1 << 40


def squares(val: Tensor) -> Tensor:
    """The square of every value in units of 2^-40, from 1 to 2^40: normalised adjacencies have no larger ones."""
    return (val.double().square() * ONE).round().long().clamp(1, ONE)
