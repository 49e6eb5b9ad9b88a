"""One axis of a grid: the collectives among the ranks that differ in this coordinate only.

Strategies speak to other ranks through an axis and through nothing else. Every call goes on the ledger with its
words and bytes, under the phase, layer and direction that are current; only the reduction of a parameter's gradient is
phase `sync` wherever it is issued. An axis of one returns its input and records nothing, so the same lines serve one
rank and many.

A call with `later=True` returns a `Pending`. `wire` is the type that travels, if not the tensor's own: all members,
the root of a broadcast included, then hold the values that travelled. The collectives take plain tensors; autograd
goes through `sum`, `spread`, `gather` and `scatter`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeVar, overload

import torch
from torch import Tensor

from harness.comm import collectives, traffic
from harness.comm.collectives import Group, Reduction, Started
from harness.comm.differentiable import Gather, Scatter, Spread, Sum
from harness.comm.pending import Landed, Pending
from harness.comm.traffic import Traffic
from harness.ledger import NOBODY, Key, Ledger, Op, Phase, TensorName, apply

T = TypeVar("T")
Sizes = Sequence[int]
Wire = torch.dtype | None
Out = Tensor | None
No = Literal[False]
Yes = Literal[True]


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
    composed_from: int | None = None
    """Bytes from which calls that are waited for at once are composed out of rounds (`harness.comm.rounds`)."""

    # Reductions.

    @overload
    def all_reduce(
        self, x: Tensor, *, tensor: TensorName, op: Reduction = ..., wire: Wire = ..., later: No = ...
    ) -> Tensor: ...
    @overload
    def all_reduce(
        self, x: Tensor, *, tensor: TensorName, op: Reduction = ..., wire: Wire = ..., later: Yes
    ) -> Pending[Tensor]: ...
    def all_reduce(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        op: Reduction = Reduction.SUM,
        wire: Wire = None,
        later: bool = False,
    ) -> Tensor | Pending[Tensor]:
        """Every member's x put together, in place: x is the result, the same bits on every member."""
        if (group := self.group) is None:
            return _as_it_is(x, later)
        return self._call(
            self._key(Op.ALL_REDUCE, tensor),
            traffic.all_reduce(x.numel(), self.size),
            lambda: collectives.all_reduce(group, _plain(x), op, wire, later=later),
            later,
        )

    @overload
    def reduce_scatter(
        self, x: Tensor, *, tensor: TensorName, sizes: Sizes | None = ..., wire: Wire = ..., later: No = ...
    ) -> Tensor: ...
    @overload
    def reduce_scatter(
        self, x: Tensor, *, tensor: TensorName, sizes: Sizes | None = ..., wire: Wire = ..., later: Yes
    ) -> Pending[Tensor]: ...
    def reduce_scatter(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        sizes: Sizes | None = None,
        wire: Wire = None,
        later: bool = False,
    ) -> Tensor | Pending[Tensor]:
        """This member's rows of the sum of every member's x; `sizes` are the rows of each, if uneven."""
        if (group := self.group) is None:
            return _as_it_is(x, later)
        rows = sizes or [x.shape[0] // self.size] * self.size
        assert len(rows) == self.size and sum(rows) == x.shape[0], (rows, x.shape)
        return self._call(
            self._key(Op.REDUCE_SCATTER, tensor),
            traffic.reduce_scatter(x.numel(), self.size),
            lambda: collectives.reduce_scatter(
                group,
                _plain(x),
                rows,
                wire,
                later=later,
                composed=self._composes(x.numel(), wire or x.dtype, later),
            ),
            later,
        )

    # Rows that change their place.

    @overload
    def all_gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        sizes: Sizes | None = ...,
        wire: Wire = ...,
        out: Out = ...,
        later: No = ...,
    ) -> Tensor: ...
    @overload
    def all_gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        sizes: Sizes | None = ...,
        wire: Wire = ...,
        out: Out = ...,
        later: Yes,
    ) -> Pending[Tensor]: ...
    def all_gather(
        self,
        x: Tensor,
        *,
        tensor: TensorName,
        sizes: Sizes | None = None,
        wire: Wire = None,
        out: Out = None,
        later: bool = False,
    ) -> Tensor | Pending[Tensor]:
        """Every member's rows, in order, fresh or in `out`; `sizes` are the rows of each, if uneven."""
        if (group := self.group) is None:
            return _as_it_is(x, later)
        rows = sizes or [x.shape[0]] * self.size
        words = sum(rows) * prod(x.shape[1:])
        assert len(rows) == self.size and rows[self.index] == x.shape[0], (rows, self.index, x.shape)
        return self._call(
            self._key(Op.ALL_GATHER, tensor),
            traffic.all_gather(words, x.numel()),
            lambda: collectives.all_gather(
                group,
                _plain(x),
                rows,
                wire,
                out,
                later=later,
                composed=self._composes(words, wire or x.dtype, later),
            ),
            later,
        )

    @overload
    def broadcast(
        self,
        x: Tensor | None,
        *,
        root: int,
        shape: Sizes,
        tensor: TensorName,
        wire: Wire = ...,
        out: Out = ...,
        words: int | None = ...,
        later: No = ...,
    ) -> Tensor: ...
    @overload
    def broadcast(
        self,
        x: Tensor | None,
        *,
        root: int,
        shape: Sizes,
        tensor: TensorName,
        wire: Wire = ...,
        out: Out = ...,
        words: int | None = ...,
        later: Yes,
    ) -> Pending[Tensor]: ...
    def broadcast(  # noqa: PLR0913
        self,
        x: Tensor | None,
        *,
        root: int,
        shape: Sizes,
        tensor: TensorName,
        wire: Wire = None,
        out: Out = None,
        words: int | None = None,
        later: bool = False,
    ) -> Tensor | Pending[Tensor]:
        """The root's x: itself on the root, elsewhere fresh or in `out`.

        What the others pass as x is not read, but for its type; who has no x gives `out`. `words` is how many numbers
        are packed into x, if it is bytes.
        """
        here = self.index == root
        assert not here or (x is not None and x.shape == tuple(shape)), "the root says its own shape"
        if (group := self.group) is None:
            return _as_it_is(_given(x), later)

        def start() -> Started[Tensor]:
            dtype = _given(x if here or out is None else out).dtype
            how = {"later": later, "composed": self._composes(prod(shape), wire or dtype, later)}
            if here:
                return collectives.broadcast_from_here(group, _plain(_given(x)), wire, **how)
            landing = collectives.landing(shape, dtype, self.device, wire, out)
            return collectives.broadcast_to_here(group, root, landing, **how)

        moved = traffic.broadcast(prod(shape) if words is None else words, root=here)
        return self._call(self._key(Op.BROADCAST, tensor), moved, start, later)

    @overload
    def all_to_all(
        self, x: Tensor, *, send: Sizes, receive: Sizes, tensor: TensorName, wire: Wire = ..., later: No = ...
    ) -> Tensor: ...
    @overload
    def all_to_all(
        self, x: Tensor, *, send: Sizes, receive: Sizes, tensor: TensorName, wire: Wire = ..., later: Yes
    ) -> Pending[Tensor]: ...
    def all_to_all(
        self,
        x: Tensor,
        *,
        send: Sizes,
        receive: Sizes,
        tensor: TensorName,
        wire: Wire = None,
        later: bool = False,
    ) -> Tensor | Pending[Tensor]:
        """Gives `send` of x's rows to each member; the result has `receive` rows from each, in order."""
        if (group := self.group) is None:
            return _as_it_is(x, later)
        assert len(send) == len(receive) == self.size and sum(send) == x.shape[0], (send, receive, x.shape)
        row = prod(x.shape[1:])
        return self._call(
            self._key(Op.ALL_TO_ALL, tensor),
            traffic.all_to_all(sum(receive) * row, receive[self.index] * row),
            lambda: collectives.all_to_all(
                group,
                _plain(x),
                send,
                receive,
                wire,
                later=later,
                composed=self._composes(None, x.dtype, later),
            ),
            later,
        )

    # Messages between two members.

    @overload
    def exchange(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Sizes],
        *,
        dtype: torch.dtype,
        tensor: TensorName,
        tag: int = ...,
        wire: Wire = ...,
        later: No = ...,
    ) -> dict[int, Tensor]: ...
    @overload
    def exchange(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Sizes],
        *,
        dtype: torch.dtype,
        tensor: TensorName,
        tag: int = ...,
        wire: Wire = ...,
        later: Yes,
    ) -> Pending[dict[int, Tensor]]: ...
    def exchange(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Sizes],
        *,
        dtype: torch.dtype,
        tensor: TensorName,
        tag: int = 0,
        wire: Wire = None,
        later: bool = False,
    ) -> dict[int, Tensor] | Pending[dict[int, Tensor]]:
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
            return _as_it_is(kept, later)

        def start() -> Started[dict[int, Tensor]]:
            landings = {
                peer: collectives.landing(shape, dtype, self.device, wire) for peer, shape in receives.items()
            }
            started = collectives.exchange(group, sends, landings, wire, tag)
            return started._replace(land=lambda: kept | started.land())

        return self._call(self._messages(sends, receives, tensor, wire or dtype), None, start, later)

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
        return _tensor(apply(self.ledger, Sum, x, self, tensor, wire, in_place))

    def spread(self, x: Tensor, *, gradient: TensorName, wire: Wire = None) -> Tensor:
        """x, the same on every member and put to different uses: its backward sums their gradients."""
        if self.group is None:
            return x
        return _tensor(apply(self.ledger, Spread, x, self, gradient, wire))

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
        return _tensor(apply(self.ledger, Gather, x, self, tensor, gradient, sizes, wire))

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
        return _tensor(apply(self.ledger, Scatter, x, self, tensor, gradient, sizes, wire))

    # The ledger.

    def _call(
        self, key: Key, words: Traffic | None, start: Callable[[], Started[T]], later: bool
    ) -> T | Pending[T]:
        """Starts a call in its row, and waits for it there or leaves that to the caller."""
        ledger = self.ledger
        with ledger.at(key):
            left = ledger.leave() if later and ledger.recording else None
            started = start()
            if words is not None:
                ledger.count(payload=words.payload, received=words.received, bytes=started.bytes)
            if not later:
                for work in started.works:
                    work.wait()
                return started.land()
        return Pending(ledger, key, left, started)

    def _composes(self, words: int | None, wire: torch.dtype, later: bool) -> bool:
        """All members must agree, so it goes by what all know; nobody knows the size of a whole all-to-all."""
        if self.composed_from is None or later:
            return False
        return words is None or words * wire.itemsize >= self.composed_from

    def _key(self, op: Op, tensor: TensorName | None, peer: int = NOBODY) -> Key:
        here = self.ledger.here
        if not self.ledger.recording:
            return here
        trained = tensor in (TensorName.DW, TensorName.DX) and op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)
        phase = Phase.SYNC if trained else here.phase
        return Key(phase, here.layer, here.direction, op, self.name, peer, tensor)

    def _messages(
        self,
        sends: Mapping[int, Tensor],
        receives: Mapping[int, Sizes],
        tensor: TensorName,
        wire: torch.dtype,
    ) -> Key:
        """Counts every message in its own row, and says which row comes first."""
        arriving = {self._key(Op.RECV, tensor, peer): prod(shape) for peer, shape in receives.items()}
        leaving = {self._key(Op.SEND, tensor, peer): x.numel() for peer, x in sends.items()}
        if self.ledger.recording:
            for key, words in (arriving | leaving).items():
                received = words if key.op is Op.RECV else 0
                self.ledger.add(
                    key, calls=1, words_payload=words, words_received=received, bytes=words * wire.itemsize
                )
        return next(iter(arriving | leaving))


def _as_it_is(result: T, later: bool) -> T | Pending[T]:
    return Landed(result) if later else result


def _plain(x: Tensor) -> Tensor:
    """Autograd does not see through a collective, and would give a wrong gradient without a word."""
    assert not (x.requires_grad and torch.is_grad_enabled()), (
        "autograd goes through sum, spread, gather, scatter"
    )
    return x


def _given(x: Tensor | None) -> Tensor:
    assert x is not None, "a rank that receives says the type, by x or by out"
    return x


def _tensor(result: Tensor) -> Tensor:
    return result
