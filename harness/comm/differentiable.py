"""Collectives that autograd can go through: pairs, each the other's transpose.

    sum       all-reduce      / identity            the same sum everywhere, from different terms
    spread    identity        / all-reduce          the same tensor everywhere, used for different things
    gather    all-gather      / reduce-scatter
    scatter   reduce-scatter  / all-gather

A gradient is never sent on from a buffer that somebody else may hold or that is strided: where the collective works in
place it is copied first. Results are always waited for here: autograd must not see one that is still under way.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harness.ledger import Ledger, Op, TensorName, apply

Way = Callable[[Tensor], Tensor]


class Pair(Function):
    """One way forward, its transpose backward; which runs only where a gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Way, back: Way, in_place: bool) -> Tensor:
        ctx.back = back
        if in_place:
            ctx.mark_dirty(x)
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(dy), None, None, None


def paired(ledger: Ledger, x: Tensor, there: Way, back: Way, *, in_place: bool = False) -> Tensor:
    """`there(x)`; its backward is `back`, charged to where the ledger stands now."""
    y: Tensor = apply(ledger, Pair, x, there, back, in_place)
    return y


def itself(x: Tensor) -> Tensor:
    """The same tensor as a result."""
    return x.view_as(x)


def copied(ledger: Ledger, x: Tensor, tensor: TensorName) -> Tensor:
    """A contiguous buffer of our own, to be reduced in place."""
    with ledger.op(Op.COPY, tensor=tensor):
        return x.clone(memory_format=torch.contiguous_format)
