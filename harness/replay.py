"""A dry run: the strategy's own code as one rank of any world, on shapes alone, in one process.

The strategy, the training loop, the axes and the ledger are those of a run. Tensors are shapes (torch's device
`meta`), and the process group sends nothing (torch's backend `fake`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple
from weakref import finalize

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
from harness.kernels.spmm import PRODUCT, PRODUCT_ADD
from harness.ledger import MOVING, NOBODY, Amounts, Key, Ledger, Op, Scope, TensorName
from harness.run.trainer import Trainer
from harness.spec.spec import grid_text
from harness.strategy import Candidate, Strategy
from harness.strategy.facts import ShapeBlocks

# The meter charges the flops and bytes of every operator to the key that is current on a tape, and keeps the shapes of
# products.
#
# Flops are by the formulas of torch and of `harness.kernels.spmm`. Bytes are those of the operands and of
# the result, each read or written once. Messages are no kernels: the axes count them.

ATEN = torch.ops.aten
DENSE = {ATEN.mm, ATEN.addmm, ATEN.addmm_}
ONLY_ALLOCATE = {ATEN.empty, ATEN.empty_strided, ATEN.empty_like, ATEN.new_empty, ATEN.new_empty_strided}


class Product(NamedTuple):
    """The shape of one product, (rows x inner) times (inner x columns), and what its operands are made of."""

    rows: int
    inner: int
    columns: int
    nonzeros: int
    """The nonzeros of the first operand; 0 for a dense product."""
    values: str
    """The type of the values, as in float32."""
    indices: str
    """The type of the columns of a sparse operand; nothing for a dense product."""


def _product(func: Any, args: tuple[Any, ...]) -> Product | None:
    """The product that an operator computes; None for an operator of another kind."""
    if func in (PRODUCT, PRODUCT_ADD):
        rowptr, col, val, inner, H = args[-5:]  # before them comes the sum that is added to
        return Product(len(rowptr) - 1, inner, H.shape[1], len(val), _type(val), _type(col))
    if func.overloadpacket in DENSE:
        X, Y = [x for x in args if isinstance(x, Tensor)][-2:]
        return Product(X.shape[0], X.shape[1], Y.shape[1], 0, _type(X), "")
    return None


def _type(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


class LiveBytes:
    """The bytes of the tensors that were made under a meter and are not yet freed, and the most at any time."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def made(self, things: Iterable[Any], *, before: bool = False) -> None:
        """Takes notice of tensors; with `before`, of tensors that were made before, which do not count."""
        for x in _tensors(things):
            if not x.is_meta:  # the host's
                continue
            storage = x.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self._seen:
                continue
            self._seen.add(key)
            self.now += 0 if before else size
            self.peak = max(self.peak, self.now)
            finalize(storage, self._freed, key, 0 if before else size)

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class Meter(TorchDispatchMode):
    """`with Meter(tape):` meters the operators inside, those of the backward pass included, and the memory."""

    def __init__(self, tape: "Tape") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self.memory = LiveBytes()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would import its compiler, 1.5 seconds, in order to keep the compiler out of this class."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.memory.made((*args, *kwargs.values()), before=True)
        result = func(*args, **kwargs)
        self.memory.made((result,))
        if _computes(func):
            formula = flop_registry.get(func.overloadpacket)
            flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
            touched = _bytes(args) + _bytes(kwargs.values()) + _bytes((result,))
            self._tape.add(self._tape.here, flops=flops, bytes_touched=touched)
            self._tape.computed(_product(func, args), touched)
        return result


def _bytes(things: Iterable[Any]) -> int:
    """The bytes of the tensors among arguments, and in lists among them."""
    return sum(x.nbytes for x in _tensors(things))


def _tensors(things: Iterable[Any]) -> Iterator[Tensor]:
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, list | tuple):
            yield from _tensors(thing)


def _computes(func: Any) -> bool:
    return (
        func.namespace not in ("c10d", "prim")
        and not func.is_view
        and func.overloadpacket not in ONLY_ALLOCATE
    )


# The tape is a ledger that also keeps the order of kernels and calls, one event each.
#
# A tape works in a run as well as in a replay, so the two can be compared event by event. Its clock counts
# how often it was read: a time that is the same on every machine.

ALGORITHM = MOVING | {Op.SPMM, Op.GEMM}
"""The ops of an algorithm, whatever the engine. Copies and sums may differ between engines."""


@dataclass(slots=True)
class Event:
    """A stretch under one key with amounts, or the wait for a call that left earlier."""

    key: Key
    amounts: Amounts = field(default_factory=Amounts)
    products: list[Product] = field(default_factory=list)
    kernels: int = 0
    """The number of kernels that are no products."""
    streamed: int = 0
    """The bytes that these kernels read and write."""
    drawn: int = 0
    """The entries of A that the host sampled."""
    leaves: bool = False
    """The call's result is waited for in a later event."""
    waits_for: int = NOBODY
    """The number of the event whose call this event waits for."""
    travels_with: int = NOBODY
    """The number of the event in whose call the words of this event travel."""


class OutlineEvent(NamedTuple):
    """An event without times, for comparison; a wait names its call by the position in the outline."""

    key: Key
    calls: int
    words_payload: float
    words_received: float
    bytes: int
    flops: int
    products: tuple[Product, ...]
    leaves: bool
    waits_for: int


def outline(events: Sequence[Event]) -> list[OutlineEvent]:
    """The events of the algorithm, in order."""
    kept = [number for number, event in enumerate(events) if event.key.op in ALGORITHM]
    position = {number: index for index, number in enumerate(kept)}
    return [_outlined(events[number], position) for number in kept]


def _outlined(event: Event, position: Mapping[int, int]) -> OutlineEvent:
    amounts = event.amounts
    return OutlineEvent(
        event.key,
        amounts.calls,
        amounts.words_payload,
        amounts.words_received,
        amounts.bytes,
        amounts.flops,
        tuple(event.products),
        event.leaves,
        position.get(event.waits_for, NOBODY),
    )


class CountingClock:
    """A clock whose marks are 0, 1, 2 and so on."""

    def __init__(self) -> None:
        self._marks = count()

    def mark(self) -> int:
        return next(self._marks)

    def settle(self) -> None:
        """Does nothing: counts can be read at any time."""

    def between(self, earlier: int, later: int) -> float:
        return float(later - earlier)


class Tape(Ledger):
    """A ledger that also has the events of an epoch, in order."""

    def __init__(self) -> None:
        super().__init__(CountingClock())
        self.events: list[Event] = []
        self._open: Event | None = None
        self._wait: Event | None = None
        self._companions: dict[Key, Event] = {}
        self._left: dict[int, int] = {}
        """The number of a call's event, by the mark at which the call left."""

    def start(self) -> None:
        self.events, self._left = [], {}
        super().start()

    def move_to(self, key: Key) -> Key:
        self._open, self._wait = self._wait, None
        return super().move_to(key)

    def add(self, key: Key, **more: float) -> None:
        super().add(key, **more)
        if "seconds" not in more and "in_flight_seconds" not in more:  # sums at the end of an epoch
            event = self._event(key) if key == self.here else self._companion(key)
            for name, value in more.items():
                setattr(event.amounts, name, getattr(event.amounts, name) + value)

    def computed(self, product: Product | None, touched: int) -> None:
        """Keeps a kernel of the current event: the shape of a product, the bytes of another kernel."""
        if not self.recording:
            return
        event = self._event(self.here)
        if product:
            event.products.append(product)
        else:
            event.kernels, event.streamed = event.kernels + 1, event.streamed + touched

    def drew(self, entries: int) -> None:
        if self.recording:
            self._event(self.here).drawn += entries

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
            self._companions = {}
        return self._open

    def _companion(self, key: Key) -> Event:
        """The event of another row whose words travel in the call of the current event."""
        leader = self._event(self.here)
        if key not in self._companions:
            number = next(i for i in range(len(self.events) - 1, -1, -1) if self.events[i] is leader)
            self._companions[key] = Event(key, travels_with=number)
            self.events.append(self._companions[key])
        return self._companions[key]


@dataclass(frozen=True)
class Replayed:
    """The work of one rank in an epoch, and the memory that it holds all the time."""

    rank: int
    events: list[Event]
    """Every kernel and every call, in the order of their issue."""
    first_of_step: list[int]
    """The number of each step's first event."""
    entries: dict[Key, Amounts]
    persistent_bytes: dict[TensorName, int]
    peak_bytes: int
    """The most that the rank holds at any time of an epoch: with activations, gradients and buffers of messages."""


def replay(
    strategy: Strategy, rank: int = 0, blocks: Blocks | None = None, *, steps: int | None = None
) -> Replayed:
    """Replays an epoch of a rank, or its first steps only.

    With `blocks` sizes are exact; without, they are expected from the graph's facts.
    """
    world = strategy.spec.ranks
    if not 0 <= rank < world:
        raise UserError(f"rank = {rank}: the ranks of this world are 0 to {world - 1}.")
    assert not dist.is_initialized(), "a rank of a real world cannot replay another"
    tape = Tape()
    device = engine.start(Engine.REPLAY, RankPlace(rank, world))
    try:
        grid = Grid.build(strategy.grid, tape, device, wire=strategy.wire)
        shapes = blocks or ShapeBlocks(strategy.facts, strategy.spec.dataset.permutation)
        with Meter(tape) as meter:
            trainer = Trainer(strategy, grid, shapes)
            tape.start()
            first_of_step = []
            for _ in range(trainer.steps if steps is None else min(steps, trainer.steps)):
                first_of_step.append(len(tape.events))
                trainer.step()
            entries = tape.stop()
    finally:
        engine.stop()
    held = trainer.ctx.memory.persistent_bytes()
    return Replayed(rank, tape.events, first_of_step, entries, held, meter.memory.peak)


# The memory that a rank would hold and the words that it would receive, for every strategy.


class Needs(NamedTuple):
    """The needs of rank 0, which has the largest blocks of a graph whose nonzeros lie evenly; or a refusal."""

    strategy: str
    grid: str | None = None
    """The grid with the fewest words; the first of several."""
    persistent_bytes: int | None = None
    peak_bytes: int | None = None
    """The most that the rank holds at any time of an epoch."""
    words_received: int | None = None
    """The words of an epoch."""
    grids: int | None = None
    """The number of grids on which the strategy can train."""
    worst_grid: str | None = None
    worst_words_received: int | None = None
    refused: str | None = None


def needs(candidates: Iterable[Candidate]) -> list[Needs]:
    """The needs of each strategy on its best grid."""
    return [_needs(candidate) for candidate in candidates]


def _needs(candidate: Candidate) -> Needs:
    replays, refused = [], [candidate.reason]
    for strategy in candidate.ready:
        try:
            replays.append((grid_text(strategy.spec.grid), replay(strategy)))
        except UserError as refusal:
            refused.append(str(refusal))
    if not replays:
        return Needs(candidate.name, refused=refused[-1])
    best, worst = min(replays, key=_received), max(replays, key=_received)
    return Needs(
        candidate.name,
        best[0],
        sum(best[1].persistent_bytes.values()),
        best[1].peak_bytes,
        _received(best),
        len(replays),
        worst[0],
        _received(worst),
    )


def _received(replayed: tuple[str, Replayed]) -> int:
    return round(sum(amounts.words_received for amounts in replayed[1].entries.values()))
