"""Strategies that do not survive their first epoch."""

import os
import sys

from torch import Tensor

from harness.strategy import Context
from strategies.cagnet.oned import BlockRows, OneD


class RaisingRows(BlockRows):
    def inputs(self) -> Tensor:
        if self.axis.index == 1:
            raise ZeroDivisionError("on purpose")
        return super().inputs()


class VanishingRows(BlockRows):
    def inputs(self) -> Tensor:
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)


class RaisesOnRankOne(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return RaisingRows(ctx)


class Vanishes(OneD):
    def operators(self, ctx: Context) -> BlockRows:
        return VanishingRows(ctx)
