"""Features of any vertices, fetched from the ranks that have them: block rows over an axis, one exchange a mini-batch.

Who asks sends the numbers of the rows that it lacks, each once, and gets them in one all-to-all. Ranks beside the axis
have copies of the same blocks and ask nobody of each other (section 6 of Tripathy, Yelick and Buluc).

Legend: N vertices of this rank's block, K vertices that are asked for, F features.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.ledger import Op, TensorName


class FeatureStore:
    """One rank's block, and the way to the others'."""

    def __init__(self, X_NF: Tensor, blocks: Sequence[range], over: Axis) -> None:
        """`blocks` are the vertices of every member of the axis, ascending; X has those of this one."""
        self.X_NF, self.blocks, self.over = X_NF, blocks, over
        self.here = blocks[over.index]
        self._stops = torch.tensor([block.stop for block in blocks])

    def fetch(self, vertices: Tensor, others: Callable[[], Sequence[Tensor]]) -> Tensor:
        """X[vertices], each of which is there once.

        `others` says what every member of the axis asks for; on shapes alone, where nobody else can.
        """
        over, ledger = self.over, self.over.ledger
        with ledger.op(Op.COPY, tensor=TensorName.INDEX):
            order, wanted = self._by_owner(vertices)
            own, before = wanted[over.index], sum(wanted[: over.index])
            wanted[over.index] = 0
            named = vertices.index_select(0, order).to(self.X_NF.device)
            absent = torch.cat([named[:before], named[before + own :]])
            numbers = torch.tensor(wanted, device=absent.device)
        asked = self._told(numbers, others)
        coming = over.all_to_all(absent, send=wanted, receive=asked, tensor=TensorName.INDEX)
        with ledger.op(Op.COPY, tensor=TensorName.X):
            leaving_MF = self.X_NF.index_select(0, coming - self.here.start)
        arrived_MF = over.all_to_all(leaving_MF, send=asked, receive=wanted, tensor=TensorName.X)
        with ledger.op(Op.COPY, tensor=TensorName.X):
            mine_MF = self.X_NF.index_select(0, named[before : before + own] - self.here.start)
            sorted_KF = torch.cat([arrived_MF[:before], mine_MF, arrived_MF[before:]])
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            return sorted_KF.index_select(0, back.to(sorted_KF.device))

    def _told(self, numbers: Tensor, others: Callable[[], Sequence[Tensor]]) -> list[int]:
        """How many rows every member asks this one for."""
        ones, over = [1] * self.over.size, self.over
        told = over.all_to_all(numbers, send=ones, receive=ones, tensor=TensorName.COUNT)
        if not told.is_meta:
            asked: list[int] = told.tolist()
            return asked
        asked = [self._by_owner(vertices)[1][over.index] for vertices in others()]
        asked[over.index] = 0
        return asked

    def _by_owner(self, vertices: Tensor) -> tuple[Tensor, list[int]]:
        """An order in which the vertices stand by their owners, and how many each owner has of them."""
        if vertices.is_meta:
            n, K = self.blocks[-1].stop, len(vertices)
            return vertices, [round(K * block.stop / n) - round(K * block.start / n) for block in self.blocks]
        owner = torch.bucketize(vertices, self._stops, right=True)
        return owner.sort(stable=True).indices, owner.bincount(minlength=self.over.size).tolist()
