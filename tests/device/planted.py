"""Strategies with one mistake each that a CPU forgives and a GPU does not."""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from harness.strategies.cagnet.oned import OneD, WholeRows
from harness.strategy import Context


class HostIndexRows(WholeRows):
    """Rows are taken by indices that nobody moved to the device."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        return super().convolve(layer, H_NF.index_select(0, torch.arange(len(H_NF))), W_FH)


class ItemRows(WholeRows):
    """A step reads a number of the device."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        Z_NH = super().convolve(layer, H_NF, W_FH)
        return Z_NH if Z_NH.sum().item() else Z_NH.clone()


class UnevenGatherRows(WholeRows):
    """Blocks of different heights are gathered as if they were equal."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        if self.over.size > 1:
            out = H_NF.new_empty(self.over.size * len(H_NF), H_NF.shape[1])
            dist.all_gather_single(out, H_NF.detach().contiguous(), group=self.over.group)
        return super().convolve(layer, H_NF, W_FH)


class SwappedSendRows(WholeRows):
    """The first rank sends two matrices of as many bytes, and the second receives them the other way round."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        if self.over.size > 1 and self.over.index < 2:
            both = [W_FH.detach().clone(), W_FH.detach().float().repeat(2, 1)]
            if self.over.index == 0:
                calls = [dist.P2POp(dist.isend, x, 1) for x in both]
            else:
                calls = [dist.P2POp(dist.irecv, x, 0) for x in reversed(both)]
            for call in dist.batch_isend_irecv(calls):
                call.wait()
        return super().convolve(layer, H_NF, W_FH)


class HangingRows(WholeRows):
    """The second rank never comes to the calls of its layer."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        while self.over.index == 1:
            time.sleep(1)
        return super().convolve(layer, H_NF, W_FH)


class CountingHostRows(WholeRows):
    """A number of the host grows with every layer that was computed, and none of the results shows it."""

    computed = 0

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        CountingHostRows.computed += 1
        return super().convolve(layer, H_NF, W_FH) * (1 + CountingHostRows.computed % 17)


class ReallocatingRows(WholeRows):
    """An evaluation puts a new tensor in the place of one that the steps read."""

    def __init__(self, ctx: Context, strategy: OneD) -> None:
        super().__init__(ctx, strategy)
        self.kept = {"factor": torch.ones(1, device=ctx.device)}

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        Z_NH = super().convolve(layer, H_NF, W_FH) * self.kept["factor"]
        if self.step is None:
            self.kept["factor"] = self.kept["factor"].clone()
        return Z_NH


class OtherStreamRows(WholeRows):
    """Half of the work goes to a stream that waits for the device's events of another epoch."""

    def convolve(self, layer: int, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        Z_NH = super().convolve(layer, H_NF, W_FH)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(2, device=Z_NH.device).mul_(2)
        return Z_NH


class HostIndex(OneD):
    name = "planted-host-index"

    def operators(self, ctx: Context) -> WholeRows:
        return HostIndexRows(ctx, self)


class Item(OneD):
    name = "planted-item"

    def operators(self, ctx: Context) -> WholeRows:
        return ItemRows(ctx, self)


class UnevenGather(OneD):
    name = "planted-uneven-gather"

    def operators(self, ctx: Context) -> WholeRows:
        return UnevenGatherRows(ctx, self)


class SwappedSend(OneD):
    name = "planted-swapped-send"

    def operators(self, ctx: Context) -> WholeRows:
        return SwappedSendRows(ctx, self)


class Hanging(OneD):
    name = "planted-hanging"

    def operators(self, ctx: Context) -> WholeRows:
        return HangingRows(ctx, self)


class CountingHost(OneD):
    name = "planted-counting-host"

    def operators(self, ctx: Context) -> WholeRows:
        return CountingHostRows(ctx, self)


class Reallocating(OneD):
    name = "planted-reallocating"

    def operators(self, ctx: Context) -> WholeRows:
        return ReallocatingRows(ctx, self)


class OtherStream(OneD):
    name = "planted-other-stream"

    def operators(self, ctx: Context) -> WholeRows:
        return OtherStreamRows(ctx, self)
