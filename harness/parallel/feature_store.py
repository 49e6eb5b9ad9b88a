"""Features of any vertices, fetched from the ranks that have them: block rows over an axis, one exchange a mini-batch.

Who asks sends the numbers of the rows that it lacks, each once, and gets them in one all-to-all. Ranks beside the axis
have copies of the same blocks and ask nobody of each other (section 6 of Tripathy, Yelick and Buluc). Nor is anybody
asked for what a cache keeps (`harness.parallel.cache`).

Legend: N vertices of this rank's block, K vertices that are asked for, M rows that leave, S slots of the cache, F
features.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from harness.comm.axis import Axis
from harness.comm.pending import Landed, Pending
from harness.ledger import Op, TensorName
from harness.parallel.asking import Asked, ask, by_owner, inverse
from harness.parallel.cache import Cache, Look
from harness.strategy import Remote

Others = Callable[[], Sequence[Tensor]]
"""What every member of the axis asks for; on shapes alone, where nobody else can say."""


class FeatureStore:
    """One rank's block, what it keeps of the others', and the way to the rest."""

    def __init__(
        self, X_NF: Tensor, blocks: Sequence[range], over: Axis, cache: Cache, X_SF: Tensor, remote: Remote
    ) -> None:
        """`blocks` are the vertices of every member of the axis, ascending; X_NF has those of this one."""
        self.X_NF, self.blocks, self.over = X_NF, blocks, over
        self.cache, self.X_SF, self.remote = cache, X_SF, remote

    def fill(self, others: Others) -> None:
        """Fetches what the cache begins with."""
        vertices = self.cache.vertices
        everything = torch.arange(len(vertices))
        look = Look(vertices, everything, everything[:0], everything[:0], everything, everything)
        self._ask(look, others, later=False).wait()

    def send_for(self, vertices: Tensor, others: Others, *, later: bool) -> "Coming":
        """X[vertices], each of which is there once; `later`, it arrives while something else is done."""
        with self.over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
            look = self.cache.look(vertices)
        coming = self._ask(look, others, later=later)
        absent, extra = sum(coming.asked.wanted), len(look.named) - len(look.lacking)
        self.remote.rows += absent - extra + len(look.found)
        self.remote.cached += len(look.found)
        return coming

    def _ask(self, look: Look, others: Others, *, later: bool) -> "Coming":
        over, device = self.over, self.X_NF.device
        with over.ledger.op(Op.COPY, tensor=TensorName.INDEX):
            order, counts = by_owner(look.named, self.blocks)
            named = look.named.index_select(0, order).to(device)
        asked = ask(over, self.blocks, named, counts, lambda: list(map(self._mine_of, others())))
        with over.ledger.op(Op.COPY, tensor=TensorName.X):
            leaving_MF = self.X_NF.index_select(0, asked.coming.to(device))
        call = asked.exchange(leaving_MF, TensorName.X)
        return Coming(self, look, order, asked, call.later() if later else Landed(call.now()))

    def _mine_of(self, vertices: Tensor) -> Tensor:
        """Those of this rank's block."""
        order, counts = by_owner(vertices, self.blocks)
        first = sum(counts[: self.over.index])
        if vertices.is_meta:
            return vertices[: counts[self.over.index]]
        return vertices[order[first : first + counts[self.over.index]]]


class Coming(NamedTuple):
    """Rows that were sent for."""

    store: FeatureStore
    look: Look
    order: Tensor
    """In which the rows were named."""
    asked: Asked
    arrives: Pending[Tensor]

    def wait(self) -> Tensor:
        """All that were asked for, in that order; the cache takes what is new to it."""
        arrived = self.arrives.wait()
        store, look, device = self.store, self.look, arrived.device
        with store.over.ledger.op(Op.COPY, tensor=TensorName.X):
            mine = store.X_NF.index_select(0, self.asked.own)
            kept = store.X_SF.index_select(0, look.slots.to(device))
            rows = torch.cat([*self.asked.in_order(arrived, mine), kept])
            back = inverse(self.order)
            place = back.new_empty(len(look.lacking) + len(look.found))
            place[look.lacking] = back[: len(look.lacking)]
            place[look.found] = torch.arange(len(look.found), device=back.device) + len(back)
            newcomers = rows.index_select(0, back[look.newcomers].to(device))
            store.X_SF.index_copy_(0, look.freed.to(device), newcomers)
            return rows.index_select(0, place.to(device))
