"""Strategies with one mistake each, of the kinds that authors make. The kit must see every one.

Half of them leave the words right, which is why words never replace equality.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout

from harness.kernels import Csr
from harness.ledger import Direction, Op, TensorName
from harness.strategy import IGNORED, Context, Coordinates, Words
from strategies.cagnet.oned import BlockRows, OneD, P


class LostSumRows(BlockRows):
    """Every rank keeps its own share of the weight gradient."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        axis, real = self.axis, self.axis.all_reduce

        def all_reduce(x: Tensor, *, tensor: TensorName, **more: object) -> Tensor:
            return x if tensor is TensorName.DW else real(x, tensor=tensor, **more)  # type: ignore[arg-type]

        self.axis = _Changed(axis, all_reduce=all_reduce)  # type: ignore[assignment]


class _Changed:
    """An axis with some calls replaced."""

    def __init__(self, axis: object, **calls: object) -> None:
        self._axis = axis
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> object:
        return getattr(self._axis, name)


class WrongTransposeRows(BlockRows):
    """A where A^T belongs: right on every undirected graph."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.A_T_NK = self.A_NK


class LocalMeanRows(BlockRows):
    """The mean over this rank's training vertices instead of everybody's."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.trained_on = max(int((self.labels_N != IGNORED).sum()), 1)


class EveryLabelRows(BlockRows):
    """Trains on the test vertices too."""

    def _share(self, Z_NC: Tensor) -> Tensor:
        labels = torch.stack(list(self.splits.values())).amax(dim=0)
        return cross_entropy(Z_NC, labels, ignore_index=IGNORED, reduction="sum") / self.trained_on


class DriftingRows(BlockRows):
    """Replicas of a weight that are not quite the same."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        return super().convolve(layer, H_NF, W_FH * (1 + 1e-6 * self.axis.index))


class UnseededRows(BlockRows):
    """Drops entries of H at the whim of the clock."""

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        torch.manual_seed(time.perf_counter_ns())
        return dropout(super().activate(layer, Z_NH), 0.1)


class PeekingRows(BlockRows):
    """Branches on a value, and so has no size before it has data."""

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        H_NH = super().activate(layer, Z_NH)
        return H_NH if float(H_NH.detach().sum()) >= 0 else -H_NH


class EngineAskedRows(BlockRows):
    """Does something else where it believes itself unobserved."""

    def aggregate(self, A_NK: Sequence[Csr], H_NF: Tensor, moves: TensorName) -> Tensor:
        T_NF = super().aggregate(A_NK, H_NF, moves)
        return super().aggregate(A_NK, H_NF, moves) if H_NF.is_meta else T_NF


class LostSum(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return LostSumRows(ctx)


class WrongTranspose(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return WrongTransposeRows(ctx)


class LocalMean(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return LocalMeanRows(ctx)


class EveryLabel(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return EveryLabelRows(ctx)


class Drifting(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return DriftingRows(ctx)


class Unseeded(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return UnseededRows(ctx)


class Peeking(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return PeekingRows(ctx)


class EngineAsked(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return EngineAskedRows(ctx)


class WrongFormula(OneD):
    """Forgets that a backward pass broadcasts too, in one layer."""

    def words(self, at: Coordinates) -> Words:
        words = super().words(at)
        words.put(Direction.BACKWARD, 1, Op.BROADCAST, P, TensorName.G, -1)
        return words


class HoldsTwice(OneD):
    """Keeps a second copy of the features that its formula does not know."""

    def operators(self, ctx: Context) -> BlockRows:
        ctx.features(range(1), range(ctx.facts.features))
        return BlockRows(ctx)


class AcceptsAnything(OneD):
    """Refuses nothing."""

    def refuse(self) -> str | None:
        return None
