"""Resharding: change the layout of a block matrix in one all-to-all that never sends a rank what it already holds.

A layout assigns an axis to the rows, one to the columns, and one along which blocks are replicated. If several ranks
hold a piece, the receiver's index on its axis of replicas selects the sender, so that on a cube every rank sends one
block and receives one. The all-to-all can overlap with the computation of a layer. `RowColumnSlices` converts between
row and column slices along one axis.

Verifier (tests/parallel/test_reshard.py): the blocks of a whole matrix.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.base.ranges import intersect_ranges
from harness.comm.axis import Axis, apply_pair
from harness.comm.call import Pending
from harness.comm.layout import Coordinates, coordinates
from harness.ledger import AxisName, Op, TensorName, apply, charge_backward

Rectangle = tuple[range, range]
EMPTY: Rectangle = (range(0), range(0))


class MatrixLayout(NamedTuple):
    """The axes that split the rows and the columns of a matrix, and the axis along which blocks are replicated."""

    rows: AxisName
    cols: AxisName
    copies: AxisName

    def block(self, at: Coordinates, rows: "Cuts", cols: "Cuts") -> Rectangle:
        """Return the block of the rank at `at`."""
        return rows[self.rows][at[self.rows]], cols[self.cols][at[self.cols]]


Cuts = Mapping[AxisName, Sequence[range]]
"""The blocks of rows or columns, for each axis that may split a matrix."""


class ReshardPlan(NamedTuple):
    """The rectangles that a rank sends to and receives from each member of a group, relative to its blocks."""

    group: Axis
    sends: list[Rectangle]
    receives: list[Rectangle]
    shape: tuple[int, int]
    """The shape of the rank's block afterwards."""


def plan_reshard(
    group: Axis,
    grid: Mapping[AxisName, int],
    source: MatrixLayout,
    target: MatrixLayout,
    rows: Cuts,
    cols: Cuts,
) -> ReshardPlan:
    """Plan the change from one layout to another among the members of `group`, which together hold all blocks."""
    members = [coordinates(grid, rank) for rank in group.ranks]
    this = members[group.index]
    before, after = source.block(this, rows, cols), target.block(this, rows, cols)
    sends, receives = [], []
    for other in members:
        needed, held = target.block(other, rows, cols), source.block(other, rows, cols)
        sends.append(_overlap(before, needed) if _is_sender(this, other, source, target, grid) else EMPTY)
        receives.append(_overlap(after, held) if _is_sender(other, this, source, target, grid) else EMPTY)
    return ReshardPlan(group, sends, receives, (len(after[0]), len(after[1])))


def _is_sender(
    holder: Coordinates,
    to: Coordinates,
    source: MatrixLayout,
    target: MatrixLayout,
    grid: Mapping[AxisName, int],
) -> bool:
    """Return True if `holder`, among all ranks with the same block, sends it to `to`."""
    if holder[source.rows] == to[source.rows] and holder[source.cols] == to[source.cols]:
        return holder[source.copies] == to[source.copies]
    return holder[source.copies] == to[target.copies] % grid[source.copies]


def _overlap(block: Rectangle, other: Rectangle) -> Rectangle:
    """Return the intersection of two blocks, relative to the corner of the first."""
    (rows, cols), (down, across) = block, other
    down, across = intersect_ranges(rows, down), intersect_ranges(cols, across)
    return (
        range(down.start - rows.start, down.stop - rows.start),
        range(across.start - cols.start, across.stop - cols.start),
    )


def send_pieces(H: Tensor, plan: ReshardPlan, tensor: TensorName) -> Pending[Tensor]:
    """Start to send the pieces of H. `receive_pieces` completes the call."""
    with plan.group.ledger.op(Op.COPY, tensor=tensor):
        pieces = [H[rows.start : rows.stop, cols.start : cols.stop].flatten() for rows, cols in plan.sends]
        flat = torch.cat(pieces)
    return plan.group.all_to_all.later(
        flat, send=_piece_sizes(plan.sends), receive=_piece_sizes(plan.receives), tensor=tensor
    )


def receive_pieces(pending: Pending[Tensor], plan: ReshardPlan, tensor: TensorName) -> Tensor:
    """Wait for the pieces and assemble them into this rank's block."""
    flat = pending.wait()
    with plan.group.ledger.op(Op.COPY, tensor=tensor):
        H, pieces = flat.new_empty(plan.shape), flat.split(_piece_sizes(plan.receives))
        for piece, (rows, cols) in zip(pieces, plan.receives, strict=True):
            H[rows.start : rows.stop, cols.start : cols.stop] = piece.view(len(rows), len(cols))
    return H


def _piece_sizes(pieces: Sequence[Rectangle]) -> list[int]:
    return [len(rows) * len(cols) for rows, cols in pieces]


def reshard(x: Tensor, forward_plan: ReshardPlan, backward_plan: ReshardPlan) -> Tensor:
    """Return x in another layout, differentiable."""
    resharded: Tensor = apply(forward_plan.group.ledger, Reshard, x, forward_plan, backward_plan)
    return resharded


class Reshard(Function):
    """Reshards a matrix; the backward pass reshards its gradient back."""

    @staticmethod
    def forward(saved: Any, Z: Tensor, forward_plan: ReshardPlan, backward_plan: ReshardPlan) -> Tensor:
        saved.backward_plan = backward_plan
        return receive_pieces(send_pieces(Z, forward_plan, TensorName.Z), forward_plan, TensorName.Z)

    @staticmethod
    def backward(saved: Any, G: Tensor) -> tuple[Tensor, None, None]:
        plan = saved.backward_plan
        return receive_pieces(send_pieces(G, plan, TensorName.G), plan, TensorName.G), None, None


class RowColumnSlices(NamedTuple):
    """A matrix split along one axis, either by rows or by columns."""

    across: Axis
    rows: Sequence[range]
    """The rows of each member."""
    cols: Sequence[range]
    """The columns of each member."""

    def reshard(self, x: Tensor, *, whole_rows: bool, tensor: TensorName, gradient: TensorName) -> Tensor:
        """Return x split by rows or by columns, differentiable."""
        if self.across.size == 1:
            return x
        there, back = (self.to_rows, self.to_columns) if whole_rows else (self.to_columns, self.to_rows)
        return apply_pair(
            self.across.ledger, x, partial(there, tensor=tensor), partial(back, tensor=gradient)
        )

    def to_rows(self, x: Tensor, tensor: TensorName) -> Tensor:
        """Convert a slice of columns to one of rows."""
        own = len(self.rows[self.across.index])
        send, receive = (
            [len(rows) * x.shape[1] for rows in self.rows],
            [own * len(cols) for cols in self.cols],
        )
        flat = self.across.all_to_all(x.reshape(-1), send=send, receive=receive, tensor=tensor)
        with self.across.ledger.op(Op.COPY, tensor=tensor):
            parts = zip(flat.split(receive), self.cols, strict=True)
            return torch.cat([part.view(own, len(cols)) for part, cols in parts], dim=1)

    def to_columns(self, x: Tensor, tensor: TensorName) -> Tensor:
        """Convert a slice of rows to one of columns."""
        own = len(self.cols[self.across.index])
        send, receive = [len(x) * len(cols) for cols in self.cols], [len(rows) * own for rows in self.rows]
        with self.across.ledger.op(Op.COPY, tensor=tensor):
            flat = torch.cat([x[:, cols.start : cols.stop].flatten() for cols in self.cols])
        received = self.across.all_to_all(flat, send=send, receive=receive, tensor=tensor)
        return received.view(sum(map(len, self.rows)), own)


class Residual:
    """The residual connection of a layer, resharded from the layout of the input to that of the output and back."""

    def __init__(self, forward_plan: ReshardPlan, backward_plan: ReshardPlan) -> None:
        self._forward_plan, self._backward_plan = forward_plan, backward_plan
        self.ledger = forward_plan.group.ledger
        self._pending: Pending[Tensor] | None = None

    def fork(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Start to reshard H; return H for the layer, and a token for `join`."""
        self._pending = send_pieces(H.detach(), self._forward_plan, TensorName.H)
        forked, token = Fork.apply(H, self)  # type: ignore[no-untyped-call]
        charge_backward(self.ledger, forked, (H,))  # one node of autograd makes both
        return forked, token

    def join(self, Z: Tensor, token: Tensor) -> Tensor:
        """Return Z + H, in the layout of Z."""
        H: Tensor = apply(self.ledger, Join, Z, token, self)
        return H

    def receive(self) -> Tensor:
        """Return H in the layout of the output."""
        assert self._pending is not None
        return receive_pieces(self._pending, self._forward_plan, TensorName.H)

    def send_gradient(self, G: Tensor) -> None:
        """Start to reshard the gradient of H back."""
        self._pending = send_pieces(G, self._backward_plan, TensorName.DH)

    def receive_gradient(self) -> Tensor:
        """Return the gradient of H in the layout of the input."""
        assert self._pending is not None
        return receive_pieces(self._pending, self._backward_plan, TensorName.DH)


class Fork(Function):
    """Passes H both through the layer and around it; the backward pass adds the two gradients."""

    @staticmethod
    def forward(saved: Any, H: Tensor, residual: Residual) -> tuple[Tensor, Tensor]:
        saved.residual = residual
        return H.view_as(H), H.new_zeros(())

    @staticmethod
    def backward(saved: Any, dH: Tensor, _: Tensor) -> tuple[Tensor, None]:
        around = saved.residual.receive_gradient()
        with saved.residual.ledger.op(Op.ELEMENTWISE, tensor=TensorName.DH):
            return dH + around, None


class Join(Function):
    """Computes Z + H; the backward pass returns the gradient of Z and starts to send that of H."""

    @staticmethod
    def forward(saved: Any, Z: Tensor, _: Tensor, residual: Residual) -> Tensor:
        saved.residual = residual
        H = residual.receive()
        with residual.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
            return H.add_(Z)

    @staticmethod
    def backward(saved: Any, G: Tensor) -> tuple[Tensor, Tensor, None]:
        saved.residual.send_gradient(G)
        return G, G.new_zeros(()), None
