"""Strategies with one mistake each that a CPU forgives and a GPU does not."""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from harness.strategy import Context
from strategies.cagnet.oned import OneD, WholeRows


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
