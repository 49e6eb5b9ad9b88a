"""One epoch of one rank of a world of any size, in this process, in a moment.

The strategy, the training loop, the axes and the ledger are those of a run. Tensors are shapes (torch's device
`meta`), and the process group sends nothing (torch's backend `fake`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from harness.comm import engine
from harness.comm.engine import Engine, RankPlace
from harness.comm.grid import Grid
from harness.errors import UserError
from harness.graph.blocks import Blocks
from harness.ledger import MOVING, NOBODY, Amounts, Key, Ledger, Op, Scope, TensorName
from harness.run.trainer import Trainer
from harness.strategy import Strategy
from harness.strategy.facts import ShapeBlocks

# Charges the flops and bytes of every operator to the key that is current on a ledger.
#
# Flops are those of torch's own formulas and of ours (`harness.kernels.spmm`); bytes are those of the
# operands and of the result, each read or written once. Messages are no kernels: the axes count them.

ATEN = torch.ops.aten
ONLY_ALLOCATE = {ATEN.empty, ATEN.empty_strided, ATEN.empty_like, ATEN.new_empty, ATEN.new_empty_strided}


class Meter(TorchDispatchMode):
    """`with Meter(ledger):` around what is to be metered, the backward pass included."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if _computes(func):
            formula = flop_registry.get(func.overloadpacket)
            flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
            touched = _bytes(args) + _bytes(kwargs.values()) + _bytes((result,))
            self._ledger.add(self._ledger.here, flops=flops, bytes_touched=touched)
        return result


def _bytes(things: Iterable[Any]) -> int:
    """Of the tensors among arguments, and in lists of them."""
    total = 0
    for thing in things:
        if isinstance(thing, Tensor):
            total += thing.nbytes
        elif isinstance(thing, list | tuple):
            total += _bytes(thing)
    return total


def _computes(func: Any) -> bool:
    return (
        func.namespace not in ("c10d", "prim")
        and not func.is_view
        and func.overloadpacket not in ONLY_ALLOCATE
    )


# A ledger that also keeps the order of things: every kernel and every call, one event each.
#
# It works in a run as well as in a replay, so the two can be compared event by event. Its clock counts the
# times it was asked: time that is the same on every machine.

ALGORITHM = MOVING | {Op.SPMM, Op.GEMM}
"""What an algorithm consists of, whatever the engine; copies and sums may be another engine's business."""


@dataclass(slots=True)
class Event:
    """A stretch under one key in which something was counted, or the wait for a call that left earlier."""

    key: Key
    amounts: Amounts = field(default_factory=Amounts)
    leaves: bool = False
    """The call's result is waited for in a later event."""
    waits_for: int = NOBODY
    """The number of the event whose call this one waits for."""


class OutlineEvent(NamedTuple):
    """An event as it can be compared: no time, and the wait for a call by the number of its line."""

    key: Key
    calls: int
    words_payload: float
    words_received: float
    bytes: int
    flops: int
    leaves: bool
    waits_for: int


def outline(events: Sequence[Event]) -> list[OutlineEvent]:
    """The events of the algorithm, in order."""
    kept = [number for number, event in enumerate(events) if event.key.op in ALGORITHM]
    line_of = {number: line for line, number in enumerate(kept)}
    return [_line(events[number], line_of) for number in kept]


def _line(event: Event, line_of: Mapping[int, int]) -> OutlineEvent:
    amounts = event.amounts
    return OutlineEvent(
        event.key,
        amounts.calls,
        amounts.words_payload,
        amounts.words_received,
        amounts.bytes,
        amounts.flops,
        event.leaves,
        line_of.get(event.waits_for, NOBODY),
    )


class CountingClock:
    """Each mark is one later than the one before."""

    def __init__(self) -> None:
        self._marks = count()

    def mark(self) -> int:
        return next(self._marks)

    def settle(self) -> None:
        """Counts can always be read."""

    def between(self, earlier: int, later: int) -> float:
        return float(later - earlier)


class Tape(Ledger):
    """The events of an epoch, in order, besides its entries."""

    def __init__(self) -> None:
        super().__init__(CountingClock())
        self.events: list[Event] = []
        self._open: Event | None = None
        self._wait: Event | None = None
        self._left: dict[int, int] = {}
        """The mark at which a call left, and the number of its event."""

    def start(self) -> None:
        self.events, self._left = [], {}
        super().start()

    def move_to(self, key: Key) -> Key:
        self._open, self._wait = self._wait, None
        return super().move_to(key)

    def add(self, key: Key, **more: float) -> None:
        super().add(key, **more)
        if (
            "seconds" not in more and "in_flight_seconds" not in more
        ):  # what an epoch is summed up to at its end
            amounts = self._event(key).amounts
            for name, value in more.items():
                setattr(amounts, name, getattr(amounts, name) + value)

    def leave(self) -> Any:
        mark = super().leave()
        self._left[mark] = len(self.events)
        self._event(self.here).leaves = True
        return mark

    def landing(self, key: Key, left: Any) -> Scope:
        if left in self._left:
            self._wait = Event(key, waits_for=self._left.pop(left))
            self.events.append(self._wait)
        return super().landing(key, left)

    def _event(self, key: Key) -> Event:
        if self._open is None or self._open.key != key:
            self._open = Event(key)
            self.events.append(self._open)
        return self._open


@dataclass(frozen=True)
class Replayed:
    """What one rank would do in an epoch, and hold all the time."""

    rank: int
    events: list[Event]
    """Every kernel and every call, in the order in which they are issued."""
    entries: dict[Key, Amounts]
    persistent_bytes: dict[TensorName, int]


def replay(strategy: Strategy, rank: int = 0, blocks: Blocks | None = None) -> Replayed:
    """With `blocks` the sizes are exact; without, they are what the facts of the graph let expect."""
    world = strategy.spec.ranks
    if not 0 <= rank < world:
        raise UserError(f"rank = {rank}: the ranks of this world are 0 to {world - 1}.")
    assert not dist.is_initialized(), "a rank of a real world cannot replay another"
    tape = Tape()
    device = engine.start(Engine.REPLAY, RankPlace(rank, world))
    try:
        grid = Grid.build(strategy.grid, tape, device)
        shapes = blocks or ShapeBlocks(strategy.facts, strategy.spec.dataset.permutation)
        trainer = Trainer(strategy, grid, shapes)
        with Meter(tape):
            entries = trainer.epoch().entries
    finally:
        engine.stop()
    return Replayed(rank, tape.events, entries, trainer.ctx.memory.persistent_bytes())
