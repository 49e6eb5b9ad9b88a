"""Requests of rows to the members that have them: first how many of each, then which, then the rows themselves.

Rows are in blocks over an axis, and nobody asks for its own. In a replay no other member answers: what it would have
sent is foreseen, and calls go out in the same sizes.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.comm.axis import Axis
from harness.comm.call import Call
from harness.kernels import Csr
from harness.ledger import Op, TensorName


def learned(arrived: Tensor, foreseen: Callable[[], Tensor]) -> Tensor:
    """A tensor that arrived; in a replay, where it has a shape alone, the one that is foreseen."""
    return foreseen() if arrived.is_meta else arrived


class Requests(NamedTuple):
    """The sizes of one exchange of rows: which member wants how many of which."""

    over: Axis
    wanted: list[int]
    """How many rows this member asks of each other."""
    asked: list[int]
    """How many rows each other asks of this member."""
    coming: Tensor
    """The numbers in this member's block of the rows that others ask for."""
    own: Tensor
    """The numbers in this member's block of those that it needs itself."""
    before: int
    """How many rows of members before this one there are, which come first."""

    def answer(self, rows: Tensor, mine: Tensor, tensor: TensorName) -> Tensor:
        """Rows that leave, and this member's own: all that were needed, in the order in which they were named."""
        arrived = self.exchange(rows, tensor).now()
        with self.over.ledger.op(Op.COPY, tensor=tensor):
            return torch.cat(self.in_order(arrived, mine))

    def exchange(self, rows: Tensor, tensor: TensorName) -> Call[Tensor]:
        """Rows that others asked for leave; those that were asked for arrive."""
        return self.over.all_to_all.call(rows, send=self.asked, receive=self.wanted, tensor=tensor)

    def in_order(self, arrived: Tensor, mine: Tensor) -> list[Tensor]:
        """As they were named: what came of members before this one, what it has itself, what came of the others."""
        return [arrived[: self.before], mine, arrived[self.before :]]


def ask(
    over: Axis,
    blocks: Sequence[range],
    named: Tensor,
    counts: list[int],
    others: Callable[[], Sequence[Tensor]],
) -> Requests:
    """`named` are vertices by their owners, so many of each.

    `others` are the vertices that each member asks this one for, as a replay foresees them.
    """
    here, start = over.index, blocks[over.index].start
    before, own = sum(counts[:here]), counts[here]
    with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
        wanted = [0 if member == here else count for member, count in enumerate(counts)]
        absent = torch.cat([named[:before], named[before + own :]])
        numbers = torch.tensor(wanted, device=named.device)
    ones = [1] * over.size

    @cache
    def foreseen() -> list[Tensor]:
        return [vertices[:0] if member == here else vertices for member, vertices in enumerate(others())]

    arrived = over.all_to_all(numbers, send=ones, receive=ones, tensor=TensorName.COUNT)
    asked = learned(arrived, lambda: torch.tensor(list(map(len, foreseen())))).tolist()
    arrived = over.all_to_all(absent, send=wanted, receive=asked, tensor=TensorName.INDEX)
    coming = learned(arrived, lambda: torch.cat(foreseen()))
    return Requests(over, wanted, asked, coming - start, named[before : before + own] - start, before)


def rows_from_owners(requests: Requests, leaving: Csr, mine: Csr, foreseen: Callable[[], Csr]) -> Csr:
    """The rows of a sparse matrix that were named, on the host, given the rows that leave and this member's own.

    Their lengths travel first, then their columns, then their values. `foreseen` are they, as a replay knows them.
    """
    known = cache(foreseen)

    def lengths_known() -> Tensor:
        return known().rowptr.diff()

    lengths = _answered(requests, leaving.rowptr.diff(), mine.rowptr.diff(), TensorName.COUNT)
    lengths = learned(lengths, lengths_known).cpu()
    absent = torch.cat([lengths[: requests.before], lengths[requests.before + mine.rows :]])
    entries = requests._replace(
        wanted=sums(absent, requests.wanted),
        asked=sums(leaving.rowptr.diff(), requests.asked),
        before=int(lengths[: requests.before].sum()),
    )
    col = learned(_answered(entries, leaving.col, mine.col, TensorName.INDEX), lambda: known().col)
    val = learned(_answered(entries, leaving.val, mine.val, TensorName.A), lambda: known().val)
    return Csr(pad(lengths.cumsum(0), (1, 0)), col.cpu(), val.cpu(), mine.cols)


def _answered(requests: Requests, leaving: Tensor, mine: Tensor, tensor: TensorName) -> Tensor:
    device = requests.over.device
    return requests.answer(leaving.to(device), mine.to(device), tensor)


def sums(lengths: Tensor, parts: list[int]) -> list[int]:
    """The sums of consecutive parts."""
    return [int(part.sum()) for part in lengths.split(parts)]


def by_owner(vertices: Tensor, blocks: Sequence[range]) -> tuple[Tensor, list[int]]:
    """An order in which the vertices stand by their owners, and how many each owner has of them."""
    if vertices.is_meta:
        n, K = blocks[-1].stop, len(vertices)
        return vertices, [round(K * block.stop / n) - round(K * block.start / n) for block in blocks]
    owner = owners(vertices, blocks)
    return owner.sort(stable=True).indices, owner.bincount(minlength=len(blocks)).tolist()


def inverse(order: Tensor) -> Tensor:
    """Where each stands that an order names."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places


def inside(vertices: Tensor, block: range) -> Tensor:
    """Which of them are in a block."""
    return (vertices >= block.start) & (vertices < block.stop)


def owners(vertices: Tensor, blocks: Sequence[range]) -> Tensor:
    """The block of every vertex."""
    return torch.bucketize(vertices, torch.tensor([block.stop for block in blocks]), right=True)
