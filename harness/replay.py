"""A dry run: the strategy's own code as one rank of any world, on shapes alone, in one process.

The strategy, the training loop, the axes and the ledger are those of a run. Tensors are shapes (torch's device
`meta`), and the process group sends nothing (torch's backend `fake`).
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.comm.launchers import RankPlace
from harness.device import HOST_DEVICE_COPY
from harness.errors import UserError
from harness.graph.blocks import Blocks
from harness.kernels.spmm import PRODUCT, PRODUCT_ADD
from harness.ledger import Amounts, Key, TensorName
from harness.ledger.tape import Event, ProductShape, Tape
from harness.run.trainer import Trainer
from harness.spec.spec import format_grid
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


def _product(func: Any, args: tuple[Any, ...]) -> ProductShape | None:
    """The product that an operator computes; None for an operator of another kind."""
    if func in (PRODUCT, PRODUCT_ADD):
        rowptr, col, val, inner, H = args[-5:]  # before them comes the sum that is added to
        return ProductShape(len(rowptr) - 1, inner, H.shape[1], len(val), _type(val), _type(col))
    if func.overloadpacket in DENSE:
        X, Y = [x for x in args if isinstance(x, Tensor)][-2:]
        return ProductShape(X.shape[0], X.shape[1], Y.shape[1], 0, _type(X), "")
    return None


def _type(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


class LiveBytes:
    """The bytes of the tensors that were made under a meter and are not yet freed, and the most at any time."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def made(self, tensors: Iterable[Tensor], *, before: bool = False) -> None:
        """Takes notice of tensors; with `before`, of tensors that were made before, which do not count."""
        for x in tensors:
            if not x.is_meta:  # the host's
                continue
            storage = x.untyped_storage()
            key = storage._cdata
            if key in self._sizes:
                continue
            self._sizes[key] = 0 if before else storage.nbytes()
            self.now += self._sizes[key]
            self.peak = max(self.peak, self.now)
            finalize(storage, self._freed, key)

    def begin_epoch(self, on_host: Iterable[Tensor]) -> None:
        """Begins to look for the peak. What a rank keeps on its host does not count."""
        for x in on_host:
            self.now -= self._sizes.get(x.untyped_storage()._cdata, 0)
            self._sizes[x.untyped_storage()._cdata] = 0
        self.peak = self.now

    def leave(self, x: Tensor) -> None:
        """Takes notice of a tensor that a copy brings to the device: until then it was the host's."""
        if x.is_meta:
            key = x.untyped_storage()._cdata
            self.now -= self._sizes[key]
            self._sizes[key] = 0

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


class Meter(TorchDispatchMode):
    """`with Meter(tape):` meters the operators inside, those of the backward pass included, and the memory."""

    def __init__(self, tape: Tape) -> None:
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
        kwargs, kind = kwargs or {}, _kind(func)
        if kind is Kind.MOVES:
            return func(*args, **kwargs)
        operands = _tensors((*args, *kwargs.values()))
        on_host = bool(operands) and not any(x.is_meta for x in operands)
        # A rank of a run does not compute what a replay simulates of its peers.
        if self._tape.is_simulating and on_host and func is not HOST_DEVICE_COPY:
            return func(*args, **kwargs)
        self.memory.made(operands, before=True)
        if func is HOST_DEVICE_COPY:
            self.memory.leave(args[0])
            self._tape.record_copy(args[0].nbytes)
        if kind is Kind.ALLOCATES:
            result = _allocated(func, args, kwargs)
        else:
            work, result = _run(func, args, kwargs, operands)
            self._tape.record_operator(work.product, work.flops, work.touched)
        self.memory.made(_tensors((result,)))
        return result


class Kind(Enum):
    """What an operator is to a meter."""

    MOVES = auto()
    """A message, which an axis counts, or a view of memory that is there."""
    ALLOCATES = auto()
    """It gives memory without values."""
    COMPUTES = auto()


_KINDS: dict[int, Kind] = {}


def _kind(func: Any) -> Kind:
    """Remembered by the operator's identity: to hash an operator takes as long as to run many a one on shapes."""
    kind = _KINDS.get(id(func))
    if kind is None:
        moves = func.is_view or func.namespace in ("c10d", "prim")
        allocates = func is HOST_DEVICE_COPY or func.overloadpacket in ONLY_ALLOCATE
        kind = Kind.MOVES if moves else Kind.ALLOCATES if allocates else Kind.COMPUTES
        _KINDS[id(func)] = kind
    return kind


def _allocated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that allocates. Torch makes `new_empty` of a shape in Python, ten times as slowly."""
    if func is not ATEN.new_empty.default:
        return func(*args, **kwargs)
    like, shape = args
    return torch.empty(
        shape, dtype=kwargs.get("dtype") or like.dtype, device=kwargs.get("device") or like.device
    )


# Outcomes. An operator that ran on shapes is not run again on the same shapes: many of torch's operators take longer to
# find the shape of a result than a small kernel takes to compute its values.


def _run(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
) -> "tuple[OperatorWork, Any]":
    """The result of an operator, and its work."""
    signature = _signature(func, args, kwargs) if operands else None
    if known := KNOWN.get(signature):
        return known.work, known.result_of(args)
    result = func(*args, **kwargs)
    work = _work(func, args, kwargs, result, operands)
    if signature is not None:
        outcome = _outcome(func, args, result, operands, work)
        if outcome.repeatable and signature == _signature(func, args, kwargs):
            if len(KNOWN) == MOST_KNOWN:
                KNOWN.clear()
            KNOWN[signature] = outcome
    return work, result


class OperatorWork(NamedTuple):
    """What an operator computes."""

    flops: int
    touched: int
    """The bytes of the operands and of the result."""
    product: ProductShape | None


class OperatorOutcome(NamedTuple):
    """What an operator makes of operands of given shapes."""

    work: OperatorWork
    repeatable: bool
    """Whether the result is told by `fresh` and `several`."""
    fresh: tuple[tuple[Any, ...], ...]
    """The shape, strides and type of each new tensor; none if the operator changed its first operand in place."""
    several: bool
    """Whether the result is a tuple, and not one tensor."""
    nothing: bool
    """Whether the result is None."""

    def result_of(self, args: tuple[Any, ...]) -> Any:
        """The result of the same operator on other operands of the same shapes."""
        if self.nothing:
            return None
        made = [
            torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            for shape, stride, dtype in self.fresh
        ]
        if self.several:
            return tuple(made)
        return made[0] if made else args[0]


KNOWN: "dict[Hashable, OperatorOutcome]" = {}
"""The outcomes of operators on shapes, by their signatures."""
MOST_KNOWN = 1 << 16


def _work(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, operands: list[Tensor]
) -> OperatorWork:
    formula = flop_registry.get(func.overloadpacket)
    flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
    touched = sum([x.nbytes for x in operands]) + sum([x.nbytes for x in _tensors((result,))])
    return OperatorWork(flops, touched, _product(func, args))


def _outcome(
    func: Any, args: tuple[Any, ...], result: Any, operands: list[Tensor], work: OperatorWork
) -> OperatorOutcome:
    results = _tensors((result,))
    in_place = bool(args) and result is args[0]
    several = isinstance(result, tuple) and len(results) == len(result)
    held = {x.untyped_storage()._cdata for x in operands}
    new = all(x.is_meta and x.untyped_storage()._cdata not in held for x in results)
    in_place = in_place and func.overloadpacket is not ATEN.set_  # which takes other memory
    plain = result is None or isinstance(result, Tensor) or several
    return OperatorOutcome(
        work,
        plain and (in_place or new),
        () if in_place else tuple((x.shape, x.stride(), x.dtype) for x in results),
        several,
        result is None,
    )


def _signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """Everything that the shape of a result may depend on; None if an operand has values, as those of the host have."""
    parts = _part((*args, *kwargs.items()))
    return None if parts is None else (id(func), parts)


def _part(thing: Any) -> Hashable | None:
    if isinstance(thing, Tensor):
        return (thing.shape, thing.stride(), thing.dtype) if thing.is_meta else None
    if isinstance(thing, (list, tuple)):
        parts = tuple([_part(each) for each in thing])
        return None if None in parts else parts
    return float if isinstance(thing, float) else (type(thing), thing)


def _tensors(things: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, and in lists among them."""
    tensors: list[Tensor] = []
    for thing in things:
        if isinstance(thing, Tensor):
            tensors.append(thing)
        elif isinstance(thing, (list, tuple)):
            tensors += _tensors(thing)
    return tensors


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
    strategy: Strategy,
    rank: int = 0,
    blocks: Blocks | None = None,
    *,
    steps: int | None = None,
    evaluation: bool = False,
    opened: bool = False,
    chosen: Mapping[str, str] | None = None,
) -> Replayed:
    """Replays an epoch of a rank, or its first steps only; or, instead, one evaluation of the whole graph.

    The epoch is the first one; or, with `opened`, the first that is like all later ones.

    With `blocks` sizes are exact; without, they are expected from the graph's facts. `chosen` are the choices that the
    rank made by measured time; of those that are not given, a replay makes the first.
    """
    world = strategy.spec.ranks
    if not 0 <= rank < world:
        raise UserError(f"rank = {rank}: the ranks of this world are 0 to {world - 1}.")
    assert not dist.is_initialized(), "a rank of a real world cannot replay another"
    tape = Tape()
    device = engine.join_world(Engine.REPLAY, RankPlace(rank, world))
    try:
        grid = Grid.build(strategy.grid, tape, device, wire=strategy.wire)
        shapes = blocks or ShapeBlocks(strategy.facts, strategy.spec.dataset.permutation)
        with Meter(tape) as meter:
            trainer = Trainer(strategy, grid, shapes, chosen)
            for _ in range(strategy.transient_epochs * trainer.steps if opened and not evaluation else 0):
                trainer.step()
            meter.memory.begin_epoch(trainer.ctx.memory.host_shapes())
            tape.start()
            first_of_step = []
            most = 1 if evaluation else trainer.steps
            work = trainer.output if evaluation else trainer.step
            for _ in range(most if steps is None else min(steps, most)):
                first_of_step.append(len(tape.events))
                work()
            entries = tape.stop()
    finally:
        engine.leave_world()
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
    for strategy, blocks in candidate.ready:
        try:
            replays.append((format_grid(strategy.spec.grid), replay(strategy, blocks=blocks)))
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
