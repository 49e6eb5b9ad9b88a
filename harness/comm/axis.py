"""One axis of a grid: the collectives among the ranks that differ in this coordinate only.

Strategies speak to other ranks through an axis and through nothing else. Every call goes on the ledger with its
words and bytes, under the phase, layer and direction that are current; only the reduction of a parameter's gradient is
phase `sync` wherever it is issued. An axis of one returns its input and records nothing, so the same lines serve one
rank and many.

A collective is waited for at once, or later (`harness.comm.call`). `wire` is the type that travels, if not the tensor's
own: all members, the root of a broadcast included, then hold the values that travelled. The collectives take plain
tensors; autograd goes through `sum`, `spread`, `gather` and `scatter`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from harness.comm import collectives, traffic
from harness.comm.call import Call, Nothing, Start, collective
from harness.comm.collectives import Group, Reduction, Sizes, Started
from harness.comm.ring_collectives import Rounds
from harness.comm.traffic import Traffic
from harness.ledger import NOBODY, Key, Ledger, Op, Phase, TensorName, apply

# Collectives that autograd can go through: pairs, each the other's transpose.
#
# sum all-reduce / identity the same sum everywhere, from different terms spread identity / all-reduce the
# same tensor everywhere, used for different things gather all-gather / reduce-scatter scatter reduce-
# scatter / all-gather
#
# A gradient is never sent on from a buffer that somebody else may hold or that is strided: where the
# collective works in place it is copied first. Results are always waited for here: autograd must not see
# one that is still under way.

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


Wire = torch.dtype | None
Out = Tensor | None
TRAINED = (TensorName.DW, TensorName.DGAMMA, TensorName.DX)
"""Gradients of what is trained."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """This rank's view of one axis, or of several taken as one."""

    name: str
    """The axis's name; of several, their names joined by a plus sign."""
    size: int
    index: int
    """This rank's place on the axis, from 0. Roots and peers are places too."""
    ranks: tuple[int, ...]
    """The members' ranks in the world, in the order of their places."""
    group: Group | None
    """None for an axis of one."""
    ledger: Ledger
    device: torch.device
    rounds: Rounds | None = None
    """Of which large calls are composed, on machines whose links want it."""

    # Reductions.

    @collective
    def all_reduce(
        self, x: Tensor, *, tensor: TensorName, op: Reduction = Reduction.SUM, wire: Wire = None
    ) -> Call[Tensor]:
        """Every member's x put together, in place: x is the result, the same bits on every member."""
        if (group := self.group) is None:
            return Nothing(x)
        return self._call(
            Op.ALL_REDUCE,
            tensor,
            traffic.all_reduce(x.numel(), self.size),
            lambda later: collectives.all_reduce(group, _plain(x), op, wire, later=later),
        )

    @collective
    def reduce_scatter(
        self, x: Tensor, *, tensor: TensorName, sizes: Sizes | None = None, wire: Wire = None
    ) -> Call[Tensor]:
        """This member's rows of the sum of every member's x; `sizes` are the rows of each, if uneven."""
        if (group := self.group) is None:
            return Nothing(x)
        rows = sizes or [x.shape[0] // self.size] * self.size
        assert len(rows) == self.size and sum(rows) == x.shape[0], (rows, x.shape)

        def start(later: bool) -> Started[Tensor]:
            rounds = self._rounds_for(x.numel(), wire or x.dtype)
            return collectives.reduce_scatter(group, _plain(x), rows, wire, later=later, rounds=rounds)

        return self._call(Op.REDUCE_SCATTER, tensor, traffic.reduce_scatter(x.numel(), self.size), start)

    # Rows that change their place.

    @collective
    def all_gather(
        self, x: Tensor, *, tensor: TensorName, sizes: Sizes | None = None, wire: Wire = None, out: Out = None
    ) -> Call[Tensor]:
        """Every member's rows, in order, fresh or in `out`; `sizes` are the rows of each, if uneven."""
        if (group := self.group) is None:
            return Nothing(x)
        rows = sizes or [x.shape[0]] * self.size
        words = sum(rows) * prod(x.shape[1:])
        assert len(rows) == self.size and rows[self.index] == x.shape[0], (rows, self.index, x.shape)

        def start(later: bool) -> Started[Tensor]:
            rounds = self._rounds_for(words, wire or x.dtype)
            return collectives.all_gather(group, _plain(x), rows, wire, out, later=later, rounds=rounds)

        return self._call(Op.ALL_GATHER, tensor, traffic.all_gather(words, x.numel()), start)

    @collective
    def broadcast(
        self,
        x: Tensor | None,
        *,
        root: int,
        shape: Sizes,
        tensor: TensorName,
        wire: Wire = None,
        out: Out = None,
        words: int | None = None,
    ) -> Call[Tensor]:
        """The root's x: itself on the root, elsewhere fresh or in `out`.

        What the others pass as x is not read, but for its type; who has no x gives `out`. `words` is how many numbers
        are packed into x, if it is bytes.
        """
        here = self.index == root
        assert not here or (x is not None and x.shape == tuple(shape)), "the root says its own shape"
        if (group := self.group) is None:
            return Nothing(_given(x))

        def start(later: bool) -> Started[Tensor]:
            dtype = _given(x if here or out is None else out).dtype
            rounds = self._rounds_for(prod(shape), wire or dtype)
            if here:
                return collectives.broadcast_from_here(
                    group, _plain(_given(x)), wire, later=later, rounds=rounds
                )
            landing = collectives.landing(shape, dtype, self.device, wire, out)
            return collectives.broadcast_to_here(group, root, landing, later=later, rounds=rounds)

        moved = traffic.broadcast(prod(shape) if words is None else words, root=here)
        return self._call(Op.BROADCAST, tensor, moved, start)

    @collective
    def all_to_all(
        self, x: Tensor, *, send: Sizes, receive: Sizes, tensor: TensorName, wire: Wire = None
    ) -> Call[Tensor]:
        """Gives `send` of x's rows to each member; the result has `receive` rows from each, in order."""
        if (group := self.group) is None:
            return Nothing(x)
        assert len(send) == len(receive) == self.size and sum(send) == x.shape[0], (send, receive, x.shape)
        row = prod(x.shape[1:])

        def start(later: bool) -> Started[Tensor]:
            rounds = self._rounds_for(None, x.dtype)
            return collectives.all_to_all(group, _plain(x), send, receive, wire, later=later, rounds=rounds)

        moved = traffic.all_to_all(sum(receive) * row, receive[self.index] * row)
        return self._call(Op.ALL_TO_ALL, tensor, moved, start)

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
        wire: Wire = None,
    ) -> Call[dict[int, Tensor]]:
        """A tensor to each member of `sends`, one of the given shape from each member of `receives`.

        All are under way at once. What a member sends itself does not travel. Every message has a row of its own;
        their common time is in the row of the first.
        """
        kept = {peer: x for peer, x in sends.items() if peer == self.index}
        assert kept.keys() == {peer for peer in receives if peer == self.index}, (
            "what is kept is sent and received"
        )
        sends = {peer: _plain(x) for peer, x in sends.items() if peer not in kept}
        receives = {peer: shape for peer, shape in receives.items() if peer not in kept}
        if (group := self.group) is None or not (sends or receives):
            return Nothing(kept)
        itemsize = (wire or dtype).itemsize
        arriving = {self._key(Op.RECV, tensor, peer): prod(shape) for peer, shape in receives.items()}
        leaving = {self._key(Op.SEND, tensor, peer): x.numel() for peer, x in sends.items()}

        def start(_: bool) -> Started[dict[int, Tensor]]:
            self._count_messages(arriving, leaving, itemsize)
            landings = {
                peer: collectives.landing(shape, dtype, self.device, wire) for peer, shape in receives.items()
            }
            started = collectives.exchange(group, sends, landings, wire, tag)
            return started._replace(land=lambda: kept | started.land())

        return Call(self.ledger, next(iter(arriving | leaving)), None, start)

    def send(self, x: Tensor, *, to: int, tensor: TensorName, tag: int = 0, wire: Wire = None) -> None:
        """Hands x to another member, who calls `recv`."""
        self.exchange({to: x}, {}, dtype=x.dtype, tensor=tensor, tag=tag, wire=wire)

    def recv(
        self,
        shape: Sizes,
        *,
        source: int,
        dtype: torch.dtype,
        tensor: TensorName,
        tag: int = 0,
        wire: Wire = None,
    ) -> Tensor:
        """What another member sends."""
        return self.exchange({}, {source: shape}, dtype=dtype, tensor=tensor, tag=tag, wire=wire)[source]

    def barrier(self) -> None:
        """Waits for every member. For runs that ask how long ranks wait for each other: its time is op `skew`."""
        if self.group is not None:
            with self.ledger.at(self._key(Op.SKEW, None)):
                collectives.barrier(self.group)
                self.ledger.count(payload=0, received=0, bytes=0)

    # What autograd goes through.

    def sum(self, x: Tensor, *, tensor: TensorName, wire: Wire = None, in_place: bool = False) -> Tensor:
        """The sum of every member's x. Its backward moves nothing. `in_place` spares a copy of an x of one's own."""
        if self.group is None:
            return x

        def there(x: Tensor) -> Tensor:
            return self.all_reduce(
                x if in_place else copied(self.ledger, x, tensor), tensor=tensor, wire=wire
            )

        return paired(self.ledger, x, there, itself, in_place=in_place)

    def spread(self, x: Tensor, *, gradient: TensorName, wire: Wire = None) -> Tensor:
        """x, the same on every member and put to different uses: its backward sums their gradients."""
        if self.group is None:
            return x

        def back(dy: Tensor) -> Tensor:
            return self.all_reduce(copied(self.ledger, dy, gradient), tensor=gradient, wire=wire)

        return paired(self.ledger, x, itself, back)

    def gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sizes | None = None,
        wire: Wire = None,
    ) -> Tensor:
        """Every member's rows, in order: its backward is a reduce-scatter."""
        if self.group is None:
            return x
        there = partial(self.all_gather, tensor=tensor, sizes=sizes, wire=wire)
        back = partial(self.reduce_scatter, tensor=gradient, sizes=sizes, wire=wire)
        return paired(self.ledger, x, there, back)

    def scatter(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        gradient: TensorName,
        sizes: Sizes | None = None,
        wire: Wire = None,
    ) -> Tensor:
        """This member's rows of the sum of every member's x: its backward is an all-gather."""
        if self.group is None:
            return x
        there = partial(self.reduce_scatter, tensor=tensor, sizes=sizes, wire=wire)
        back = partial(self.all_gather, tensor=gradient, sizes=sizes, wire=wire)
        return paired(self.ledger, x, there, back)

    # The ledger.

    def _call(self, op: Op, tensor: TensorName, words: Traffic, start: Start[Tensor]) -> Call[Tensor]:
        return Call(self.ledger, self._key(op, tensor), words, start)

    def _rounds_for(self, words: int | None, wire: torch.dtype) -> Rounds | None:
        """All members must agree, so it goes by what all know; nobody knows the size of a whole all-to-all."""
        rounds = self.rounds
        return rounds if rounds and (words is None or rounds.pay(words * wire.itemsize)) else None

    def _key(self, op: Op, tensor: TensorName | None, peer: int = NOBODY) -> Key:
        here = self.ledger.here
        if not self.ledger.recording:
            return here
        trained = tensor in TRAINED and op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)
        phase = Phase.SYNC if trained else here.phase
        return Key(phase, here.layer, here.direction, op, self.name, peer, tensor)

    def _count_messages(self, arriving: Mapping[Key, int], leaving: Mapping[Key, int], itemsize: int) -> None:
        """Every message in its own row."""
        if self.ledger.recording:
            moved = {key: traffic.recv(words) for key, words in arriving.items()}
            moved |= {key: traffic.send(words) for key, words in leaving.items()}
            for key, (words, received) in moved.items():
                self.ledger.add(
                    key, calls=1, words_payload=words, words_received=received, bytes=int(words) * itemsize
                )


def _plain(x: Tensor) -> Tensor:
    """Autograd does not see through a collective, and would give a wrong gradient without a word."""
    assert not (x.requires_grad and torch.is_grad_enabled()), (
        "autograd goes through sum, spread, gather, scatter"
    )
    return x


def _given(x: Tensor | None) -> Tensor:
    assert x is not None, "a rank that receives says the type, by x or by out"
    return x
