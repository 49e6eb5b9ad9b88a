"""Stacked matrices of many mini-batches: inverse transform sampling of their rows, and extraction.

Stacked matrices have a row for each vertex of each batch. Before extraction, a column is a vertex of the graph. After
extraction, a column is a position in its batch's list of vertices, which begins with the vertices of the batch's rows.

Entries of each row of P = Q A are drawn with a probability proportional to their mass. Masses are integers, so the
order of summation does not change a draw. A dart is a random number below the remaining mass of a row, and takes the
entry whose interval of the running sum contains it. A taken entry leaves the row, or stays if draws are with
replacement. A dart is a function only of its batch's key, its row and its number, so every rank that has a row draws
the same entries, whatever the other rows and batches are. Where Q has one nonzero per row, as in GraphSAGE, a row of P
is a row of A with equal masses; entries are then drawn from A directly, without storing P. Compiled loops run on a CPU
and tensor operations on a GPU (`vectorised`), with equal bits; with shapes only, every row has the mean number of
entries. Tested in tests/sampling/test_its.py and test_extract.py against the definition in Python, all outcomes of tiny
rows, and scipy's products with the paper's extraction matrices.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.base.device import is_on_gpu, upload
from harness.kernels import from_coo, row_indices
from harness.kernels.csr import Csr, index_dtype, relabel_columns
from harness.kernels.parts import extract_block
from harness.kernels.random import Purpose, Seed, derive_key, to_signed
from harness.strategies.sampling import compiled, vectorised
from harness.strategies.sampling.sampler import allocate_rows, as_arrays

DART_BITS = 16
"""The bits of a counter that hold the number of a dart; the others hold the row."""

MAX_DARTS = (1 << DART_BITS) - 1
"""The most entries that can be drawn from a row."""


class BatchStack(NamedTuple):
    """The concatenated vertices of some batches (int64), and where each batch starts, followed by the end (int64).

    The vertices are on the device of A, the starts on the host.
    """

    vertices: Tensor
    starts: Tensor

    @property
    def batches(self) -> int:
        return self.starts.numel() - 1

    def span(self, batch: int) -> range:
        """Return the rows of a batch."""
        return range(int(self.starts[batch]), int(self.starts[batch + 1]))

    def batch_vertices(self, batch: int) -> Tensor:
        """Return the vertices of a batch."""
        rows = self.span(batch)
        return self.vertices[rows.start : rows.stop]


def stack_batches(batches: Sequence[Tensor], device: torch.device | None = None) -> BatchStack:
    """Concatenate batches of the host, and move them to a device."""
    lengths = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    vertices = torch.cat([torch.empty(0, dtype=torch.int64), *batches])
    return BatchStack(upload(vertices, device) if device else vertices, pad(lengths.cumsum(0), (1, 0)))


def one_batch(vertices: range, device: torch.device | None = None) -> BatchStack:
    """Return a stack of a single batch."""
    everyone = torch.arange(vertices.start, vertices.stop, device=device)
    return BatchStack(everyone, torch.tensor([0, len(vertices)]))


def matrix_of_batch(A: Csr, rows: BatchStack, cols: BatchStack, batch: int) -> Csr:
    """Return the matrix of one batch in an extracted stacked matrix."""
    return extract_block(A, rows.span(batch), range(A.cols))._replace(cols=len(cols.span(batch)))


def batch_keys(seeds: Sequence[Seed]) -> Tensor:
    """Return the random keys of some batches, one row per batch."""
    keys = [[to_signed(word) for word in derive_key(seed, Purpose.SAMPLE)] for seed in seeds]
    return torch.tensor(keys, dtype=torch.int64).view(len(seeds), 2)


def draw_rows(A: Csr, stack: BatchStack, fanout: int, keys: Tensor, own: BatchStack | None = None) -> Csr:
    """Draw `fanout` different entries of each row of Q A, each set equally likely, rescaled to be unbiased.

    Q selects the rows of A in the stack. `own` has the vertices that seed the draws, if they differ from the rows of A.
    Rows of at most `fanout` entries are taken whole. Columns are those of A.
    """
    assert 0 < fanout <= MAX_DARTS, fanout
    rows = len(stack.vertices)
    if A.val.is_meta:
        return allocate_rows(A, rows, min(rows * fanout, rows * A.nnz // max(A.rows, 1)))
    vertices = (stack if own is None else own).vertices
    if is_on_gpu(A.val):
        key_R2 = upload(keys, A.val.device).index_select(0, _on_device(stack).batch)

        def choose(which: Tensor, of: Tensor) -> Tensor:
            counters, keys_L2 = (x.index_select(0, which) for x in (vertices, key_R2))
            return vectorised.choose_by_darts(counters, of, fanout, keys_L2)

        return vectorised.draw_entries(A, vectorised.find_spans(A, stack.vertices), fanout, choose)
    S = allocate_rows(A, rows, int(A.rowptr.diff()[stack.vertices].clamp(max=fanout).sum()))
    how = vertices.numpy(), fanout, keys.numpy()
    nnz = compiled.draw_uniformly(as_arrays(A), as_arrays(stack), *how, as_arrays(S))
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


def draw_masses(P: Csr, darts: int, keys: Tensor, *, replacement: bool) -> Csr:
    """Draw entries of P by `darts` darts per row, row i with key i; the values are the weights of columns.

    P has int64 masses of at least 1. An entry of probability p that is drawn t times of s has the weight t / (s p).
    Without replacement, rows with at most as many entries as darts are taken whole.
    """
    assert 0 < darts <= MAX_DARTS, darts
    assert P.val.dtype == torch.int64
    if is_on_gpu(P.val):
        return vectorised.draw_by_mass(P, darts, upload(keys, P.val.device), replacement=replacement)
    most = int(P.rowptr.diff().clamp(max=darts).sum())
    S = Csr(torch.zeros_like(P.rowptr), P.col.new_empty(most), torch.empty(most, dtype=torch.float64), P.cols)
    nnz = compiled.draw_by_mass(as_arrays(P), darts, replacement, keys.numpy(), as_arrays(S))
    return S._replace(col=S.col[:nnz], val=S.val[:nnz])


class PositionMap:
    """A map from vertices to positions in a batch. Each batch has a new tag, so the map is never cleared."""

    def __init__(self, vertices: int, device: torch.device | None = None) -> None:
        self.positions = torch.zeros(vertices, dtype=torch.int64, device=device)
        self._used = 0

    def reserve_tags(self, batches: int) -> int:
        """Reserve a tag for each batch, and return the first."""
        first = self._used + 1
        self._used += batches
        assert self._used < 1 << 31, self._used
        return first


def renumber(S: Csr, stack: BatchStack, places: PositionMap) -> tuple[Csr, BatchStack]:
    """Drop empty columns and number the others in the order of their first entry (GraphSAGE's extraction).

    Return the stacked matrices and the vertices of their columns: the vertices of the rows, then each new vertex once.
    """
    if is_on_gpu(S.val):
        rows = _on_device(stack)
        batch_E = vectorised.batch_of_entries(S, rows)
        joined_vertices, starts, place_E = vectorised.join_columns(rows, batch_E, S.col, S.cols)
        inputs = BatchStack(joined_vertices, starts)
        return relabel_columns(S, place_E, _widest(inputs)), inputs
    vertices, starts = torch.empty(S.rows + S.nnz, dtype=torch.int64), torch.zeros_like(stack.starts)
    col, val = torch.empty(S.nnz, dtype=index_dtype(S.rows + S.nnz)), torch.empty_like(S.val)
    compiled.renumber_columns(
        as_arrays(S),
        as_arrays(stack),
        (places.positions.numpy(), places.reserve_tags(stack.batches)),
        (col.numpy(), val.numpy()),
        (vertices.numpy(), starts.numpy()),
    )
    inputs = BatchStack(vertices[: int(starts[-1])], starts)
    return Csr(S.rowptr, col, val, _widest(inputs)), inputs


def sum_rows(R: Csr, stack: BatchStack, mass: Callable[[Tensor], Tensor]) -> Csr:
    """Return Q M (int64), where Q sums the rows of R of each batch, and M is R with masses as values."""
    masses, batches = mass(R.val), stack.batches
    if is_on_gpu(R.val):
        batch_E = vectorised.batch_of_entries(R, _on_device(stack))
        return from_coo(batch_E, R.col, masses, (batches, R.cols), sum_duplicates=True)
    P = Csr(
        torch.zeros(batches + 1, dtype=torch.int64), torch.empty_like(R.col), torch.empty_like(masses), R.cols
    )
    sums = torch.zeros(R.cols, dtype=torch.int64)
    R_arrays = R.rowptr.numpy(), R.col.numpy(), masses.numpy()
    nnz = compiled.sum_columns(R_arrays, stack.starts.numpy(), sums.numpy(), as_arrays(P))
    return P._replace(col=P.col[:nnz].clone(), val=P.val[:nnz].clone())


def join_chosen(stack: BatchStack, chosen: Csr, places: PositionMap) -> BatchStack:
    """Append to the vertices of each batch the new vertices in its row of `chosen`."""
    if is_on_gpu(chosen.val):
        joined_vertices, starts, _ = vectorised.join_columns(
            _on_device(stack), row_indices(chosen), chosen.col, chosen.cols
        )
        return BatchStack(joined_vertices, starts)
    vertices = torch.empty(len(stack.vertices) + chosen.nnz, dtype=torch.int64)
    starts = torch.zeros_like(stack.starts)
    compiled.join_columns(
        as_arrays(stack),
        as_arrays(chosen)[:2],
        (places.positions.numpy(), places.reserve_tags(stack.batches)),
        (vertices.numpy(), starts.numpy()),
    )
    return BatchStack(vertices[: int(starts[-1])], starts)


def extract_columns(R: Csr, stack: BatchStack, inputs: BatchStack, chosen: Csr, places: PositionMap) -> Csr:
    """Extract the chosen columns of R for each batch, numbered by their positions in the batch's input."""
    if is_on_gpu(R.val):
        batch_E = vectorised.batch_of_entries(R, _on_device(stack))
        return vectorised.extract_entries(R, batch_E, _on_device(inputs), chosen, _widest(inputs))
    rowptr, col, val = torch.zeros_like(R.rowptr), torch.empty_like(R.col), torch.empty_like(R.val)
    nnz = compiled.keep_columns(
        as_arrays(R),
        (stack.starts.numpy(), *as_arrays(inputs)),
        as_arrays(chosen),
        (places.positions.numpy(), places.reserve_tags(stack.batches)),
        (rowptr.numpy(), col.numpy(), val.numpy()),
    )
    return Csr(rowptr, col[:nnz].clone(), val[:nnz].clone(), _widest(inputs))


def _on_device(stack: BatchStack) -> vectorised.Stack:
    """Copy the starts of a stack to the device of its vertices."""
    return vectorised.stack_on(stack.vertices, upload(stack.starts, stack.vertices.device))


def _widest(inputs: BatchStack) -> int:
    return int(inputs.starts.diff().max()) if inputs.batches else 0


def unit_masses(val: Tensor) -> Tensor:
    """Return a mass of 1 for each entry."""
    return torch.ones(val.shape, dtype=torch.int64, device=val.device)


ONE = 1 << 40


def square_masses(val: Tensor) -> Tensor:
    """Return the square of each value in units of 2^-40, from 1 to 2^40, the maximum in normalised adjacencies."""
    return (val.double().square() * ONE).round().long().clamp(1, ONE)
