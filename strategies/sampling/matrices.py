"""Matrices of many mini-batches one below the other: inverse transform sampling of their rows, and extraction.

Stacked matrices have a row for every vertex of every batch. Before extraction, a column is a vertex of the graph. After
extraction, a column is a place in its own batch's list of vertices, which begins with the vertices of the batch's rows.

Some entries of every row of P = Q A are drawn, each with a chance in proportion to its mass. Masses are integers, so no
order of summation changes a draw. A dart is a random number below the mass that is left in a row, and takes the entry
in whose stretch of the running sum it lands. An entry that was taken leaves the row, or stays if draws are with
replacement. A dart is a function of its batch's key, its row and its number alone: every rank that has the row draws
the same entries, whichever rows and batches stand beside it. Where Q has one nonzero per row, a row of P is a row of A
with equal masses. It is drawn from in place and P is never written down, which is the whole of GraphSAGE. Compiled
loops work on a CPU and tensor operations on a GPU (`vectorised`), with equal bits; of shapes alone, a row has as many
entries as the mean row. Verifier (tests/sampling/test_its.py,
test_extract.py): the definition in Python, every outcome of tiny rows enumerated, and scipy's products with the
extraction matrices of the paper.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.device import is_on_gpu, upload
from harness.kernels import from_coo, row_indices
from harness.kernels.csr import Csr, index_dtype, relabel_columns
from harness.kernels.parts import extract_block
from harness.kernels.random import Purpose, Seed, derive_key, to_signed
from harness.strategies.sampling import compiled, vectorised
from harness.strategies.sampling.sampler import arrays, unfilled

DART_BITS = 16
"""The bits for the number of a dart in its counter; the other bits are for the row."""

MAX_DARTS = (1 << DART_BITS) - 1
"""The most entries that can be drawn from a row."""


class BatchStack(NamedTuple):
    """The vertices of some batches, int64, batch after batch; and where each batch begins, int64, with the end.

    The vertices are where the entries of A are, and the starts on the host.
    """

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
        rows = self.span(batch)
        return self.vertices[rows.start : rows.stop]


def stacked(batches: Sequence[Tensor], device: torch.device | None = None) -> BatchStack:
    """Some batches of the host, one below the other, on a device."""
    lengths = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    vertices = torch.cat([torch.empty(0, dtype=torch.int64), *batches])
    return BatchStack(upload(vertices, device) if device else vertices, pad(lengths.cumsum(0), (1, 0)))


def one_batch(vertices: range, device: torch.device | None = None) -> BatchStack:
    """A single batch, of a range of vertices."""
    everyone = torch.arange(vertices.start, vertices.stop, device=device)
    return BatchStack(everyone, torch.tensor([0, len(vertices)]))


def matrix_of_batch(A: Csr, rows: BatchStack, cols: BatchStack, batch: int) -> Csr:
    """The matrix of one batch, cut out of a stacked matrix whose columns are places."""
    return extract_block(A, rows.span(batch), range(A.cols))._replace(cols=len(cols.span(batch)))


def keys_of(seeds: Sequence[Seed]) -> Tensor:
    """The keys of some batches, one row each."""
    keys = [[to_signed(word) for word in derive_key(seed, Purpose.SAMPLE)] for seed in seeds]
    return torch.tensor(keys, dtype=torch.int64).view(len(seeds), 2)


def draw_rows(A: Csr, stack: BatchStack, fanout: int, keys: Tensor, own: BatchStack | None = None) -> Csr:
    """`fanout` different entries of each row of Q A, every set equally likely, rescaled to the mean of the whole row.

    Q has a one in each row, at the row of A that the stack names. `own` has the vertices whose darts are thrown, where
    these differ from the rows of A. Rows of no more than `fanout` entries stay whole. Columns are those of A.
    """
    assert 0 < fanout <= MAX_DARTS, fanout
    rows = len(stack.vertices)
    if A.val.is_meta:
        return unfilled(A, rows, min(rows * fanout, rows * A.nnz // max(A.rows, 1)))
    vertices = (stack if own is None else own).vertices
    if is_on_gpu(A.val):
        key_R2 = upload(keys, A.val.device).index_select(0, _on_device(stack).batch)

        def choose(which: Tensor, of: Tensor) -> Tensor:
            counters, keys_L2 = (x.index_select(0, which) for x in (vertices, key_R2))
            return vectorised.choose_by_darts(counters, of, fanout, keys_L2)

        return vectorised.draw_entries(A, vectorised.spans_of(A, stack.vertices), fanout, choose)
    S = unfilled(A, rows, int(A.rowptr.diff()[stack.vertices].clamp(max=fanout).sum()))
    how = vertices.numpy(), fanout, keys.numpy()
    nnz = compiled.draw_uniformly(arrays(A), arrays(stack), *how, arrays(S))
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


def draw_masses(P: Csr, darts: int, keys: Tensor, *, replacement: bool) -> Csr:
    """The entries of P that `darts` darts per row take, row i under key i; a value is the weight of its column.

    P has masses of 1 or more, int64. An entry of chance p that is taken t times of s has the weight t / (s p). Without
    replacement, a row of no more entries than darts is taken as it is.
    """
    assert 0 < darts <= MAX_DARTS, darts
    assert P.val.dtype == torch.int64
    if is_on_gpu(P.val):
        return vectorised.draw_by_mass(P, darts, upload(keys, P.val.device), replacement=replacement)
    most = int(P.rowptr.diff().clamp(max=darts).sum())
    S = Csr(torch.zeros_like(P.rowptr), P.col.new_empty(most), torch.empty(most, dtype=torch.float64), P.cols)
    nnz = compiled.draw_by_mass(arrays(P), darts, replacement, keys.numpy(), arrays(S))
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


class Places:
    """A map from vertices to places in a batch, and the number of tags used so far: each batch marks with its own."""

    def __init__(self, vertices: int, device: torch.device | None = None) -> None:
        self.where = torch.zeros(vertices, dtype=torch.int64, device=device)
        self._used = 0

    def tags(self, batches: int) -> int:
        """The first of as many unused tags as there are batches."""
        first = self._used + 1
        self._used += batches
        assert self._used < 1 << 31, self._used
        return first


def renumber(S: Csr, stack: BatchStack, places: Places) -> tuple[Csr, BatchStack]:
    """GraphSAGE's extraction: drops empty columns, and numbers the others in the order of their first entry.

    Returns the stacked matrices and the vertices of their columns: the vertices of the rows, and then each new one
    once.
    """
    if is_on_gpu(S.val):
        rows = _on_device(stack)
        batch_E = vectorised.batch_of_entries(S, rows)
        joined_vertices, starts, place_E = vectorised.join(rows, batch_E, S.col, S.cols)
        inputs = BatchStack(joined_vertices, starts)
        return relabel_columns(S, place_E, _widest(inputs)), inputs
    vertices, starts = torch.empty(S.rows + S.nnz, dtype=torch.int64), torch.zeros_like(stack.starts)
    col, val = torch.empty(S.nnz, dtype=index_dtype(S.rows + S.nnz)), torch.empty_like(S.val)
    compiled.renumber_columns(
        arrays(S),
        arrays(stack),
        (places.where.numpy(), places.tags(stack.batches)),
        (col.numpy(), val.numpy()),
        (vertices.numpy(), starts.numpy()),
    )
    inputs = BatchStack(vertices[: int(starts[-1])], starts)
    return Csr(S.rowptr, col, val, _widest(inputs)), inputs


def sum_rows(R: Csr, stack: BatchStack, mass: Callable[[Tensor], Tensor]) -> Csr:
    """Q M, int64: Q has a row per batch with a one at each of its rows of R, and M is R with masses for values."""
    masses, batches = mass(R.val), stack.batches
    if is_on_gpu(R.val):
        batch_E = vectorised.batch_of_entries(R, _on_device(stack))
        return from_coo(batch_E, R.col, masses, (batches, R.cols), sum_duplicates=True)
    P = Csr(
        torch.zeros(batches + 1, dtype=torch.int64), torch.empty_like(R.col), torch.empty_like(masses), R.cols
    )
    sums = torch.zeros(R.cols, dtype=torch.int64)
    R_arrays = R.rowptr.numpy(), R.col.numpy(), masses.numpy()
    nnz = compiled.sum_columns(R_arrays, stack.starts.numpy(), sums.numpy(), arrays(P))
    return P._replace(col=P.col[:nnz].clone(), val=P.val[:nnz].clone())


def joined(stack: BatchStack, chosen: Csr, places: Places) -> BatchStack:
    """The vertices of every batch, and then the new vertices in its row of `chosen`."""
    if is_on_gpu(chosen.val):
        joined_vertices, starts, _ = vectorised.join(
            _on_device(stack), row_indices(chosen), chosen.col, chosen.cols
        )
        return BatchStack(joined_vertices, starts)
    vertices = torch.empty(len(stack.vertices) + chosen.nnz, dtype=torch.int64)
    starts = torch.zeros_like(stack.starts)
    compiled.join_columns(
        arrays(stack),
        arrays(chosen)[:2],
        (places.where.numpy(), places.tags(stack.batches)),
        (vertices.numpy(), starts.numpy()),
    )
    return BatchStack(vertices[: int(starts[-1])], starts)


def extract_columns(R: Csr, stack: BatchStack, inputs: BatchStack, chosen: Csr, places: Places) -> Csr:
    """R at the chosen columns of every batch, numbered by their places in the batch's input."""
    if is_on_gpu(R.val):
        batch_E = vectorised.batch_of_entries(R, _on_device(stack))
        return vectorised.extract(R, batch_E, _on_device(inputs), chosen, _widest(inputs))
    rowptr, col, val = torch.zeros_like(R.rowptr), torch.empty_like(R.col), torch.empty_like(R.val)
    nnz = compiled.keep_columns(
        arrays(R),
        (stack.starts.numpy(), *arrays(inputs)),
        arrays(chosen),
        (places.where.numpy(), places.tags(stack.batches)),
        (rowptr.numpy(), col.numpy(), val.numpy()),
    )
    return Csr(rowptr, col[:nnz].clone(), val[:nnz].clone(), _widest(inputs))


def _on_device(stack: BatchStack) -> vectorised.Stack:
    """A stack whose starts are on the device of its vertices too."""
    return vectorised.stack_on(stack.vertices, upload(stack.starts, stack.vertices.device))


def _widest(inputs: BatchStack) -> int:
    return int(inputs.starts.diff().max()) if inputs.batches else 0


def unit_masses(val: Tensor) -> Tensor:
    """A mass of 1 for every entry."""
    return torch.ones(val.shape, dtype=torch.int64, device=val.device)


ONE = 1 << 40


def square_masses(val: Tensor) -> Tensor:
    """The square of every value in units of 2^-40, from 1 to 2^40: normalised adjacencies have no larger values."""
    return (val.double().square() * ONE).round().long().clamp(1, ONE)
