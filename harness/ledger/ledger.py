"""The seconds, calls, words and bytes of a rank in an epoch, each under one key.

At every instant exactly one key is current, so the entries of an epoch are disjoint and add up to the epoch by
construction. The ledger is handed to all code that records, and does not interpret the numbers. Entering a scope
moves time to another key, and leaving the scope moves time back:

    with ledger.phase(Phase.CONVOLVE, layer=0):
        with ledger.op(Op.BROADCAST, axis=AxisName.P, tensor=TensorName.H):
            ledger.count(payload=words, received=words, bytes=4 * words)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from harness.ledger.vocabulary import Direction, Op, Phase, TensorName

T = TypeVar("T")

if TYPE_CHECKING:
    import torch


# Clocks that never make a device wait: a mark is taken now and turned into seconds after the epoch.


class Clock(Protocol):
    def mark(self) -> Any:
        """A point in time, cheap to take."""

    def synchronize(self) -> None:
        """Wait until every mark taken so far can be read."""

    def elapsed(self, earlier: Any, later: Any) -> float:
        """Seconds from one mark to another; only after `settle`."""


class HostClock:
    """The host's monotonic clock, for devices whose kernels return when the work is done."""

    mark = staticmethod(perf_counter)

    def synchronize(self) -> None:
        """Host marks can always be read."""

    def elapsed(self, earlier: float, later: float) -> float:
        return later - earlier


def clock_for(device: torch.device) -> Clock:
    """The clock that tells the truth about work on this device."""
    from harness.device import GpuClock, is_gpu

    return GpuClock() if is_gpu(device) else HostClock()


NO_INDEX = -1  # no layer, no peer


class Key(NamedTuple):
    """A place in the algorithm, and the op that ran at this place."""

    phase: Phase
    layer: int
    direction: Direction
    op: Op = Op.GLUE
    axis: str | None = None
    """An axis of the grid, or several taken as one: x+y."""
    peer: int = NO_INDEX
    tensor: TensorName | None = None


@dataclass(slots=True)
class Amounts:
    """The counts under one key."""

    calls: int = 0
    words_payload: float = 0.0
    words_received: float = 0.0
    bytes: int = 0
    seconds: float = 0.0
    in_flight_seconds: float = 0.0
    flops: int = 0
    bytes_touched: int = 0


AMOUNTS = tuple(field.name for field in fields(Amounts))


class _Scope:
    """Moves time to a key and back. Hand-written because a generator would cost as much as a small kernel."""

    __slots__ = ("_before", "_key", "_ledger")

    def __init__(self, ledger: Ledger, key: Key) -> None:
        self._ledger = ledger
        self._key = key

    def __enter__(self) -> None:
        self._before = self._ledger.switch_to(self._key)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger.switch_to(self._before)


class _NoScope:
    """The scope of a ledger that does not record."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NO_SCOPE = _NoScope()
Scope = _Scope | _NoScope
START = Key(Phase.OTHER, NO_INDEX, Direction.FORWARD)


class Recording(NamedTuple):
    """What a ledger recorded of an epoch, with marks that are yet to be turned into seconds."""

    moves: Sequence[tuple[Key, Any]]
    in_flight: Sequence[tuple[Key, Any, Any]]
    amounts: Mapping[Key, Amounts]
    end: Any

    def with_bounds(self, begun: Any, end: Any) -> Recording:
        """The same epoch, begun and ended at other marks, as a replay of a captured epoch is."""
        (first, _), *moves = self.moves
        return self._replace(moves=[(first, begun), *moves], end=end)


class Ledger:
    """The entries of the epoch in progress, and the key that is current."""

    def __init__(self, clock: Clock | None = None, *, recording: bool = True) -> None:
        self.clock: Clock = clock or HostClock()
        self.recording = recording
        self.capturing = False
        """True while an epoch is captured in a CUDA graph, of which notes by the library's own threads are no part."""
        self.current = START
        self.slices: list[tuple[Key, float]] = []
        """The last epoch in order: each current key, and the seconds until the next key."""
        self._moves: list[tuple[Key, Any]] = []
        self._in_flight: list[tuple[Key, Any, Any]] = []
        self._amounts: dict[Key, Amounts] = {}

    # scopes

    def phase(self, phase: Phase, layer: int | None = None) -> Scope:
        """Charges time inside the scope to this phase (and layer), in no op yet."""
        if not self.recording:
            return _NO_SCOPE
        here = self.current
        return _Scope(self, Key(phase, here.layer if layer is None else layer, here.direction))

    def op(
        self, op: Op, *, axis: str | None = None, tensor: TensorName | None = None, peer: int = NO_INDEX
    ) -> Scope:
        """Charges time inside the scope to this op of the current phase, layer and direction."""
        if not self.recording:
            return _NO_SCOPE
        here = self.current
        return _Scope(self, Key(here.phase, here.layer, here.direction, op, axis, peer, tensor))

    def in_phase(self, phase: Phase) -> Scope:
        """Charges time inside the scope to the current op, in another phase."""
        return self.at(self.current._replace(phase=phase))

    def backward(self) -> Scope:
        """Charges time inside the scope to the backward pass: phase `other`, until an operator claims the time."""
        return self.at(Key(Phase.OTHER, NO_INDEX, Direction.BACKWARD))

    def at(self, key: Key) -> Scope:
        """Charges time inside the scope to a remembered key: a wait belongs to the row that issued its call."""
        return _Scope(self, key) if self.recording else _NO_SCOPE

    def switch_to(self, key: Key) -> Key:
        """Makes a key current and returns the previous key. Scopes are the ordinary way."""
        before, self.current = self.current, key
        self._moves.append((key, self.clock.mark()))
        return before

    # counts

    def count_call(self, *, payload: float, received: float, bytes: int) -> None:  # noqa: A002
        """Counts a call under the current key, with its words and bytes (conventions: docs/ledger.md)."""
        if self.recording:
            self.add(self.current, calls=1, words_payload=payload, words_received=received, bytes=bytes)

    def record_sampled(self, entries: int) -> None:
        """Notes that the host sampled so many entries of A; only a tape of a replay keeps the number."""

    def simulating_peers(self) -> AbstractContextManager[None]:
        """In a block: computes what other ranks send in a run; a tape of a replay does not charge it to the rank."""
        return nullcontext()

    def run_fused(self, function: Callable[..., T], *operands: Any) -> T:
        """Calls a function of shapes whose operators are one kernel in a run; only a tape of a replay keeps that."""
        return function(*operands)

    def record_prefetched(self, make: Callable[[], T]) -> Callable[[], T]:
        """Notes that another thread may make an item from now on; only a tape of a replay keeps the place."""
        return make

    def mark_issued(self) -> Any:
        """Marks the start of an asynchronous call; `landing` and `flew` take the mark that is returned."""
        return self.clock.mark()

    def waiting_for(self, key: Key, left: Any) -> Scope:
        """Charges the wait for an asynchronous call to the row that issued the call."""
        return self.at(key)

    def record_in_flight(self, key: Key, issued: Any, done: Any) -> None:
        """Records that an asynchronous call of this key was in flight between two marks of the clock."""
        if self.recording:
            self._in_flight.append((key, issued, done))

    def add(self, key: Key, **more: float) -> None:
        """Adds to any of the amounts of a key."""
        amounts = self._amounts_of(key)
        for name, value in more.items():
            setattr(amounts, name, getattr(amounts, name) + value)

    def _amounts_of(self, key: Key) -> Amounts:
        amounts = self._amounts.get(key)
        if amounts is None:
            amounts = self._amounts[key] = Amounts()
        return amounts

    # epochs

    def start(self) -> None:
        """Opens an epoch: all later counts belong to the epoch, until `stop`."""
        self.current = START
        self._moves = [(START, self.clock.mark())]
        self._in_flight = []
        self._amounts = {}

    def stop(self) -> dict[Key, Amounts]:
        """Closes the epoch and returns its entries, whose seconds add up to the length of the epoch."""
        return self.read(self.close())

    def close(self) -> Recording:
        """Closes the epoch without waiting for the device. Its entries can be read later, and more than once."""
        recording = Recording(self._moves, self._in_flight, self._amounts, self.clock.mark())
        self._amounts, self._moves, self._in_flight = {}, [], []
        return recording

    def read(self, recording: Recording) -> dict[Key, Amounts]:
        """Waits until the device has done a recorded epoch, and returns its entries."""
        self.clock.synchronize()
        between, moves = self.clock.elapsed, recording.moves
        marks = [*(mark for _, mark in moves[1:]), recording.end]
        self.slices = [(key, between(since, until)) for (key, since), until in zip(moves, marks, strict=True)]
        self._amounts = {key: replace(amounts) for key, amounts in recording.amounts.items()}
        for key, seconds in self.slices:
            self.add(key, seconds=seconds)
        for key, issued, done in recording.in_flight:
            self.add(key, in_flight_seconds=between(issued, done))
        entries, self._amounts = self._amounts, {}
        return entries

    @contextmanager
    def in_graph(self, clock: Clock) -> Iterator[None]:
        """Inside, an epoch is captured in a CUDA graph, and marks are those of a clock that the graph reads again."""
        outside, self.clock, self.capturing = self.clock, clock, True
        try:
            yield
        finally:
            self.clock, self.capturing = outside, False


# The backward pass of an operator is charged to the phase and layer of its forward pass, with direction backward.
#
# Autograd runs backward nodes in an order of its own. A hook before and a hook after a node bracket the node
# exactly. Hooks on tensors would not do: the hooks of one tensor fire in the order of registration, so the
# producer's hook would run before the consumer's backward had ended.


def charge_backward(
    ledger: Ledger,
    result: torch.Tensor,
    inputs: tuple[torch.Tensor, ...] = (),
    *,
    op: Op = Op.GLUE,
    tensor: TensorName | None = None,
) -> torch.Tensor:
    """Charges every backward node between `inputs` and `result` to the ledger's current phase and layer."""
    if ledger.recording and result.grad_fn is not None:
        here = ledger.current
        key = Key(here.phase, here.layer, Direction.BACKWARD, op, tensor=tensor)
        for node in _nodes(result, inputs):
            _bracket(ledger, node, key)
    return result


def apply(ledger: Ledger, function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply`, its backward charged to the current phase and layer; ops inside name themselves."""
    return charge_backward(ledger, function.apply(*arguments), _tensors(arguments))


def _tensors(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(argument for argument in arguments if hasattr(argument, "grad_fn"))


def _nodes(result: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """The nodes from `result` back to `inputs`, whose own nodes belong to other operators."""
    foreign = {tensor.grad_fn for tensor in inputs}
    nodes: list[Any] = []
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in foreign or node in nodes or hasattr(node, "variable"):
            continue
        nodes.append(node)
        waiting.extend(parent for parent, _ in node.next_functions)
    return nodes


def _bracket(ledger: Ledger, node: Any, key: Key) -> None:
    before: list[Key] = []

    def enter(_: Any) -> None:
        before.append(ledger.switch_to(key))

    def leave(_: Any, __: Any) -> None:
        ledger.switch_to(before.pop())

    node.register_prehook(enter)
    node.register_hook(leave)
