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

from harness.base.device import upload
from harness.comm.axis import Axis
from harness.comm.call import Call
from harness.kernels import Csr
from harness.ledger import Ledger, Op, TensorName


def resolve_in_replay(received: Tensor, simulate: Callable[[], Tensor], ledger: Ledger) -> Tensor:
    """Return the received tensor. In a replay, where it is a meta tensor, return the result of `simulate` instead.

    A run does not compute it, so the ledger does not charge for it.
    """
    if not received.is_meta:
        return received
    with ledger.simulating_peers():
        return simulate()


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
        received = self.exchange(rows, tensor).now()
        with self.over.ledger.op(Op.COPY, tensor=tensor):
            return torch.cat(self.merge(received, own))

    def exchange(self, rows: Tensor, tensor: TensorName) -> Call[Tensor]:
        """Send the rows that others requested; the result of the call is the rows that this member requested."""
        return self.over.all_to_all.call(
            rows, send=self.send_counts, receive=self.receive_counts, tensor=tensor
        )

    def merge(self, received: Tensor, own: Tensor) -> list[Tensor]:
        """Return the rows in the order of owners: of members before this one, its own, of members after."""
        return [received[: self.before], own, received[self.before :]]


def request_rows(
    over: Axis,
    blocks: Sequence[range],
    needed: Tensor,
    counts: list[int],
    replayed_requests: Callable[[], Sequence[Tensor]],
) -> RowRequests:
    """Request the vertices `needed`, which are sorted by owner, with `counts` of each.

    `replayed_requests` returns the vertices that each member requests from this one, for a replay.
    """
    this, start = over.index, blocks[over.index].start
    before, own = sum(counts[:this]), counts[this]
    with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
        receive_counts = [0 if member == this else count for member, count in enumerate(counts)]
        remote = torch.cat([needed[:before], needed[before + own :]])
        numbers = upload(torch.tensor(receive_counts), needed.device)
    ones = [1] * over.size

    @cache
    def simulate() -> list[Tensor]:
        return [
            vertices[:0] if member == this else vertices
            for member, vertices in enumerate(replayed_requests())
        ]

    received = over.all_to_all(numbers, send=ones, receive=ones, tensor=TensorName.COUNT)
    send_counts = resolve_in_replay(
        received, lambda: torch.tensor(list(map(len, simulate()))), over.ledger
    ).tolist()
    received = over.all_to_all(remote, send=receive_counts, receive=send_counts, tensor=TensorName.INDEX)
    requested = resolve_in_replay(received, lambda: torch.cat(simulate()), over.ledger)
    return RowRequests(
        over, receive_counts, send_counts, requested - start, needed[before : before + own] - start, before
    )


def fetch_matrix_rows(requests: RowRequests, outgoing: Csr, own: Csr, simulate: Callable[[], Csr]) -> Csr:
    """Return the requested rows of a sparse matrix, given the rows to send and this member's own.

    Row lengths are exchanged first, then columns, then values. `simulate` computes the same rows for a replay; with
    shapes only, its rows have equal lengths.
    """
    simulated_rows, ledger = cache(simulate), requests.over.ledger

    def simulated_lengths() -> Tensor:
        return simulated_rows().rowptr.diff()

    lengths = _exchange_values(requests, outgoing.rowptr.diff(), own.rowptr.diff(), TensorName.COUNT)
    lengths = resolve_in_replay(lengths, simulated_lengths, ledger).to(own.rowptr.device)
    if lengths.is_meta:
        receive_counts = share_entries(simulated_rows(), requests.receive_counts)
        send_counts = share_entries(outgoing, requests.send_counts)
    else:
        remote = torch.cat([lengths[: requests.before], lengths[requests.before + own.rows :]])
        parts = sum_parts(
            torch.cat([remote, outgoing.rowptr.diff()]), requests.receive_counts + requests.send_counts
        )
        receive_counts, send_counts = parts[: requests.over.size], parts[requests.over.size :]
    entries = requests._replace(
        receive_counts=receive_counts,
        send_counts=send_counts,
        before=sum(receive_counts[: requests.over.index]),
    )
    col = resolve_in_replay(
        _exchange_values(entries, outgoing.col, own.col, TensorName.INDEX),
        lambda: simulated_rows().col,
        ledger,
    )
    val = resolve_in_replay(
        _exchange_values(entries, outgoing.val, own.val, TensorName.A), lambda: simulated_rows().val, ledger
    )
    here = own.rowptr.device
    return Csr(pad(lengths.cumsum(0), (1, 0)), col.to(here), val.to(here), own.cols)


def _exchange_values(requests: RowRequests, outgoing: Tensor, own: Tensor, tensor: TensorName) -> Tensor:
    device = requests.over.device
    return requests.exchange_and_merge(outgoing.to(device), own.to(device), tensor)


def sum_parts(lengths: Tensor, parts: list[int]) -> list[int]:
    """Return the sums of consecutive parts. Synchronizes with the device once."""
    totals: list[int] = torch.stack([part.sum() for part in lengths.split(parts)]).tolist()
    return totals


def share_entries(A: Csr, parts: list[int]) -> list[int]:
    """Return the entries of some rows of A for each number of rows, if all rows have equally many."""
    return [A.nnz * rows // max(A.rows, 1) for rows in parts]


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
