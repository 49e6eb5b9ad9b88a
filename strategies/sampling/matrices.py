"""Matrices of many mini-batches one below the other: inverse transform sampling of their rows, and extraction.

Stacked matrices have a row for every vertex of every batch. Before extraction their columns are vertices of the graph,
after it the places in their own batch's list of vertices, which begins with the vertices of its rows.

Some entries of every row of P = Q A are drawn, each as likely as its mass says. Masses are integers, so nothing hangs
on the order in which they were summed. A dart is a random number below the mass that is left in a row, and takes the
entry in whose stretch of the running sum it lands; what is taken leaves the row, or stays if draws are with
replacement. A dart is a function of its batch's key, its row and its number alone: whoever has the row draws the same,
whichever other rows and batches stand beside it. Where Q has one nonzero a row, a row of P is a row of A with equal
masses. It is drawn from where it stands, and P is never written down: that is the whole of GraphSAGE. On a CPU only; of
shapes alone, as many entries as the mean row has.
Verifier (tests/sampling/test_its.py, test_extract.py): the definition in Python, every outcome of tiny rows
enumerated, and scipy's products with the extraction matrices of the paper.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels.csr import Csr, block, index_dtype
from harness.kernels.random import Purpose, Seed, key_of, signed

DART_BITS = 16
"""Of the counter of a dart; its row has the others."""

MOST = (1 << DART_BITS) - 1
"""Entries that can be drawn of a row."""


class Stack(NamedTuple):
    """vertices int64, batch after batch; starts int64 (batches + 1), where each begins, and the end."""

    vertices: Tensor
    starts: Tensor

    @property
    def batches(self) -> int:
        return self.starts.numel() - 1

    def span(self, batch: int) -> range:
        """The rows of a batch."""
        return range(int(self.starts[batch]), int(self.starts[batch + 1]))

    def of(self, batch: int) -> Tensor:
        """The vertices of a batch."""
        here = self.span(batch)
        return self.vertices[here.start : here.stop]


def stacked(batches: Sequence[Tensor]) -> Stack:
    """Some batches, one below the other."""
    lengths = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    nothing = torch.empty(0, dtype=torch.int64)
    return Stack(torch.cat([nothing, *batches]), pad(lengths.cumsum(0), (1, 0)))


def one_batch(vertices: range) -> Stack:
    """A batch of a range of vertices, alone."""
    return Stack(torch.arange(vertices.start, vertices.stop), torch.tensor([0, len(vertices)]))


def one_of(A: Csr, rows: Stack, cols: Stack, batch: int) -> Csr:
    """The matrix of one batch, cut out of a stacked one whose columns are places."""
    return block(A, rows.span(batch), range(A.cols))._replace(cols=len(cols.span(batch)))


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
    from strategies.sampling.compiled import draw_uniformly

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
    from strategies.sampling.compiled import draw_by_mass

    most = int(P.rowptr.diff().clamp(max=darts).sum())
    S = Csr(torch.zeros_like(P.rowptr), P.col.new_empty(most), torch.empty(most, dtype=torch.float64), P.cols)
    nnz = draw_by_mass(arrays(P), darts, replacement, keys.numpy(), arrays(S))
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


def arrays(matrix: Csr | Stack) -> tuple[Any, ...]:
    """The tensors of a matrix or a stack as a compiled loop takes them."""
    return tuple(part.numpy() for part in matrix if isinstance(part, Tensor))


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
    from strategies.sampling.compiled import renumber_columns

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
    from strategies.sampling.compiled import sum_columns

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
    from strategies.sampling.compiled import join_columns

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
    from strategies.sampling.compiled import keep_columns

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
