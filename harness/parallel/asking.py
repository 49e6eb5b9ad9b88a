"""Asking the owners of rows for some of them: first how many of each, then which, then what they are.

Rows are in blocks over an axis. What a member has itself it does not ask for.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.call import Call
from harness.ledger import Op, TensorName


class Asked(NamedTuple):
    """Who wants how much of whom."""

    over: Axis
    wanted: list[int]
    """Rows that this member asks each other for."""
    asked: list[int]
    """Rows that each other asks this member for."""
    coming: Tensor
    """Their numbers in this member's block."""
    own: Tensor
    """The numbers in this member's block of those that it needs itself."""
    before: int
    """Rows of members before this one, which come first."""

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
) -> Asked:
    """`named` are vertices by their owners, so many of each.

    `others` says for which vertices each member asks this one; in a replay, where there is nobody else.
    """
    here, start = over.index, blocks[over.index].start
    before, own = sum(counts[:here]), counts[here]
    with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
        wanted = [0 if member == here else count for member, count in enumerate(counts)]
        absent = torch.cat([named[:before], named[before + own :]])
        numbers = torch.tensor(wanted, device=named.device)
    ones = [1] * over.size
    told = over.all_to_all(numbers, send=ones, receive=ones, tensor=TensorName.COUNT)
    if told.is_meta:
        theirs = [vertices[:0] if member == here else vertices for member, vertices in enumerate(others())]
        asked = list(map(len, theirs))
    else:
        asked = told.tolist()
    coming = over.all_to_all(absent, send=wanted, receive=asked, tensor=TensorName.INDEX)
    if told.is_meta:
        coming = torch.cat(theirs)
    return Asked(over, wanted, asked, coming - start, named[before : before + own] - start, before)


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
