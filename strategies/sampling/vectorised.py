"""The draws and the extraction of `compiled` as tensor operations, for a graph on a GPU.

Both implementations use the same random bits and give equal bits. Each step of a draw handles all rows together. The
host waits only for the sizes of results. Tested in tests/sampling/test_on_a_device.py against the compiled loops.

Legend: R rows, L rows that are longer than the fan-out, E entries, S draws of a row.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.kernels import Csr, row_indices
from harness.kernels.csr import index_dtype, relabel_columns, take
from harness.kernels.random import multiply_high, random_bits_torch, shift_right

NEIGHBOUR_BITS, DART_BITS, HALF = 12, 16, 32
"""The bits of a counter that hold the number of a draw, for each sampler; and half a word."""


class RowSpans(NamedTuple):
    """The rows to draw from: where they start and stop, and the entry of each that is always kept.

    If a row has no such entry, `kept` equals `stop`.
    """

    start: Tensor
    stop: Tensor
    kept: Tensor

    @property
    def others(self) -> Tensor:
        """The number of entries to draw from."""
        return self.stop - self.start - (self.kept < self.stop).long()


def find_spans(A: Csr, rows: Tensor, loops_of: Tensor | None = None) -> RowSpans:
    """Return the spans of some rows of A. With `loops_of`, the vertex of each row, self-loops are kept."""
    start_R, stop_R = take(A.rowptr, rows), take(A.rowptr, rows + 1)
    if loops_of is None or not A.nnz:
        return RowSpans(start_R, stop_R, stop_R)
    place_R = find_first_entry(A, start_R, stop_R, lambda entry: take(A.col, entry) >= loops_of)
    is_loop = (place_R < stop_R) & (take(A.col, place_R.clamp(max=A.nnz - 1)) == loops_of)
    return RowSpans(start_R, stop_R, torch.where(is_loop, place_R, stop_R))


def find_first_entry(A: Csr, start: Tensor, stop: Tensor, reached: Callable[[Tensor], Tensor]) -> Tensor:
    """Find the first entry of each span from which on a condition holds, by binary search; otherwise the end."""
    low, high = (x.to(index_dtype(A.nnz)) for x in (start, stop))
    for _ in range(A.nnz.bit_length()):
        middle, is_open = (low + high) >> 1, low < high
        holds = reached(middle.clamp(max=A.nnz - 1))
        low, high = torch.where(is_open & ~holds, middle + 1, low), torch.where(is_open & holds, middle, high)
    return low.long()


def draw_entries(A: Csr, spans: RowSpans, fanout: int, choose: Callable[[Tensor, Tensor], Tensor]) -> Csr:
    """Draw at most `fanout` entries of each span in addition to the kept one, rescaled to be unbiased.

    `choose(which_L, others_L)` chooses positions among the other entries of the rows `which_L`, ascending, (S, L).
    """
    start_R, stop_R, kept_R = spans
    others_R = spans.others
    rowptr = pad((others_R.clamp(max=fanout) + (kept_R < stop_R)).cumsum(0), (1, 0))
    is_long = pad((others_R > fanout).cumsum(0), (1, 0))
    entries, long = torch.stack([rowptr[-1], is_long[-1]]).tolist()
    rows = torch.arange(len(start_R), device=start_R.device)
    row_E = torch.repeat_interleave(rows, rowptr.diff(), output_size=entries)
    entry_E = torch.arange(entries, device=row_E.device) + take(start_R - rowptr[:-1], row_E)
    if long:
        which_L = torch.searchsorted(is_long[1:], torch.arange(1, long + 1, device=row_E.device))
        first_L, kept_L, stop_L = (take(x, which_L) for x in (start_R, kept_R, stop_R))
        chosen = first_L + choose(which_L, take(others_R, which_L))
        chosen = torch.cat([chosen + (chosen >= kept_L), kept_L[None]]).sort(0).values
        at = take(rowptr, which_L) + torch.arange(fanout + 1, device=row_E.device)[:, None]
        entry_E = _write_where(entry_E, at, chosen, chosen < stop_L)
    scale_R = torch.where(others_R > fanout, others_R.double() / fanout, 1.0)
    scale_E = torch.where(entry_E == take(kept_R, row_E), 1.0, take(scale_R, row_E))
    val = (take(A.val, entry_E) * scale_E).to(A.val.dtype)
    return Csr(rowptr, take(A.col, entry_E), val, A.cols)


def _write_where(x: Tensor, at: Tensor, values: Tensor, where: Tensor) -> Tensor:
    """Return x with the values written where `where` holds. The others go to a padding element, to avoid a sync."""
    longer = pad(x, (0, 1))
    longer[torch.where(where, at, len(x)).flatten()] = values.flatten()
    return longer[: len(x)]


def choose_by_floyd(counter_L: Tensor, of_L: Tensor, draws: int, key: tuple[int, int]) -> Tensor:
    """Choose `draws` of the numbers 0 .. of - 1 for each row, ascending, (S, L), by Floyd's algorithm."""
    number_S1 = torch.arange(draws, device=of_L.device)[:, None]
    last_SL = of_L - draws + number_S1
    word_SL = shift_right(random_bits_torch((counter_L << NEIGHBOUR_BITS) + number_S1, *key), HALF)
    chosen_SL = shift_right(word_SL * (last_SL + 1), HALF)
    for k in range(1, draws):
        is_taken = (chosen_SL[:k] == chosen_SL[k]).any(0)
        chosen_SL[k] = torch.where(is_taken, last_SL[k], chosen_SL[k])
    return chosen_SL.sort(0).values


def choose_by_darts(counter_L: Tensor, of_L: Tensor, draws: int, key_L2: Tensor) -> Tensor:
    """Choose `draws` of the numbers 0 .. of - 1 for each row, ascending, (S, L), by darts at the remaining numbers.

    A dart d selects the remaining number with d remaining numbers below it. The j-th of the ascending chosen numbers
    c_j has c_j - j remaining numbers below it, so the dart passes each chosen number for which this is at most d.
    """
    number_S1 = torch.arange(draws, device=of_L.device)[:, None]
    word_SL = random_bits_torch((counter_L << DART_BITS) + number_S1, *key_L2.T)
    dart_SL = multiply_high(word_SL, of_L - number_S1)
    chosen = dart_SL[:1]
    for k in range(1, draws):
        below_L = (chosen - number_S1[:k] <= dart_SL[k]).sum(0)
        chosen = torch.cat([chosen, (dart_SL[k] + below_L)[None]]).sort(0).values
    return chosen


def draw_by_mass(P: Csr, darts: int, key_R2: Tensor, *, replacement: bool) -> Csr:
    """Draw entries of P by darts, with the weights of their columns (`matrices.draw_masses`)."""
    start_R, stop_R = P.rowptr[:-1], P.rowptr[1:]
    row_E = row_indices(P)
    sums = pad(P.val.cumsum(0), (1, 0))  # may overflow; differences within a row stay correct
    base_R, total_R = take(sums, start_R), take(sums, stop_R) - take(sums, start_R)
    is_whole = (stop_R - start_R <= darts) if not replacement else torch.zeros_like(stop_R, dtype=torch.bool)
    is_thrown = (~is_whole & (stop_R > start_R)).long()
    times_E = take(is_whole.long(), row_E)
    throw = _with_replacement if replacement else _without_replacement
    chunk = max(P.nnz // max(P.rows, 1), 1) if replacement else darts  # no more darts in memory than entries
    for first in range(0, darts if P.nnz else 0, chunk):
        number_S1 = torch.arange(first, min(first + chunk, darts), device=row_E.device)[:, None]
        word_SR = random_bits_torch(number_S1.expand(-1, P.rows), *key_R2.T)
        place_SR = throw(P, word_SR, base_R, total_R, sums)
        times_E.index_add_(0, place_SR.flatten(), is_thrown.expand_as(place_SR).flatten())
    taken = times_E.nonzero()[:, 0]
    row, times = take(row_E, taken), take(times_E, taken)
    mean = take(total_R, row).double() / take(P.val, taken).double() / darts
    weight = torch.where(take(is_whole, row), 1.0, times.double() * mean)
    return Csr(torch.searchsorted(taken, P.rowptr), take(P.col, taken), weight, P.cols)


def _with_replacement(P: Csr, word_SR: Tensor, base_R: Tensor, total_R: Tensor, sums: Tensor) -> Tensor:
    """Return the entry of each dart, where taken entries stay in the row."""
    return _entry_at(P, multiply_high(word_SR, total_R), base_R, sums)


def _entry_at(P: Csr, below: Tensor, base_R: Tensor, sums: Tensor) -> Tensor:
    """Return the entry whose interval of its row's running sum contains each number."""
    start, stop = (x.expand_as(below) for x in (P.rowptr[:-1], P.rowptr[1:]))

    def is_above(entry: Tensor) -> Tensor:
        return sums[1:].index_select(0, entry.flatten()).view_as(entry) - base_R > below

    return find_first_entry(P, start, stop, is_above).clamp(max=P.nnz - 1)


def _without_replacement(P: Csr, word_SR: Tensor, base_R: Tensor, total_R: Tensor, sums: Tensor) -> Tensor:
    """Return the entry of each dart, where taken entries leave the row.

    A dart is below the remaining mass. Taken entries whose interval begins at or below the dart, in the running sum of
    the remaining mass, precede it, so their masses are added to the dart.
    """
    left_R, places = total_R, word_SR[:0]
    for word_R in word_SR:
        ascending = places.sort(0).values
        mass = take(P.val, ascending.flatten()).view_as(ascending)
        begins = take(sums, ascending.flatten()).view_as(ascending) - base_R - (mass.cumsum(0) - mass)
        dart_R = multiply_high(word_R, left_R)
        dart_R = dart_R + (mass * (begins <= dart_R)).sum(0)
        place_1R = _entry_at(P, dart_R[None], base_R, sums)
        places, left_R = torch.cat([places, place_1R]), left_R - take(P.val, place_1R[0])
    return places


# Extraction. A key is a vertex in a batch. A stable sort makes equal keys adjacent, in their original order.


class Stack(NamedTuple):
    """The vertices of some batches, the batch of each, and where batches start, followed by the end; on one device."""

    vertices: Tensor
    batch: Tensor
    starts: Tensor


def stack_on(vertices: Tensor, starts: Tensor) -> Stack:
    """Return a stack whose batches start at `starts`, on the device of the vertices."""
    batches = torch.arange(len(starts) - 1, device=vertices.device)
    return Stack(vertices, torch.repeat_interleave(batches, starts.diff(), output_size=len(vertices)), starts)


def join_columns(stack: Stack, batch_E: Tensor, col_E: Tensor, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Append to the vertices of each batch its other columns, in the order of their first entries.

    Return them, where each batch starts (on the host), and the position of each entry's column in its batch.
    """
    vertices, batch, starts = stack
    own, device = len(vertices), vertices.device
    first = _first_equal(torch.cat([batch * cols + vertices, batch_E * cols + col_E]))
    is_new_E = first[own:] == torch.arange(own, len(first), device=device)
    before_E = pad(is_new_E.cumsum(0), (1, 0))  # the number of new entries before each
    new_before = take(before_E, torch.searchsorted(batch_E, torch.arange(len(starts), device=device)))
    all_starts = starts + new_before
    starts_on_host = all_starts.cpu()
    at = torch.arange(len(first), device=device)  # where each vertex and each new entry goes
    at[:own] += take(new_before, batch)
    at[own:] = take(starts, batch_E + 1).add_(before_E[:-1])
    del before_E
    joined = vertices.new_empty(int(starts_on_host[-1]))
    joined[at[:own]] = vertices
    joined = _write_where(joined, at[own:], col_E.long(), is_new_E)
    return joined, starts_on_host, take(at, first[own:]).sub_(take(all_starts, batch_E))


def _first_equal(keys: Tensor) -> Tensor:
    """Return the position of the first equal key, for each key."""
    keys, order = torch.sort(keys, stable=True)
    places = torch.arange(len(keys), device=keys.device)
    if len(keys):
        places[1:].mul_(keys[1:] != keys[:-1])
    del keys
    head = torch.cummax(places, 0).values
    return places.index_copy_(0, order, take(order, head))


def batch_of_entries(A: Csr, stack: Stack) -> Tensor:
    """Return the batch of each entry of a stacked matrix."""
    return take(stack.batch, row_indices(A))


def extract_entries(R: Csr, batch_E: Tensor, inputs: Stack, chosen: Csr, widest: int) -> Csr:
    """Extract the chosen columns of R for each batch, times their weights, numbered by positions in its inputs."""
    if not chosen.nnz:
        return Csr(torch.zeros_like(R.rowptr), R.col[:0].to(index_dtype(widest)), R.val[:0], widest)
    key_C = row_indices(chosen) * R.cols + chosen.col
    kept, at = _find_sorted(key_C, batch_E * R.cols + R.col)
    key_I, order = torch.sort(inputs.batch * R.cols + inputs.vertices, stable=True)
    place = take(order, torch.searchsorted(key_I, take(key_C, at)))
    place -= take(inputs.starts, take(batch_E, kept))
    val = (take(R.val, kept) * take(chosen.val, at)).to(R.val.dtype)
    A = Csr(torch.searchsorted(kept, R.rowptr), take(R.col, kept), val, R.cols)
    del at, kept  # saves GPU memory
    return relabel_columns(A, place, widest)


def _find_sorted(ascending: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the keys that are in an ascending list, and their positions in the list."""
    at = torch.searchsorted(ascending, keys, out_int32=len(ascending) < 1 << 31)
    at.clamp_(max=len(ascending) - 1)
    kept = (take(ascending, at) == keys).nonzero()[:, 0]
    return kept, take(at, kept)
