"""The seconds, calls, words and bytes of a rank in an epoch, by key.

Exactly one key is current at any time, so the entries of an epoch are disjoint and their seconds add up to the epoch.
The ledger is passed to all code that records, and does not interpret the numbers. Entering a scope charges time to
another key, and leaving it switches back:

    with ledger.phase(Phase.CONVOLVE, layer=0):
        with ledger.op(Op.BROADCAST, axis=AxisName.P, tensor=TensorName.H):
            ledger.count_call(payload=words, received=words, bytes=4 * words)
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


# Clocks that do not synchronize with the device: marks are taken now and converted to seconds after the epoch.


class Clock(Protocol):
    def mark(self) -> Any:
        """Return a mark of the current time. Cheap."""

    def synchronize(self) -> None:
        """Wait until all marks can be read."""

    def elapsed(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two marks. Call `synchronize` first."""


class HostClock:
    """The host's monotonic clock, for devices whose kernels run synchronously."""

    mark = staticmethod(perf_counter)

    def synchronize(self) -> None:
        """Do nothing: host marks can always be read."""

    def elapsed(self, earlier: float, later: float) -> float:
        return later - earlier


def clock_for(device: torch.device) -> Clock:
    """Return the clock that measures work on this device."""
    from harness.base.device import GpuClock, is_gpu

    return GpuClock() if is_gpu(device) else HostClock()


NO_INDEX = -1  # in place of a layer or a peer


class Key(NamedTuple):
    """A position in the algorithm, and the op that ran there."""

    phase: Phase
    layer: int
    direction: Direction
    op: Op = Op.GLUE
    axis: str | None = None
    """An axis of the grid, or several combined, such as x+y."""
    peer: int = NO_INDEX
    tensor: TensorName | None = None


@dataclass(slots=True)
class Amounts:
    """The amounts under one key."""

    calls: int = 0
    elements_payload: float = 0.0
    elements_received: float = 0.0
    bytes: int = 0
    seconds: float = 0.0
    in_flight_seconds: float = 0.0
    flops: int = 0
    bytes_touched: int = 0

    def add(self, more: Mapping[str, float]) -> None:
        """Add to any of the amounts, by name."""
        for name, value in more.items():
            setattr(self, name, getattr(self, name) + value)


AMOUNTS = tuple(field.name for field in fields(Amounts))


class _Scope:
    """Switches to a key and back. A class, because a generator would cost as much as a small kernel."""

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
    """The scope of a ledger that is not recording."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NO_SCOPE = _NoScope()
Scope = _Scope | _NoScope
START = Key(Phase.OTHER, NO_INDEX, Direction.FORWARD)


class Recording(NamedTuple):
    """What a ledger recorded in an epoch, with marks that are not yet converted to seconds."""

    moves: Sequence[tuple[Key, Any]]
    in_flight: Sequence[tuple[Key, Any, Any]]
    amounts: Mapping[Key, Amounts]
    end: Any

    def with_bounds(self, start: Any, end: Any) -> Recording:
        """Return the recording with other first and last marks, for the replay of a captured epoch."""
        (first, _), *moves = self.moves
        return self._replace(moves=[(first, start), *moves], end=end)


class Ledger:
    """Records the current epoch under the current key."""

    def __init__(self, clock: Clock | None = None, *, recording: bool = True) -> None:
        self.clock: Clock = clock or HostClock()
        self.recording = recording
        self.capturing = False
        """True while an epoch is captured in a CUDA graph, when callbacks on the library's threads must not record."""
        self.current = START
        self.slices: list[tuple[Key, float]] = []
        """The last epoch as a sequence of keys, each with the seconds until the next key."""
        self._moves: list[tuple[Key, Any]] = []
        self._in_flight: list[tuple[Key, Any, Any]] = []
        self._amounts: dict[Key, Amounts] = {}

    # Scopes

    def phase(self, phase: Phase, layer: int | None = None) -> Scope:
        """Charge time inside the scope to this phase (and layer), without an op."""
        if not self.recording:
            return _NO_SCOPE
        here = self.current
        return _Scope(self, Key(phase, here.layer if layer is None else layer, here.direction))

    def op(
        self, op: Op, *, axis: str | None = None, tensor: TensorName | None = None, peer: int = NO_INDEX
    ) -> Scope:
        """Charge time inside the scope to this op of the current phase, layer and direction."""
        if not self.recording:
            return _NO_SCOPE
        here = self.current
        return _Scope(self, Key(here.phase, here.layer, here.direction, op, axis, peer, tensor))

    def in_phase(self, phase: Phase) -> Scope:
        """Charge time inside the scope to the current op in another phase."""
        return self.at(self.current._replace(phase=phase))

    def backward(self) -> Scope:
        """Charge time inside the scope to the backward pass: to phase `other`, except in the operators' own nodes."""
        return self.at(Key(Phase.OTHER, NO_INDEX, Direction.BACKWARD))

    def at(self, key: Key) -> Scope:
        """Charge time inside the scope to a given key. A wait is charged to the key that issued its call."""
        return _Scope(self, key) if self.recording else _NO_SCOPE

    def switch_to(self, key: Key) -> Key:
        """Make a key current and return the previous one. Prefer the scopes above."""
        before, self.current = self.current, key
        self._moves.append((key, self.clock.mark()))
        return before

    # Amounts

    def count_call(self, *, payload: float, received: float, bytes: int) -> None:  # noqa: A002
        """Count a call under the current key, with its words and bytes (conventions: docs/concepts/ledger.md)."""
        if self.recording:
            self.add(self.current, calls=1, elements_payload=payload, elements_received=received, bytes=bytes)

    def record_partners(self, send: Sequence[int], receive: Sequence[int], own: int) -> None:
        """Record with how many members the current all-to-all exchanges messages. Only a tape keeps the number."""

    def record_sampled(self, entries: int) -> None:
        """Record that the host sampled `entries` entries of A. Only the tape of a replay keeps the number."""

    def simulating_peers(self) -> AbstractContextManager[None]:
        """Mark a block that computes what other ranks would send, which the tape of a replay does not charge."""
        return nullcontext()

    def run_fused(self, function: Callable[..., T], *operands: Any) -> T:
        """Call a function on meta tensors. The tape of a replay records it as one fused kernel."""
        return function(*operands)

    def record_prefetched(self, make: Callable[[], T]) -> Callable[[], T]:
        """Record that a background thread may make an item from now on. Only a replay's tape keeps the position."""
        return make

    def mark_issued(self) -> Any:
        """Return a mark of the start of an asynchronous call, for `waiting_for` and `record_in_flight`."""
        return self.clock.mark()

    def waiting_for(self, key: Key, mark: Any) -> Scope:
        """Charge the wait for an asynchronous call to the key that issued the call."""
        return self.at(key)

    def record_in_flight(self, key: Key, issued: Any, done: Any) -> None:
        """Record that an asynchronous call of this key was in flight between two marks of the clock."""
        if self.recording:
            self._in_flight.append((key, issued, done))

    def add(self, key: Key, **more: float) -> None:
        """Add to any of the amounts of a key."""
        self._amounts_of(key).add(more)

    def _amounts_of(self, key: Key) -> Amounts:
        amounts = self._amounts.get(key)
        if amounts is None:
            amounts = self._amounts[key] = Amounts()
        return amounts

    # Epochs

    def start(self) -> None:
        """Start an epoch."""
        self.current = START
        self._moves = [(START, self.clock.mark())]
        self._in_flight = []
        self._amounts = {}

    def stop(self) -> dict[Key, Amounts]:
        """End the epoch and return its entries, whose seconds add up to the length of the epoch."""
        return self.read(self.close())

    def close(self) -> Recording:
        """End the epoch without waiting for the device. Its entries can be read later, and more than once."""
        recording = Recording(self._moves, self._in_flight, self._amounts, self.clock.mark())
        self._amounts, self._moves, self._in_flight = {}, [], []
        return recording

    def read(self, recording: Recording) -> dict[Key, Amounts]:
        """Wait until the device has completed a recorded epoch, and return its entries."""
        self.clock.synchronize()
        between, moves = self.clock.elapsed, recording.moves
        marks = [*(mark for _, mark in moves[1:]), recording.end]
        self.slices = [(key, between(since, until)) for (key, since), until in zip(moves, marks, strict=True)]
        self._amounts = {key: replace(amounts) for key, amounts in recording.amounts.items()}
        for key, seconds in self.slices:
            self._amounts_of(key).seconds += seconds
        for key, issued, done in recording.in_flight:
            self._amounts_of(key).in_flight_seconds += between(issued, done)
        entries, self._amounts = self._amounts, {}
        return entries

    @contextmanager
    def in_graph(self, clock: Clock) -> Iterator[None]:
        """Record an epoch that is captured in a CUDA graph, with a clock whose marks are updated by every replay."""
        outside, self.clock, self.capturing = self.clock, clock, True
        try:
            yield
        finally:
            self.clock, self.capturing = outside, False


# The backward pass of an operator is charged to the phase and layer of its forward pass, with direction backward.
#
# A pre-hook and a hook on each autograd node delimit its time exactly. Tensor hooks are not enough: the hooks of one
# tensor fire in the order of registration, so the producer's hook would run before the consumer's backward has ended.


def charge_backward(
    ledger: Ledger,
    result: torch.Tensor,
    inputs: tuple[torch.Tensor, ...] = (),
    *,
    op: Op = Op.GLUE,
    tensor: TensorName | None = None,
) -> torch.Tensor:
    """Charge every backward node between `inputs` and `result` to the ledger's current phase and layer."""
    if ledger.recording and result.grad_fn is not None:
        here = ledger.current
        key = Key(here.phase, here.layer, Direction.BACKWARD, op, tensor=tensor)
        for node in _find_nodes(result, inputs):
            _charge_node(ledger, node, key)
    return result


def apply(ledger: Ledger, function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Call `function.apply` and charge its backward pass to the current phase and layer."""
    return charge_backward(ledger, function.apply(*arguments), _select_tensors(arguments))


def _select_tensors(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(argument for argument in arguments if hasattr(argument, "grad_fn"))


def _find_nodes(result: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """Return the nodes from `result` back to `inputs`, excluding those that produced the inputs."""
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


def _charge_node(ledger: Ledger, node: Any, key: Key) -> None:
    before: list[Key] = []

    def enter(_: Any) -> None:
        before.append(ledger.switch_to(key))

    def leave(_: Any, __: Any) -> None:
        ledger.switch_to(before.pop())

    node.register_prehook(enter)
    node.register_hook(leave)
