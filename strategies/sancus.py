"""SANCUS: the 1D algorithm, in which ranks skip a broadcast while the others' copies are fresh (PVLDB 2022).

A is split by rows, and T_i = sum over j of A_ij H_j, where the blocks H_j arrive one after the other. Every rank caches
the blocks of all other ranks across epochs. With a staleness bound of S epochs, a layer visits the ranks j in order:

    1. In the first epoch, and in every (S + 1)-th epoch after it, rank j broadcasts H_j, and the others cache it.
    2. In all other epochs, the others multiply by the cached block, which is at most S epochs old.
    3. A rank's own rows are always current.

Ranks take turns: every (S + 1)-th rank broadcasts in the same epoch. An input that never changes, such as fixed
features, is broadcast only in the first epoch. Gradients are not cached: the backward pass is that of the 1D algorithm,
on the current rows of H. With S = 0 there is no cache, and this is the 1D algorithm.

Legend: N this rank's vertices, K those of rank j; F features in, H features out.
"""

from collections import Counter

import torch
from pydantic import Field
from torch import Tensor

from harness.comm.call import Call, EmptyCall
from harness.ledger import AxisName, Op, TensorName
from harness.strategies.cagnet.oned import RowParams, RowScheme, WholeRows
from harness.strategies.cagnet.terms import FORWARD
from harness.strategy import (
    WORD,
    Context,
    Coordinates,
    Counts,
    DenseGraph,
    Multiply,
    Promise,
    Recurrence,
    Words,
)


class StaleRows(WholeRows):
    """One rank's convolution on whole rows, with cached blocks of the other ranks."""

    def __init__(self, ctx: Context, strategy: "Sancus") -> None:
        super().__init__(ctx, strategy)
        self.sancus, self.layer, self.own = strategy, 0, self.over.index
        self.cached = {
            (layer, j): ctx.memory.hold_zeros(TensorName.H, len(block), width)
            for layer, width in enumerate(strategy.cached_widths())
            for j, block in enumerate(self.blocks)
            if j != self.own
        }
        self.broadcasts, self.chosen = Counter[str](), ctx.measured.chosen

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        self.layer = layer
        return super().convolve(layer, H_NF, W_FH)

    def fetch_block(self, j: int, H_NF: Tensor, moves: TensorName) -> Call[Tensor]:
        """Return H_j: the broadcast that refreshes the cached block, or the cached block."""
        if not self.cached or moves is TensorName.G or self.step is None:
            return super().fetch_block(j, H_NF, moves)
        cached, is_sent = self.cached.get((self.layer, j)), self.sancus.is_broadcast(j, self.layer, self.step)
        self.record_broadcast(is_sent)
        if is_sent:
            shape = len(self.blocks[j]), H_NF.shape[1]
            return self.over.broadcast.call(H_NF, root=j, shape=shape, tensor=moves, out=cached)
        return EmptyCall(H_NF if cached is None else cached)

    def record_broadcast(self, is_sent: bool) -> None:
        """Count a broadcast as sent or skipped, for the run's record. All ranks count the same."""
        self.broadcasts["sent" if is_sent else "skipped"] += 1
        skipped, total = self.broadcasts["skipped"], self.broadcasts.total()
        self.chosen["broadcasts of H"] = f"{skipped:,} of {total:,} skipped"


class SancusParams(RowParams):
    """The parameters of the 1D algorithm, and the staleness bound."""

    stale: int = Field(1, ge=0, examples=[0, 3])
    """The largest age, in epochs, of the rows of other ranks."""


class CachedBlocks(Recurrence):
    """Other ranks see the rows of the first epoch, then those of the last turn; gradients are by current rows."""

    def __init__(self, strategy: "Sancus", graph: DenseGraph) -> None:
        super().__init__(strategy, graph)
        self.sent = dict[int, Tensor]()

    @staticmethod
    def count_epochs(strategy: "Sancus") -> int:
        """Every rank broadcasts twice after the first epoch."""
        return 1 + 2 * (strategy.params.stale + 1)

    def see(self, step: int, layer: int, H_nF: Tensor) -> Tensor:
        sent = self.sent[layer] = self.sent.get(layer, H_nF.detach()).clone()
        for j, rows in enumerate(self.parts):
            if step and (step - 1 - j) % (self.params.stale + 1) == 0:
                sent[rows] = H_nF.detach()[rows]
        return H_nF + torch.where(self.own, 0, sent - H_nF.detach())

    def convolve(self, step: int, layer: int, H: Tensor, W: Tensor, multiply: Multiply) -> Tensor:
        Z = super().convolve(step, layer, H, W, multiply)
        if self.params.weight_gradient == "T":  # of the product that was saved, with cached rows
            return Z
        current = self.A @ H @ W
        return current + (Z - current).detach()


class Sancus(RowScheme):
    """Full-graph training with bounded staleness, for any number of ranks up to the number of vertices."""

    name = "sancus"
    paper = "SANCUS (PVLDB 2022)"
    promise = Promise.APPROXIMATE
    stale_order_reason = (
        "cached rows (stale above 0) are rows of H, as in the paper, and rows of H W would also depend on old "
        "weights"
    )
    Params = SancusParams
    params: SancusParams
    recurrence = CachedBlocks

    def operators(self, ctx: Context) -> StaleRows:
        return StaleRows(ctx, self)

    @property
    def effective_promise(self) -> Promise:
        """Training is exact if no layer multiplies by rows that have changed since they were sent."""
        stale = self.has_cache and any(map(self.has_changing_input, range(len(self.shapes))))
        return Promise.APPROXIMATE if stale else Promise.EXACT

    def is_owner_computes(self) -> bool:
        return self.params.stale == 0

    @property
    def has_cache(self) -> bool:
        """True if ranks cache the blocks of others."""
        return self.params.stale > 0 and self.spec.ranks > 1

    @property
    def transient_epochs(self) -> int:
        """One if ranks have a cache: all of them broadcast in the first epoch."""
        return int(self.has_cache)

    def has_changing_input(self, layer: int) -> bool:
        """Return whether a layer's input changes between epochs; fixed features do not."""
        return self.needs_dH(layer) or self.combines_first(layer)

    @property
    def aggregate_first_reason(self) -> str | None:
        return self.stale_order_reason if self.has_cache else super().aggregate_first_reason

    def is_broadcast(self, j: int, layer: int, epoch: int) -> bool:
        """Return whether rank j broadcasts its rows for a layer; `epoch` counts from 0, warm-up included."""
        turn = (epoch - 1 - j) % (self.params.stale + 1) == 0
        return epoch == 0 or (turn and self.has_changing_input(layer))

    def cached_widths(self) -> list[int]:
        """Return the width of the cached rows of each layer; empty without a cache."""
        widths = [shape[self.combines_first(layer)] for layer, shape in enumerate(self.shapes)]
        return widths if self.has_cache else []

    def words(self, at: Coordinates, counts: Counts) -> Words:
        return self.words_of_epoch(at, counts, 0)

    def words_of_epoch(self, at: Coordinates, counts: Counts, epoch: int) -> Words:
        """Return the words of the 1D algorithm, minus the rows whose broadcast is skipped."""
        words = super().words(at, counts)
        for layer, width in enumerate(self.cached_widths()):
            skipped = [
                len(block) for j, block in enumerate(self.blocks()) if not self.is_broadcast(j, layer, epoch)
            ]
            moves = TensorName.T if self.combines_first(layer) else TensorName.H
            words.add(FORWARD, layer, Op.BROADCAST, AxisName.P, moves, -width * sum(skipped))
        return words

    def memory(self, at: Coordinates, counts: Counts) -> dict[TensorName, int]:
        """Return the bytes of the 1D algorithm, plus the cached rows of all other ranks for each layer."""
        held, others = super().memory(at, counts), self.facts.vertices - len(self.rows(at))
        kept = WORD[self.spec.precision] * others * sum(self.cached_widths())
        return {**held, TensorName.H: held.get(TensorName.H, 0) + kept}
