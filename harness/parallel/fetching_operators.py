"""One rank's operators where mini-batches have features that others have: sample, fetch, train; and evaluate.

Legend: N vertices of this rank's block row, K of a mini-batch's input, S rows of others that a cache keeps.
"""

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from harness.errors import UserError
from harness.kernels import Csr, block
from harness.ledger import Op, Phase, TensorName
from harness.parallel.cache import Cache
from harness.parallel.feature_store import Coming, FeatureStore
from harness.parallel.fetching import FetchingStrategy
from harness.parallel.minibatches import BatchOperators
from harness.strategy import Context, MiniBatch, Piece


class FetchingOperators(BatchOperators):
    """How a mini-batch is drawn is left open."""

    def __init__(self, ctx: Context, strategy: FetchingStrategy) -> None:
        axis = strategy.rows_over
        super().__init__(ctx, strategy, over=(axis,), everyone=ctx.grid.axis(strategy.axes))
        everyone = range(ctx.facts.vertices)
        self.strategy, self.holders, self.blocks = strategy, ctx.grid[axis], strategy.blocks()
        self.stages = range(len(self.blocks))
        """The block rows of H by which this rank multiplies when the whole graph is evaluated."""
        self.held = strategy.held(ctx.at)
        self.A = ctx.adjacency(self.held, everyone)
        self.labels = ctx.training_labels(Piece(everyone, range(ctx.facts.classes)))
        self.targets, self.elsewhere = ctx.targets(), ctx.elsewhere()
        self.peers = strategy.peers(ctx.at)
        self.caches = self._caches(ctx)
        """This rank's, by its place among those that it gets features from; in a replay everybody's."""
        self.store = self._store(ctx)
        self._coming: dict[int, tuple[MiniBatch, Coming]] = {}
        self._seen: tuple[int, list[MiniBatch]] = -1, []

    @abstractmethod
    def sample(self, step: int) -> MiniBatch:
        """This rank's mini-batch of a step."""

    def of_step(self, step: int) -> Self:
        batch, coming = self._coming.pop(step) if step in self._coming else self._send_for(step)
        with self.ledger.phase(Phase.FETCH):
            X_KF = coming.wait()
        if self.strategy.ahead and (step + 1) % self.strategy.steps:
            self._coming[step + 1] = self._send_for(step + 1)
        with self.ledger.phase(Phase.FETCH), self.ledger.op(Op.COPY, tensor=TensorName.A):
            answers = self.answers.on(batch.vertices[-1].to(self.device), self.labels)
            return self.on(step, batch, X_KF, answers)

    def _send_for(self, step: int) -> tuple[MiniBatch, Coming]:
        with self.ledger.phase(Phase.SAMPLE), self.ledger.op(Op.COPY, tensor=TensorName.A):
            batch = self.sample(step)
        with self.ledger.phase(Phase.FETCH):
            later = self.strategy.ahead
            return batch, self.store.send_for(batch.vertices[0], lambda: self._named(step), later=later)

    def aggregate_all(self, H_NF: Tensor) -> Tensor:
        """T = A H by block rows of H, one after the other from whoever has them."""
        T_NF, start = torch.zeros_like(H_NF), self.held.start
        rows = range(self.rows.start - start, self.rows.stop - start)
        for q in self.stages:
            K, shape = self.blocks[q], (len(self.blocks[q]), H_NF.shape[1])
            H_KF = self.holders.broadcast(H_NF, root=q, shape=shape, tensor=TensorName.H)
            self.kernels.spmm(block(self.A, rows, K), H_KF, TensorName.T, add_to=T_NF)
        return T_NF

    def _caches(self, ctx: Context) -> dict[int, Cache]:
        everyone, alone = range(ctx.facts.vertices), self.elsewhere is None
        if self.strategy.kept and self.elsewhere is not None and self.elsewhere.val.is_meta:
            raise UserError(
                "A cache cannot be replayed by facts alone: what it saves hangs on the graph. Build the dataset, or "
                "train without a cache."
            )

        def stripe(rows: range) -> Csr:
            return ctx.on_host(rows, everyone)

        members = [self.holders.index] if alone else range(self.holders.size)
        return {
            member: self.strategy.cache(self.peers[member], member, stripe, self.targets)
            for member in members
        }

    def _store(self, ctx: Context) -> FeatureStore:
        """With what the cache begins with."""
        cache = self.caches[self.holders.index]
        for tensor in cache.held():
            ctx.hold(TensorName.INDEX, tensor)
        X_SF = ctx.buffer(TensorName.X, len(cache.vertices), ctx.facts.features)
        store = FeatureStore(self.X, self.blocks, self.holders, cache, X_SF, ctx.remote)
        if self.strategy.kept:
            store.fill(lambda: [each.vertices for each in self.caches.values()])
        return store

    # What other ranks do, in a replay.

    def drawn(self, step: int) -> list[MiniBatch]:
        """The mini-batches of all that this rank gets features from, drawn from the whole graph."""
        assert self.elsewhere is not None
        if self._seen[0] != step:
            draw, A, targets = self.strategy.mini_batch, self.elsewhere, self.targets
            self._seen = step, [draw(step, group, A, targets) for group in self.peers]
        return self._seen[1]

    def _named(self, step: int) -> list[Tensor]:
        """The vertices whose features they ask for."""
        inputs = [batch.vertices[0] for batch in self.drawn(step)]
        return [
            K if member == self.holders.index else self.caches[member].look(K).named
            for member, K in enumerate(inputs)
        ]
