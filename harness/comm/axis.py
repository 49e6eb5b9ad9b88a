"""One axis of a grid: the collectives among the ranks that differ in this coordinate only.

Strategies reach other ranks only through an axis. Every call goes on the ledger with its words and bytes, under the
current phase, layer and direction; only the reduction of a parameter's gradient is phase `sync` wherever it is issued.
An axis of one returns its input and records nothing, so the same lines serve one rank and many.

A collective is waited for at once, or later (`harness.comm.call`). With a `wire`, features, activations and their
gradients travel in that type: all members, the root of a broadcast included, then hold the values that travelled. The
collectives take plain tensors; autograd goes through `sum`, `spread`, `gather` and `scatter`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harness.comm import collectives, traffic
from harness.comm.call import Call, EmptyCall, Start, collective
from harness.comm.collectives import Group, Reduction, Sizes, StartedCall
from harness.comm.ring_collectives import RingCollectives
from harness.comm.traffic import Traffic
from harness.ledger import NO_INDEX, Key, Ledger, Op, Phase, TensorName, apply

# Collectives that autograd can go through: pairs, each the transpose of the other.
#
#            forward         backward
#   sum      all-reduce      identity        the same sum everywhere, from different terms
#   spread   identity        all-reduce      the same tensor everywhere, used for different things
#   gather   all-gather      reduce-scatter
#   scatter  reduce-scatter  all-gather
#
# A gradient may be strided, or held by others: where a collective works in place, the gradient is copied
# first. Results are always waited for, because autograd must not see a buffer that is still being filled.

TensorMap = Callable[[Tensor], Tensor]


class TransposedPair(Function):
    """A map forward and its transpose backward, which runs only where a gradient is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: TensorMap, back: TensorMap, in_place: bool) -> Tensor:
        ctx.back = back
        if in_place:
            ctx.mark_dirty(x)
        return ahead(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(dy), None, None, None


def apply_pair(
    ledger: Ledger, x: Tensor, ahead: TensorMap, back: TensorMap, *, in_place: bool = False
) -> Tensor:
    """`ahead(x)`; its backward is `back`, charged to the key that is current now."""
    y: Tensor = apply(ledger, TransposedPair, x, ahead, back, in_place)
    return y


def identity(x: Tensor) -> Tensor:
    """The same tensor as a result: the identity."""
    return x.view_as(x)


def copy_contiguous(ledger: Ledger, x: Tensor, tensor: TensorName) -> Tensor:
    """A contiguous copy, to be reduced in place."""
    with ledger.op(Op.COPY, tensor=tensor):
        return x.clone(memory_format=torch.contiguous_format)


Wire = torch.dtype | None
Out = Tensor | None
TRAINED = (TensorName.DW, TensorName.DGAMMA, TensorName.DX)
"""Gradients of trained tensors: their reductions are phase `sync`."""
ROUNDED = frozenset(
    {
        TensorName.X,
        TensorName.H,
        TensorName.T,
        TensorName.Z,
        TensorName.G,
        TensorName.S,
        TensorName.DT,
        TensorName.DH,
    }
)
"""Features, activations and their gradients, which a narrower wire rounds. Weights, their gradients, sums of squares,
scores of edges and losses always travel in full."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """This rank's view of one axis, or of several taken as one."""

    name: str
    """The name of the axis; several axes have their names joined by a plus sign."""
    size: int
    index: int
    """This rank's index on the axis, from 0. Roots and peers are given as such indices too."""
    ranks: tuple[int, ...]
    """The members' ranks in the world, in the order of their indices."""
    group: Group | None
    """None for an axis of one."""
    ledger: Ledger
    device: torch.device
    ring: RingCollectives | None = None
    """Composes large calls on machines whose links are slow without rings; None elsewhere."""
    wire: Wire = None
    """The type in which the tensors in `ROUNDED` travel; None for their own."""

    # Reductions.

    @collective
    def all_reduce(
        self, x: Tensor, *, tensor: TensorName, op: Reduction = Reduction.SUM, wire: Wire = None
    ) -> Call[Tensor]:
        """Reduces every member's x in place: x is the result, the same bits on every member.

        `wire` is the type that travels, whatever the tensor.
        """
        if (group := self.group) is None:
            return EmptyCall(x)
        wire = wire or self._wire_dtype(tensor, x.dtype)
        return self._make_call(
            Op.ALL_REDUCE,
            tensor,
            traffic.all_reduce(x.numel(), self.size),
            lambda later: collectives.all_reduce(group, _check_no_grad(x), op, wire, later=later),
        )

    @collective
    def all_reduce_coalesced(
        self, xs: Sequence[Tensor], *, layers: Sequence[int], tensor: TensorName
    ) -> Call[Sequence[Tensor]]:
        """Sums several tensors of one type, such as the gradients of all layers, in place and in one call.

        The words of each tensor are in the row of its layer. The call and its time are in the row of the first.
        """
        if (group := self.group) is None or not xs:
            return EmptyCall(xs)
        rows = [self._make_key(Op.ALL_REDUCE, tensor)._replace(layer=layer) for layer in layers]

        def start(later: bool) -> StartedCall[Sequence[Tensor]]:
            buffer = torch.cat([_check_no_grad(x).flatten() for x in xs])
            started = collectives.all_reduce(group, buffer, Reduction.SUM, None, later=later)
            if self.ledger.recording:
                for key, x in zip(rows, xs, strict=True):
                    words = traffic.all_reduce(x.numel(), self.size)
                    self.ledger.add(
                        key,
                        words_payload=words.payload,
                        words_received=words.received,
                        bytes=x.nbytes,
                    )
                self.ledger.add(rows[0], calls=1)

            def land() -> Sequence[Tensor]:
                parts = started.result().split([x.numel() for x in xs])
                return [x.copy_(part.view(x.shape)) for x, part in zip(xs, parts, strict=True)]

            return StartedCall(started.works, land, started.bytes)

        return Call(self.ledger, rows[0], None, start)

    @collective
    def reduce_scatter(self, x: Tensor, *, tensor: TensorName, sizes: Sizes | None = None) -> Call[Tensor]:
        """Returns this member's rows of the sum of every member's x; `sizes` are the rows of each member, if uneven."""
        if (group := self.group) is None:
            return EmptyCall(x)
        rows = sizes or [x.shape[0] // self.size] * self.size
        assert len(rows) == self.size and sum(rows) == x.shape[0], (rows, x.shape)
        wire = self._wire_dtype(tensor, x.dtype)

        def start(later: bool) -> StartedCall[Tensor]:
            ring = self._select_ring(x.numel(), wire or x.dtype)
            return collectives.reduce_scatter(group, _check_no_grad(x), rows, wire, later=later, ring=ring)

        return self._make_call(Op.REDUCE_SCATTER, tensor, traffic.reduce_scatter(x.numel(), self.size), start)

    # Rows that move.

    @collective
    def all_gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        sizes: Sizes | None = None,
        out: Out = None,
        words: Sizes | None = None,
    ) -> Call[Tensor]:
        """Returns every member's rows, in order, fresh or in `out`; `sizes` are the rows of each member, if uneven.

        `words` is how many numbers are packed into each member's rows, if x is bytes.
        """
        if (group := self.group) is None:
            return EmptyCall(x)
        rows = sizes or [x.shape[0]] * self.size
        numbers = words or [size * prod(x.shape[1:]) for size in rows]
        assert len(rows) == self.size and rows[self.index] == x.shape[0], (rows, self.index, x.shape)
        wire = self._wire_dtype(tensor, x.dtype)

        def start(later: bool) -> StartedCall[Tensor]:
            ring = self._select_ring(sum(rows) * prod(x.shape[1:]), wire or x.dtype)
            return collectives.all_gather(group, _check_no_grad(x), rows, wire, out, later=later, ring=ring)

        return self._make_call(
            Op.ALL_GATHER, tensor, traffic.all_gather(sum(numbers), numbers[self.index]), start
        )

    @collective
    def broadcast(
        self,
        x: Tensor | None,
        *,
        root: int,
        shape: Sizes,
        tensor: TensorName,
        out: Out = None,
        words: int | None = None,
    ) -> Call[Tensor]:
        """Returns the root's x: the same tensor on the root, on others a fresh one or `out`.

        Only the type of another member's x is read; a member without x gives `out`. `words` is how many numbers are
        packed into x, if x is bytes.
        """
        is_root = self.index == root
        assert not is_root or (x is not None and x.shape == tuple(shape)), "the root gives its own shape"
        if (group := self.group) is None:
            return EmptyCall(_require_tensor(x))

        def start(later: bool) -> StartedCall[Tensor]:
            dtype = _require_tensor(x if is_root or out is None else out).dtype
            wire = self._wire_dtype(tensor, dtype)
            ring = self._select_ring(prod(shape), wire or dtype)
            if is_root:
                return collectives.broadcast_send(
                    group, _check_no_grad(_require_tensor(x)), wire, later=later, ring=ring
                )
            landing = collectives.make_receive_buffer(shape, dtype, self.device, wire, out)
            return collectives.broadcast_receive(group, root, landing, later=later, ring=ring)

        moved = traffic.broadcast(prod(shape) if words is None else words, root=is_root)
        return self._make_call(Op.BROADCAST, tensor, moved, start)

    @collective
    def all_to_all(
        self, x: Tensor, *, send: Sizes, receive: Sizes, tensor: TensorName, words: int | None = None
    ) -> Call[Tensor]:
        """Gives `send` of x's rows to each member; the result has `receive` rows from each, in order.

        `words` is how many numbers are packed into a row, if x is bytes.
        """
        if (group := self.group) is None:
            return EmptyCall(x)
        assert len(send) == len(receive) == self.size and sum(send) == x.shape[0], (send, receive, x.shape)
        row = prod(x.shape[1:]) if words is None else words
        wire = self._wire_dtype(tensor, x.dtype)

        def start(later: bool) -> StartedCall[Tensor]:
            ring = self._select_ring(None, x.dtype)
            return collectives.all_to_all(
                group, _check_no_grad(x), send, receive, wire, later=later, ring=ring
            )

        moved = traffic.all_to_all(sum(receive) * row, receive[self.index] * row)
        return self._make_call(Op.ALL_TO_ALL, tensor, moved, start)

    # Messages between two members.

    @collective
    def exchange(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Sizes],
        *,
        dtype: torch.dtype,
        tensor: TensorName,
        tag: int = 0,
    ) -> Call[dict[int, Tensor]]:
        """Sends a tensor to each member of `sends`; returns one of the given shape from each member of `receives`.

        All messages are under way at once. A tensor that a member sends to itself does not travel. Every message has a
        row of its own on the ledger; their common time is in the row of the first.
        """
        kept = {peer: x for peer, x in sends.items() if peer == self.index}
        assert kept.keys() == {peer for peer in receives if peer == self.index}, (
            "a tensor for the member itself is both sent and received"
        )
        sends = {peer: _check_no_grad(x) for peer, x in sends.items() if peer not in kept}
        receives = {peer: shape for peer, shape in receives.items() if peer not in kept}
        if (group := self.group) is None or not (sends or receives):
            return EmptyCall(kept)
        wire = self._wire_dtype(tensor, dtype)
        itemsize = (wire or dtype).itemsize
        arriving = {self._make_key(Op.RECV, tensor, peer): prod(shape) for peer, shape in receives.items()}
        leaving = {self._make_key(Op.SEND, tensor, peer): x.numel() for peer, x in sends.items()}

        def start(_: bool) -> StartedCall[dict[int, Tensor]]:
            self._count_messages(arriving, leaving, itemsize)
            landings = {
                peer: collectives.make_receive_buffer(shape, dtype, self.device, wire)
                for peer, shape in receives.items()
            }
            started = collectives.exchange(group, sends, landings, wire, tag)
            return started._replace(result=lambda: kept | started.result())

        return Call(self.ledger, next(iter(arriving | leaving)), None, start)

    def send(self, x: Tensor, *, to: int, tensor: TensorName, tag: int = 0) -> None:
        """Sends x to another member, which calls `recv`."""
        self.exchange({to: x}, {}, dtype=x.dtype, tensor=tensor, tag=tag)

    def recv(
        self,
        shape: Sizes,
        *,
        source: int,
        dtype: torch.dtype,
        tensor: TensorName,
        tag: int = 0,
    ) -> Tensor:
        """Returns the tensor that another member sends."""
        return self.exchange({}, {source: shape}, dtype=dtype, tensor=tensor, tag=tag)[source]

    def barrier(self) -> None:
        """Waits for every member. Its time is op `skew`, for runs that measure how long ranks wait for each other."""
        if self.group is not None:
            with self.ledger.at(self._make_key(Op.SKEW, None)):
                collectives.barrier(self.group)
                self.ledger.count_call(payload=0, received=0, bytes=0)

    # Collectives that autograd goes through.

    def sum(self, x: Tensor, *, tensor: TensorName, in_place: bool = False) -> Tensor:
        """Returns the sum of every member's x; its backward moves nothing. `in_place` spares a copy of x."""
        if self.group is None:
            return x

        def ahead(x: Tensor) -> Tensor:
            return self.all_reduce(x if in_place else copy_contiguous(self.ledger, x, tensor), tensor=tensor)

        return apply_pair(self.ledger, x, ahead, identity, in_place=in_place)

    def replicate(self, x: Tensor, *, gradient: TensorName) -> Tensor:
        """Returns x, which is the same on every member; its backward sums the members' gradients."""
        if self.group is None:
            return x

        def back(dy: Tensor) -> Tensor:
            return self.all_reduce(copy_contiguous(self.ledger, dy, gradient), tensor=gradient)

        return apply_pair(self.ledger, x, identity, back)

    def gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sizes | None = None,
    ) -> Tensor:
        """Returns every member's rows, in order; its backward is a reduce-scatter."""
        if self.group is None:
            return x
        ahead = partial(self.all_gather, tensor=tensor, sizes=sizes)
        back = partial(self.reduce_scatter, tensor=gradient, sizes=sizes)
        return apply_pair(self.ledger, x, ahead, back)

    def scatter(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sizes | None = None,
    ) -> Tensor:
        """Returns this member's rows of the sum of every member's x; its backward is an all-gather."""
        if self.group is None:
            return x
        ahead = partial(self.reduce_scatter, tensor=tensor, sizes=sizes)
        back = partial(self.all_gather, tensor=gradient, sizes=sizes)
        return apply_pair(self.ledger, x, ahead, back)

    # The ledger.

    def _make_call(self, op: Op, tensor: TensorName, words: Traffic, start: Start[Tensor]) -> Call[Tensor]:
        return Call(self.ledger, self._make_key(op, tensor), words, start)

    def _wire_dtype(self, tensor: TensorName, dtype: torch.dtype) -> Wire:
        """The narrower type in which a tensor of numbers travels; None for its own."""
        rounds = self.wire and tensor in ROUNDED and dtype.is_floating_point
        return self.wire if rounds else None

    def _select_ring(self, words: int | None, wire: torch.dtype) -> RingCollectives | None:
        """The composer of a call. All members must agree, so the choice depends on sizes that all of them know.

        No member knows the size of a whole all-to-all.
        """
        ring = self.ring
        return ring if ring and (words is None or ring.is_worthwhile(words * wire.itemsize)) else None

    def _make_key(self, op: Op, tensor: TensorName | None, peer: int = NO_INDEX) -> Key:
        current = self.ledger.current
        if not self.ledger.recording:
            return current
        trained = tensor in TRAINED and op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)
        phase = Phase.SYNC if trained else current.phase
        return Key(phase, current.layer, current.direction, op, self.name, peer, tensor)

    def _count_messages(self, arriving: Mapping[Key, int], leaving: Mapping[Key, int], itemsize: int) -> None:
        """Counts every message in its own row."""
        if self.ledger.recording:
            moved = {key: traffic.recv(words) for key, words in arriving.items()}
            moved |= {key: traffic.send(words) for key, words in leaving.items()}
            for key, (words, received) in moved.items():
                self.ledger.add(
                    key, calls=1, words_payload=words, words_received=received, bytes=int(words) * itemsize
                )


def _check_no_grad(x: Tensor) -> Tensor:
    """Refuses a tensor that needs a gradient: autograd through a collective would be silently wrong."""
    assert not (x.requires_grad and torch.is_grad_enabled()), (
        "autograd goes through sum, spread, gather and scatter"
    )
    return x


def _require_tensor(x: Tensor | None) -> Tensor:
    assert x is not None, "a rank that receives gives the type, by x or by out"
    return x
