"""Features of any vertices, fetched from the ranks that have them: block rows over an axis, one exchange a mini-batch.

Who asks sends the numbers of the rows that it lacks, each once, and gets them in one all-to-all. Ranks beside the axis
have copies of the same blocks and ask nobody of each other (section 6 of Tripathy, Yelick and Buluc).

Legend: N vertices of this rank's block, K vertices that are asked for, M rows that leave, F features.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.ledger import Op, TensorName
from harness.parallel.asking import ask, owners


class FeatureStore:
    """One rank's block, and the way to the others'."""

    def __init__(self, X_NF: Tensor, blocks: Sequence[range], over: Axis) -> None:
        """`blocks` are the vertices of every member of the axis, ascending; X has those of this one."""
        self.X_NF, self.blocks, self.over = X_NF, blocks, over

    def fetch(self, vertices: Tensor, others: Callable[[], Sequence[Tensor]]) -> Tensor:
        """X[vertices], each of which is there once.

        `others` says what every member of the axis asks for; on shapes alone, where nobody else can.
        """
        over, device = self.over, self.X_NF.device
        with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
            order, counts = self._by_owner(vertices)
            named = vertices.index_select(0, order).to(device)
        asked = ask(over, self.blocks, named, counts, lambda: list(map(self._mine_of, others())))
        with over.ledger.op(Op.COPY, tensor=TensorName.X):
            leaving_MF, mine_NF = (
                self.X_NF.index_select(0, asked.coming.to(device)),
                self.X_NF.index_select(0, asked.own),
            )
        found_KF = asked.answer(leaving_MF, mine_NF, TensorName.X)
        with over.ledger.op(Op.COPY, tensor=TensorName.X):
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            return found_KF.index_select(0, back.to(device))

    def _mine_of(self, vertices: Tensor) -> Tensor:
        """Those of this rank's block."""
        order, counts = self._by_owner(vertices)
        first = sum(counts[: self.over.index])
        if vertices.is_meta:
            return vertices[: counts[self.over.index]]
        return vertices[order[first : first + counts[self.over.index]]]

    def _by_owner(self, vertices: Tensor) -> tuple[Tensor, list[int]]:
        """An order in which the vertices stand by their owners, and how many each owner has of them."""
        if vertices.is_meta:
            n, K = self.blocks[-1].stop, len(vertices)
            return vertices, [round(K * block.stop / n) - round(K * block.start / n) for block in self.blocks]
        owner = owners(vertices, self.blocks)
        return owner.sort(stable=True).indices, owner.bincount(minlength=self.over.size).tolist()
