"""Requests for rows from their owners: first the numbers of rows, then their indices, then the rows are exchanged.

An axis splits the rows into blocks. In a replay no other member answers, so the caller computes the answers, and the
calls have the same sizes as in a run.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.comm.axis import Axis
from harness.comm.call import Call
from harness.device import upload
from harness.kernels import Csr
from harness.ledger import Ledger, Op, TensorName


def resolve_in_replay(arrived: Tensor, foreseen: Callable[[], Tensor], ledger: Ledger) -> Tensor:
    """Return the received tensor. In a replay, where it is a meta tensor, return the result of `foreseen` instead.

    A run does not compute it, so the ledger does not charge for it.
    """
    if not arrived.is_meta:
        return arrived
    with ledger.simulating_peers():
        return foreseen()


class RowRequests(NamedTuple):
    """The sizes and indices of an exchange of rows."""

    over: Axis
    receive_counts: list[int]
    """The number of rows that this member requests of each member."""
    send_counts: list[int]
    """The number of rows that each member requests of this member."""
    requested: Tensor
    """The rows that others request, as indices in this member's block."""
    own: Tensor
    """The rows that this member needs of its own block, as indices in the block."""
    before: int
    """The number of requested rows that belong to members before this one. These rows come first."""

    def exchange_and_merge(self, rows: Tensor, own: Tensor, tensor: TensorName) -> Tensor:
        """Send `rows` to others, and return all rows that this member needs in order, including `own`."""
        arrived = self.exchange(rows, tensor).now()
        with self.over.ledger.op(Op.COPY, tensor=tensor):
            return torch.cat(self.merge(arrived, own))

    def exchange(self, rows: Tensor, tensor: TensorName) -> Call[Tensor]:
        """Send the rows that others requested; the result of the call is the rows that this member requested."""
        return self.over.all_to_all.call(
            rows, send=self.send_counts, receive=self.receive_counts, tensor=tensor
        )

    def merge(self, arrived: Tensor, own: Tensor) -> list[Tensor]:
        """Return the rows in the order of owners: of members before this one, its own, of members after."""
        return [arrived[: self.before], own, arrived[self.before :]]


def request_rows(
    over: Axis,
    blocks: Sequence[range],
    named: Tensor,
    counts: list[int],
    others: Callable[[], Sequence[Tensor]],
) -> RowRequests:
    """Request the vertices `named`, which are sorted by owner, with `counts` of each.

    `others` returns the vertices that each member requests from this one, for a replay.
    """
    this, start = over.index, blocks[over.index].start
    before, own = sum(counts[:this]), counts[this]
    with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
        wanted = [0 if member == this else count for member, count in enumerate(counts)]
        absent = torch.cat([named[:before], named[before + own :]])
        numbers = upload(torch.tensor(wanted), named.device)
    ones = [1] * over.size

    @cache
    def foreseen() -> list[Tensor]:
        return [vertices[:0] if member == this else vertices for member, vertices in enumerate(others())]

    arrived = over.all_to_all(numbers, send=ones, receive=ones, tensor=TensorName.COUNT)
    asked = resolve_in_replay(arrived, lambda: torch.tensor(list(map(len, foreseen()))), over.ledger).tolist()
    arrived = over.all_to_all(absent, send=wanted, receive=asked, tensor=TensorName.INDEX)
    coming = resolve_in_replay(arrived, lambda: torch.cat(foreseen()), over.ledger)
    return RowRequests(over, wanted, asked, coming - start, named[before : before + own] - start, before)


def fetch_matrix_rows(requests: RowRequests, leaving: Csr, own: Csr, foreseen: Callable[[], Csr]) -> Csr:
    """Return the requested rows of a sparse matrix, given the rows to send and this member's own.

    Row lengths are exchanged first, then columns, then values. `foreseen` computes the same rows for a replay.
    """
    known, ledger = cache(foreseen), requests.over.ledger

    def lengths_known() -> Tensor:
        return known().rowptr.diff()

    lengths = _exchange_values(requests, leaving.rowptr.diff(), own.rowptr.diff(), TensorName.COUNT)
    lengths = resolve_in_replay(lengths, lengths_known, ledger).to(own.rowptr.device)
    absent = torch.cat([lengths[: requests.before], lengths[requests.before + own.rows :]])
    parts = sum_parts(
        torch.cat([absent, leaving.rowptr.diff()]), requests.receive_counts + requests.send_counts
    )
    wanted, asked = parts[: requests.over.size], parts[requests.over.size :]
    entries = requests._replace(
        receive_counts=wanted, send_counts=asked, before=sum(wanted[: requests.over.index])
    )
    col = resolve_in_replay(
        _exchange_values(entries, leaving.col, own.col, TensorName.INDEX), lambda: known().col, ledger
    )
    val = resolve_in_replay(
        _exchange_values(entries, leaving.val, own.val, TensorName.A), lambda: known().val, ledger
    )
    here = own.rowptr.device
    return Csr(pad(lengths.cumsum(0), (1, 0)), col.to(here), val.to(here), own.cols)


def _exchange_values(requests: RowRequests, leaving: Tensor, own: Tensor, tensor: TensorName) -> Tensor:
    device = requests.over.device
    return requests.exchange_and_merge(leaving.to(device), own.to(device), tensor)


def sum_parts(lengths: Tensor, parts: list[int]) -> list[int]:
    """Return the sums of consecutive parts. Synchronizes with the device once."""
    totals: list[int] = torch.stack([part.sum() for part in lengths.split(parts)]).tolist()
    return totals


def sort_by_owner(vertices: Tensor, blocks: Sequence[range]) -> tuple[Tensor, list[int]]:
    """Return an order that sorts the vertices by owner, and the number of vertices of each owner."""
    if vertices.is_meta:
        n, K = blocks[-1].stop, len(vertices)
        return vertices, [_expected_count(K, block, n) for block in blocks]
    owner, order = find_owners(vertices, blocks).sort(stable=True)
    return order, count_by_owner(owner, len(blocks))


def select_owner(vertices: Tensor, blocks: Sequence[range], member: int) -> Tensor:
    """Return the vertices of one owner, in the given order."""
    block = blocks[member]
    if vertices.is_meta:
        return vertices[: _expected_count(len(vertices), block, blocks[-1].stop)]
    return vertices[is_in_block(vertices, block)]


def _expected_count(K: int, block: range, n: int) -> int:
    """Return the expected number of vertices in a block, of K vertices distributed evenly over n."""
    return round(K * block.stop / n) - round(K * block.start / n)


def count_by_owner(owner: Tensor, members: int) -> list[int]:
    """Count the rows of each member, given the owners of all rows in ascending order."""
    ends: list[int] = torch.searchsorted(owner, torch.arange(1, members, device=owner.device)).tolist()
    return [stop - start for start, stop in pairwise([0, *ends, len(owner)])]


def invert_permutation(order: Tensor) -> Tensor:
    """Return the inverse of a permutation."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places


def is_in_block(vertices: Tensor, block: range) -> Tensor:
    """Return a mask of the vertices that are in a block."""
    return (vertices >= block.start) & (vertices < block.stop)


def find_owners(vertices: Tensor, blocks: Sequence[range]) -> Tensor:
    """Return the index of the block of every vertex."""
    stops = upload(torch.tensor([block.stop for block in blocks]), vertices.device)
    return torch.bucketize(vertices, stops, right=True)
