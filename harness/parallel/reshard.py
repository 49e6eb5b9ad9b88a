"""A block matrix from one layout to another on the same ranks: one all-to-all, in which nobody gets what it has.

A layout says which axis splits the rows, which the columns, and along which blocks are repeated. Who needs a piece that
several ranks hold gets it from the one chosen by its own place along the axis of its copies; so on a cube every rank
sends one block and receives one. It is under way while other things are computed.

Verifier (tests/parallel/test_reshard.py): the blocks of a whole matrix.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from harness.comm.axis import Axis
from harness.comm.call import Pending
from harness.comm.layout import Coordinates, coordinates
from harness.ledger import AxisName, Op, TensorName, apply, follow
from harness.ranges import common

Rectangle = tuple[range, range]


class Layout(NamedTuple):
    """Which axis does what to a matrix."""

    rows: AxisName
    cols: AxisName
    copies: AxisName

    def block(self, at: Coordinates, rows: "Cuts", cols: "Cuts") -> Rectangle:
        """What the rank at `at` has."""
        return rows[self.rows][at[self.rows]], cols[self.cols][at[self.cols]]


Cuts = Mapping[AxisName, Sequence[range]]
"""Where rows, or columns, are cut if an axis splits them."""


class Moves(NamedTuple):
    """What one rank sends to each member of the group and receives from it: rectangles of its own blocks."""

    group: Axis
    sends: list[Rectangle]
    receives: list[Rectangle]
    shape: tuple[int, int]
    """Of what it has afterwards."""


def moves(
    group: Axis, grid: Mapping[AxisName, int], source: Layout, target: Layout, rows: Cuts, cols: Cuts
) -> Moves:
    """From one layout to the other among the members of `group`, who have all blocks."""
    everybody = [coordinates(grid, rank) for rank in group.ranks]
    me = everybody[group.index]
    had, wanted = source.block(me, rows, cols), target.block(me, rows, cols)
    sends, receives = [], []
    for other in everybody:
        theirs = target.block(other, rows, cols)
        sends.append(_within(had, theirs) if _serves(me, other, source, target, grid) else _nothing())
        theirs = source.block(other, rows, cols)
        receives.append(_within(wanted, theirs) if _serves(other, me, source, target, grid) else _nothing())
    return Moves(group, sends, receives, (len(wanted[0]), len(wanted[1])))


def _serves(
    holder: Coordinates, to: Coordinates, source: Layout, target: Layout, grid: Mapping[AxisName, int]
) -> bool:
    """Whether, of all who have the same block, this holder is the one for `to`: itself, if it has the block."""
    if holder[source.rows] == to[source.rows] and holder[source.cols] == to[source.cols]:
        return holder[source.copies] == to[source.copies]
    return holder[source.copies] == to[target.copies] % grid[source.copies]


def _within(block: Rectangle, other: Rectangle) -> Rectangle:
    """What a block has in common with another, counted from its own corner."""
    (rows, cols), (down, across) = block, other
    down, across = common(rows, down), common(cols, across)
    return (
        range(down.start - rows.start, down.stop - rows.start),
        range(across.start - cols.start, across.stop - cols.start),
    )


def _nothing() -> Rectangle:
    return range(0), range(0)


def send(H: Tensor, there: Moves, tensor: TensorName) -> Pending[Tensor]:
    """The pieces of H leave; what arrives is for `land`."""
    with there.group.ledger.op(Op.COPY, tensor=tensor):
        pieces = [H[rows.start : rows.stop, cols.start : cols.stop].flatten() for rows, cols in there.sends]
        flat = torch.cat(pieces)
    return there.group.all_to_all.later(
        flat, send=_sizes(there.sends), receive=_sizes(there.receives), tensor=tensor
    )


def land(coming: Pending[Tensor], there: Moves, tensor: TensorName) -> Tensor:
    """The block that has arrived."""
    flat = coming.wait()
    with there.group.ledger.op(Op.COPY, tensor=tensor):
        H, sizes = flat.new_empty(there.shape), _sizes(there.receives)
        for start, size, (rows, cols) in zip(
            accumulate(sizes, initial=0), sizes, there.receives, strict=False
        ):
            H[rows.start : rows.stop, cols.start : cols.stop] = flat[start : start + size].view(
                len(rows), len(cols)
            )
    return H


def _sizes(pieces: Sequence[Rectangle]) -> list[int]:
    return [len(rows) * len(cols) for rows, cols in pieces]


class Residual:
    """The input of a layer on its way to where the output is added to it, and its gradient on the way back."""

    def __init__(self, there: Moves, back: Moves) -> None:
        self._there, self._back = there, back
        self._coming: Pending[Tensor] | None = None

    def keep(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """H for the layer, and a token of it for `add`; H is on its way from now on."""
        self._coming = send(H.detach(), self._there, TensorName.H)
        forked, token = Fork.apply(H, self)  # type: ignore[no-untyped-call]
        follow(self._there.group.ledger, forked, (H,))  # one node brings both
        return forked, token

    def add(self, Z: Tensor, token: Tensor) -> Tensor:
        """Z + H."""
        H: Tensor = apply(self._there.group.ledger, Join, Z, token, self)
        return H

    def landed(self) -> Tensor:
        """H."""
        assert self._coming is not None
        return land(self._coming, self._there, TensorName.H)

    def send_back(self, G: Tensor) -> None:
        self._coming = send(G, self._back, TensorName.DH)

    def landed_back(self) -> Tensor:
        assert self._coming is not None
        return land(self._coming, self._back, TensorName.DH)

    @property
    def ledger(self) -> Any:
        return self._there.group.ledger


class Fork(Function):
    """H goes two ways; backward, what came through the layer is added to what came around it."""

    @staticmethod
    def forward(saved: Any, H: Tensor, residual: Residual) -> tuple[Tensor, Tensor]:
        saved.residual = residual
        return H.view_as(H), H.new_zeros(())

    @staticmethod
    def backward(saved: Any, dH: Tensor, _: Tensor) -> tuple[Tensor, None]:
        around = saved.residual.landed_back()
        with saved.residual.ledger.op(Op.ELEMENTWISE, tensor=TensorName.DH):
            return dH + around, None


class Join(Function):
    """Z + H; backward, the gradient goes on to Z and sets out for H."""

    @staticmethod
    def forward(saved: Any, Z: Tensor, _: Tensor, residual: Residual) -> Tensor:
        saved.residual = residual
        H = residual.landed()
        with residual.ledger.op(Op.ELEMENTWISE, tensor=TensorName.H):
            return H.add_(Z)

    @staticmethod
    def backward(saved: Any, G: Tensor) -> tuple[Tensor, Tensor, None]:
        saved.residual.send_back(G)
        return G, G.new_zeros(()), None
