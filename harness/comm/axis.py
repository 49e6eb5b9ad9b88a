"""One axis of a grid: the collectives among the ranks that differ only in this coordinate.

Strategies communicate only through axes. Every call is recorded on the ledger with its words and bytes, under the
current phase, layer and direction; reductions of parameter gradients are always recorded under the phase `sync`. On an
axis of one rank, every collective returns its input and records nothing, so the same code runs on one rank and on many.

A collective is synchronous, or asynchronous with a handle to wait for (`harness.comm.call`). With a `wire`, features,
activations and their gradients are sent in that dtype, and all members, including the root of a broadcast, then hold
the rounded values. The collectives do not record gradients; the differentiable ones are `sum`, `replicate`, `gather`
and `scatter`.
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
from harness.comm.call import Call, EmptyCall, Start, T, collective, is_comparing
from harness.comm.collectives import Group, Reduction, Sizes, StartedCall
from harness.comm.ring_collectives import RingCollectives
from harness.comm.traffic import Traffic
from harness.ledger import NO_INDEX, Key, Ledger, Op, Phase, TensorName, apply

# Differentiable collectives. The backward pass of each is the transpose of its forward pass.
#
#              forward         backward
#   sum        all-reduce      identity        every rank has a term, all get the sum
#   replicate  identity        all-reduce      all ranks have the same tensor and use it differently
#   gather     all-gather      reduce-scatter
#   scatter    reduce-scatter  all-gather
#
# Gradients may be strided or shared, so they are copied before a collective that works in place. The calls are
# synchronous, because autograd must not see a buffer that is still being filled.

TensorMap = Callable[[Tensor], Tensor]


class TransposedPair(Function):
    """A linear map whose backward pass applies its transpose."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, forward_map: TensorMap, backward_map: TensorMap, in_place: bool
    ) -> Tensor:
        ctx.backward_map = backward_map
        if in_place:
            ctx.mark_dirty(x)
        return forward_map(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.backward_map(dy), None, None, None


def apply_pair(
    ledger: Ledger, x: Tensor, forward_map: TensorMap, backward_map: TensorMap, *, in_place: bool = False
) -> Tensor:
    """Return `forward_map(x)`. Its backward pass is `backward_map`, charged to the current phase and layer."""
    y: Tensor = apply(ledger, TransposedPair, x, forward_map, backward_map, in_place)
    return y


def identity(x: Tensor) -> Tensor:
    """Return a view of the whole tensor: the identity as an autograd function may return it."""
    return x.view_as(x)


def copy_contiguous(ledger: Ledger, x: Tensor, tensor: TensorName) -> Tensor:
    """Return a contiguous copy of x, recorded on the ledger, to be reduced in place."""
    with ledger.op(Op.COPY, tensor=tensor):
        return x.clone(memory_format=torch.contiguous_format)


Wire = torch.dtype | None
Out = Tensor | None
TRAINED = (TensorName.DW, TensorName.DGAMMA, TensorName.DX)
"""Gradients of trained tensors, whose reductions are recorded under the phase `sync`."""
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
"""Features, activations and their gradients, which are rounded to a narrower wire dtype. Weights, their gradients, sums
of squares, edge scores and losses are always sent in full precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """This rank's view of one axis, or of several axes combined."""

    name: str
    """The name of the axis. The names of combined axes are joined by a plus sign."""
    size: int
    index: int
    """This rank's index on the axis, from 0. Roots and peers are also given as indices on the axis."""
    ranks: tuple[int, ...]
    """The global ranks of the members, in the order of their indices."""
    group: Group | None
    """None for an axis of one rank."""
    reductions: Group | None
    """A second group of the same ranks, for all-reduces. In one group, a call begins after the calls before it: gloo
    serves two at a time, and NCCL one, so a sum of one number would wait for exchanges that are meant to be overlapped.
    """
    ledger: Ledger
    device: torch.device
    ring: RingCollectives | None = None
    """Implements large calls as rings of messages, on machines where that is faster; None elsewhere."""
    wire: Wire = None
    """The dtype in which the tensors in `ROUNDED` are sent; None for their own."""

    # Reductions.

    @collective
    def all_reduce(
        self, x: Tensor, *, tensor: TensorName, op: Reduction = Reduction.SUM, wire: Wire = None
    ) -> Call[Tensor]:
        """Reduce x over all members in place and return it. The result is bitwise identical on every member.

        `wire` overrides the dtype in which x is sent.
        """
        if (group := self.reductions) is None:
            return EmptyCall(x)
        wire = wire or self._wire_dtype(tensor, x.dtype)
        return self._make_call(
            Op.ALL_REDUCE,
            tensor,
            traffic.all_reduce(x.numel(), self.size),
            lambda later: collectives.all_reduce(group, _check_no_grad(x), op, wire, later=later),
            x.dtype,
            x.shape,
        )

    @collective
    def all_reduce_coalesced(
        self, xs: Sequence[Tensor], *, layers: Sequence[int], tensor: TensorName
    ) -> Call[Sequence[Tensor]]:
        """Sum several tensors of one dtype, such as the gradients of all layers, in place and in one call.

        The words of each tensor are recorded under its layer; the call and its time, under the first layer.
        """
        if (group := self.reductions) is None or not xs:
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
                        elements_payload=words.payload,
                        elements_received=words.received,
                        bytes=x.nbytes,
                    )
                self.ledger.add(rows[0], calls=1)

            def get_result() -> Sequence[Tensor]:
                parts = started.result().split([x.numel() for x in xs])
                return [x.copy_(part.view(x.shape)) for x, part in zip(xs, parts, strict=True)]

            return StartedCall(started.works, get_result, started.bytes)

        elements = [sum(x.numel() for x in xs)]
        checked = self._check_first(start, Op.ALL_REDUCE, tensor, xs[0].dtype, elements)
        return Call(self.ledger, rows[0], None, checked)

    @collective
    def reduce_scatter(self, x: Tensor, *, tensor: TensorName, sizes: Sizes | None = None) -> Call[Tensor]:
        """Return this member's rows of the sum of x. `sizes` are the rows of each member, if uneven."""
        if (group := self.group) is None:
            return EmptyCall(x)
        rows = sizes or [x.shape[0] // self.size] * self.size
        assert len(rows) == self.size and sum(rows) == x.shape[0], _explain_sizes(
            f"reduce_scatter of {tensor} over {self.name}", sizes, x.shape[0], self.size
        )
        wire = self._wire_dtype(tensor, x.dtype)

        def start(later: bool) -> StartedCall[Tensor]:
            ring = self._select_ring(x.numel(), wire or x.dtype)
            return collectives.reduce_scatter(group, _check_no_grad(x), rows, wire, later=later, ring=ring)

        moved = traffic.reduce_scatter(x.numel(), self.size)
        return self._make_call(Op.REDUCE_SCATTER, tensor, moved, start, x.dtype, x.shape, sizes=sizes)

    # Collectives without a reduction.

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
        """Return the rows of all members, in order, in `out` if given. `sizes` are the rows of each member, if uneven.

        `words` is the number of elements packed into each member's rows, if x is a byte buffer.
        """
        if (group := self.group) is None:
            return EmptyCall(x)
        rows = sizes or [x.shape[0]] * self.size
        numbers = words or [size * prod(x.shape[1:]) for size in rows]
        assert len(rows) == self.size and rows[self.index] == x.shape[0], _explain_sizes(
            f"all_gather of {tensor} over {self.name}", rows, x.shape[0], self.size, self.index
        )
        wire = self._wire_dtype(tensor, x.dtype)

        def start(later: bool) -> StartedCall[Tensor]:
            ring = self._select_ring(sum(rows) * prod(x.shape[1:]), wire or x.dtype)
            return collectives.all_gather(group, _check_no_grad(x), rows, wire, out, later=later, ring=ring)

        moved = traffic.all_gather(sum(numbers), numbers[self.index])
        return self._make_call(Op.ALL_GATHER, tensor, moved, start, x.dtype, x.shape, sizes=sizes)

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
        """Return the root's x: x itself on the root, and a new tensor or `out` on the other members.

        The other members pass x or `out`, for its dtype only. `words` is the number of elements packed into x, if x is
        a byte buffer.
        """
        is_root = self.index == root
        assert not is_root or (x is not None and x.shape == tuple(shape)), "the root's x has another shape"
        if (group := self.group) is None:
            return EmptyCall(_require_tensor(x))

        dtype = _require_tensor(x if is_root or out is None else out).dtype

        def start(later: bool) -> StartedCall[Tensor]:
            wire = self._wire_dtype(tensor, dtype)
            ring = self._select_ring(prod(shape), wire or dtype)
            if is_root:
                return collectives.broadcast_send(
                    group, _check_no_grad(_require_tensor(x)), wire, later=later, ring=ring
                )
            receive = collectives.make_receive_buffer(shape, dtype, self.device, wire, out)
            return collectives.broadcast_receive(group, root, receive, later=later, ring=ring)

        moved = traffic.broadcast(prod(shape) if words is None else words, root=is_root)
        return self._make_call(Op.BROADCAST, tensor, moved, start, dtype, shape)

    @collective
    def all_to_all(
        self, x: Tensor, *, send: Sizes, receive: Sizes, tensor: TensorName, words: int | None = None
    ) -> Call[Tensor]:
        """Send `send[i]` rows of x to each member i, and return the `receive[i]` rows from each, in order.

        `words` is the number of elements packed into a row, if x is a byte buffer.
        """
        if (group := self.group) is None:
            return EmptyCall(x)
        assert len(send) == len(receive) == self.size and sum(send) == x.shape[0], (send, receive, x.shape)
        row = prod(x.shape[1:]) if words is None else words
        wire = self._wire_dtype(tensor, x.dtype)

        def start(later: bool) -> StartedCall[Tensor]:
            self.ledger.record_partners(send, receive, self.index)
            ring = self._select_ring(None, x.dtype)
            return collectives.all_to_all(
                group, _check_no_grad(x), send, receive, wire, later=later, ring=ring
            )

        moved = traffic.all_to_all(sum(receive) * row, receive[self.index] * row)
        return self._make_call(
            Op.ALL_TO_ALL, tensor, moved, start, x.dtype, x.shape, send=send, receive=receive
        )

    # Point-to-point messages.

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
        """Send a tensor to each member in `sends`, and return one of the given shape from each member in `receives`.

        All messages are in flight at once. A tensor for the member itself is returned without a message. Every message
        is recorded in a separate row; their common time, in the row of the first.
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
        received_words = {
            self._make_key(Op.RECV, tensor, peer): prod(shape) for peer, shape in receives.items()
        }
        sent_words = {self._make_key(Op.SEND, tensor, peer): x.numel() for peer, x in sends.items()}

        def start(_: bool) -> StartedCall[dict[int, Tensor]]:
            self._count_messages(received_words, sent_words, itemsize)
            buffers = {
                peer: collectives.make_receive_buffer(shape, dtype, self.device, wire)
                for peer, shape in receives.items()
            }
            started = collectives.exchange(group, sends, buffers, wire, tag)
            return started._replace(result=lambda: kept | started.result())

        return Call(self.ledger, next(iter(received_words | sent_words)), None, start)

    def send(self, x: Tensor, *, to: int, tensor: TensorName, tag: int = 0) -> None:
        """Send x to another member, which calls `recv`."""
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
        """Receive a tensor that another member sends."""
        return self.exchange({}, {source: shape}, dtype=dtype, tensor=tensor, tag=tag)[source]

    def barrier(self) -> None:
        """Wait for all members. The time is recorded as op `skew`, for runs that measure stragglers."""
        if self.group is not None:
            with self.ledger.at(self._make_key(Op.SKEW, None)):
                collectives.barrier(self.group)
                self.ledger.count_call(payload=0, received=0, bytes=0)

    # Differentiable collectives.

    def sum(self, x: Tensor, *, tensor: TensorName, in_place: bool = False) -> Tensor:
        """Return the sum of x over all members. The backward pass is local. `in_place` avoids a copy of x."""
        if self.group is None:
            return x

        def forward_map(x: Tensor) -> Tensor:
            return self.all_reduce(x if in_place else copy_contiguous(self.ledger, x, tensor), tensor=tensor)

        return apply_pair(self.ledger, x, forward_map, identity, in_place=in_place)

    def replicate(self, x: Tensor, *, gradient: TensorName) -> Tensor:
        """Return x, which is the same on every member. The backward pass sums the members' gradients."""
        if self.group is None:
            return x

        def backward_map(dy: Tensor) -> Tensor:
            return self.all_reduce(copy_contiguous(self.ledger, dy, gradient), tensor=gradient)

        return apply_pair(self.ledger, x, identity, backward_map)

    def gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sizes | None = None,
    ) -> Tensor:
        """Return the rows of all members, in order. The backward pass is a reduce-scatter."""
        if self.group is None:
            return x
        forward_map = partial(self.all_gather, tensor=tensor, sizes=sizes)
        backward_map = partial(self.reduce_scatter, tensor=gradient, sizes=sizes)
        return apply_pair(self.ledger, x, forward_map, backward_map)

    def scatter(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sizes | None = None,
    ) -> Tensor:
        """Return this member's rows of the sum of x over all members. The backward pass is an all-gather."""
        if self.group is None:
            return x
        forward_map = partial(self.reduce_scatter, tensor=tensor, sizes=sizes)
        backward_map = partial(self.all_gather, tensor=gradient, sizes=sizes)
        return apply_pair(self.ledger, x, forward_map, backward_map)

    # The ledger.

    def _make_call(
        self,
        op: Op,
        tensor: TensorName,
        words: Traffic,
        start: Start[Tensor],
        dtype: torch.dtype,
        shape: Sizes,
        **sizes: Sizes | None,
    ) -> Call[Tensor]:
        """Return the call. `dtype`, `shape` and `sizes` are what its members compare (`harness.comm.agreement`)."""
        start = self._check_first(start, op, tensor, dtype, shape, **sizes)
        return Call(self.ledger, self._make_key(op, tensor), words, start)

    def _check_first(
        self,
        start: Start[T],
        op: Op,
        tensor: TensorName,
        dtype: torch.dtype,
        shape: Sizes,
        **sizes: Sizes | None,
    ) -> Start[T]:
        """Return `start`; where calls are compared, a function that compares the members' calls before it."""
        group, index = self.group, self.index
        if group is None or not is_comparing():
            return start
        from harness.comm.agreement import CallSignature, check_agreement

        given = {name: tuple(each) for name, each in sizes.items() if each is not None}
        call = CallSignature(op, tensor, str(dtype).removeprefix("torch."), tuple(shape), **given)

        def start_checked(later: bool) -> StartedCall[T]:
            check_agreement(self.name, group, index, call)
            return start(later)

        return start_checked

    def _wire_dtype(self, tensor: TensorName, dtype: torch.dtype) -> Wire:
        """Return the narrower dtype in which a tensor is sent, or None for its own."""
        rounds = self.wire and tensor in ROUNDED and dtype.is_floating_point
        return self.wire if rounds else None

    def _select_ring(self, words: int | None, wire: torch.dtype) -> RingCollectives | None:
        """Return the ring implementation if a call should use it. All members must agree, so only common sizes count.

        `words` is None for an all-to-all, whose total size no member knows.
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

    def _count_messages(
        self, received_words: Mapping[Key, int], sent_words: Mapping[Key, int], itemsize: int
    ) -> None:
        """Count every message in a separate row."""
        if self.ledger.recording:
            moved = {key: traffic.recv(words) for key, words in received_words.items()}
            moved |= {key: traffic.send(words) for key, words in sent_words.items()}
            for key, (words, received) in moved.items():
                self.ledger.add(
                    key,
                    calls=1,
                    elements_payload=words,
                    elements_received=received,
                    bytes=int(words) * itemsize,
                )


def _check_no_grad(x: Tensor) -> Tensor:
    """Check that x needs no gradient, which the collective would silently lose."""
    assert not (x.requires_grad and torch.is_grad_enabled()), (
        "this collective is not differentiable: use sum, replicate, gather or scatter"
    )
    return x


def _require_tensor(x: Tensor | None) -> Tensor:
    assert x is not None, "a receiving rank must pass x or out, for the dtype"
    return x


def _explain_sizes(
    call: str, sizes: Sequence[int] | None, rows: int, members: int, index: int | None = None
) -> str:
    """Say why `sizes` do not fit a tensor of `rows` rows: those of all members, or with `index` those of one."""
    if sizes is None:
        return f"{call}: {rows} rows cannot be split evenly over {members} members: pass `sizes`, the rows of each."
    given = f"{call}: sizes={list(sizes)}"
    if len(sizes) != members:
        return f"{given} has {len(sizes)} entries for {members} members."
    if index is not None:
        return (
            f"{given} has {sizes[index]} rows for member {index}, but its tensor has {rows} in dimension 0."
        )
    return (
        f"{given} add up to {sum(sizes)} rows, but the tensor has {rows} in dimension 0. If the axis splits columns, "
        "transpose before the call and after it."
    )
