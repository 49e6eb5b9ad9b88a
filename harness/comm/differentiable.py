"""Collectives that autograd can go through, in pairs that are each other's transpose.

    sum       all-reduce      / identity            the same sum everywhere, from different terms
    spread    identity        / all-reduce          the same tensor everywhere, used for different things
    gather    all-gather      / reduce-scatter
    scatter   reduce-scatter  / all-gather

A gradient is never sent on from a buffer that somebody else may hold or that is strided: it is copied first where
the collective works in place. Results are always waited for here: autograd must not see one that is still under
way. Each has one tensor, so its backward runs only where a gradient is asked for. `harness.ledger.apply` charges it to
where the forward pass stood.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harness.ledger import Op, TensorName

if TYPE_CHECKING:
    from harness.comm.axis import Axis


class Sum(Function):
    """Forward sums over the axis. Backward: every term has the gradient of the sum."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, axis: "Axis", tensor: TensorName, wire: torch.dtype | None, in_place: bool
    ) -> Tensor:
        if in_place:
            ctx.mark_dirty(x)
        return axis.all_reduce(x if in_place else _copy(axis, x, tensor), tensor=tensor, wire=wire)

    @staticmethod
    @once_differentiable
    def backward(_: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        return dy, None, None, None, None


class Spread(Function):
    """Forward does nothing. Backward sums what every member's use of x says of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: "Axis", gradient: TensorName, wire: torch.dtype | None) -> Tensor:
        ctx.axis, ctx.gradient, ctx.wire = axis, gradient, wire
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        axis, gradient = ctx.axis, ctx.gradient
        dx = axis.all_reduce(_copy(axis, dy, gradient), tensor=gradient, wire=ctx.wire)
        return dx, None, None, None


class Gather(Function):
    """Forward puts the members' rows together. Backward sums each member's rows on that member."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        axis: "Axis",
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sequence[int] | None,
        wire: torch.dtype | None,
    ) -> Tensor:
        ctx.axis, ctx.gradient, ctx.sizes, ctx.wire = axis, gradient, sizes, wire
        return axis.all_gather(x, tensor=tensor, sizes=sizes, wire=wire)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        dx = ctx.axis.reduce_scatter(dy, tensor=ctx.gradient, sizes=ctx.sizes, wire=ctx.wire)
        return dx, None, None, None, None, None


class Scatter(Function):
    """Forward sums over the axis and leaves each member its rows. Backward puts the gradients of the rows together."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        axis: "Axis",
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sequence[int] | None,
        wire: torch.dtype | None,
    ) -> Tensor:
        ctx.axis, ctx.gradient, ctx.sizes, ctx.wire = axis, gradient, sizes, wire
        return axis.reduce_scatter(x, tensor=tensor, sizes=sizes, wire=wire)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        dx = ctx.axis.all_gather(dy, tensor=ctx.gradient, sizes=ctx.sizes, wire=ctx.wire)
        return dx, None, None, None, None, None


def _copy(axis: "Axis", x: Tensor, tensor: TensorName) -> Tensor:
    """A contiguous buffer of our own, to be reduced in place."""
    with axis.ledger.op(Op.COPY, tensor=tensor):
        return x.clone(memory_format=torch.contiguous_format)
