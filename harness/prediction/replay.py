"""Replays one rank of a world of any size: runs the code of a strategy on meta tensors, in one process.

The strategy, the training loop, the axes and the ledger are the same as in a run. Tensors are on torch's device `meta`,
and the process group uses torch's backend `fake`, which sends nothing.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib import import_module
from types import NoneType
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from harness.base.device import HOST_DEVICE_COPY
from harness.base.errors import UserError
from harness.comm import engine
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.comm.launchers import RankPlace
from harness.graph.blocks import Blocks
from harness.kernels.attention import ATTEND, ATTEND_COLUMNS_BACKWARD, ATTEND_ROWS_BACKWARD
from harness.kernels.flops import get_flop_formula
from harness.kernels.spmm import PRODUCT, PRODUCT_ADD
from harness.ledger import MOVING, Amounts, Key, TensorName
from harness.ledger.tape import Event, ProductShape, Tape
from harness.runtime.trainer import Trainer
from harness.strategy import Strategy
from harness.strategy.facts import ShapeBlocks

# The meter records the flops and bytes of every operator, and the shapes of products, under the current key of a tape.
#
# Flops come from the formulas of torch and of `harness.kernels.flops`. Operands and results are each counted as read or
# written once; of a tensor from which rows are selected, or in which rows are replaced, only these rows. Messages are
# not kernels: the axes count them.

ATEN = torch.ops.aten
DENSE = {ATEN.mm, ATEN.addmm, ATEN.addmm_}
SELECTED_ROWS = {ATEN.index_select: 2, ATEN.index: 2}
"""Operators that select rows, and how often each byte of their result is read or written."""
CHANGED_ROWS = {ATEN.index_copy_: 2, ATEN.index_copy: 2, ATEN.index_add_: 3, ATEN.index_add: 3}
"""Operators that replace rows or add to them, and how often each byte of the source is read or written."""
ATTENTION = {each.overloadpacket for each in (ATTEND, ATTEND_ROWS_BACKWARD, ATTEND_COLUMNS_BACKWARD)}
"""Operators that read a row of their operands for each entry of a sparse matrix."""
SPARSE = {PRODUCT, PRODUCT_ADD}
ONLY_ALLOCATE = {ATEN.empty, ATEN.empty_strided, ATEN.empty_like, ATEN.new_empty, ATEN.new_empty_strided}


def _match_product(func: Any, args: tuple[Any, ...]) -> ProductShape:
    """Return the product that an operator computes."""
    if func in SPARSE:
        rowptr, col, val, inner, H = args[-5:]  # an operator that adds has one more argument before them
        rows = len(rowptr) - 1
        return ProductShape(rows, inner, H.shape[1], len(val), _format_dtype(val), _format_dtype(col))
    X, Y = [x for x in args if isinstance(x, Tensor)][-2:]
    return ProductShape(X.shape[0], X.shape[1], Y.shape[1], 0, _format_dtype(X), "")


def _format_dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


class _StorageReference(ref[UntypedStorage]):
    """A weak reference to a storage, with its key."""

    __slots__ = ("key",)
    key: int


class LiveBytes:
    """Counts the bytes of live tensors that were created under a meter, and their peak."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._references: dict[int, _StorageReference] = {}

    def track(self, tensors: Iterable[Tensor], *, preexisting: bool = False) -> None:
        """Track tensors until they are freed. With `preexisting`, tensors that are not yet tracked count 0 bytes."""
        sizes = self._sizes
        for x in tensors:
            if not x.is_meta:  # on the host
                continue
            storage = x.untyped_storage()
            key = storage._cdata
            if key in sizes:
                continue
            size = sizes[key] = 0 if preexisting else storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            # Cheaper than `weakref.finalize`, which takes as long as a small operator.
            reference = self._references[key] = _StorageReference(storage, self._release)
            reference.key = key

    def reset_peak(self, on_host: Iterable[Tensor]) -> None:
        """Set the peak to the current bytes, without tensors that the rank keeps on the host."""
        for x in on_host:
            self.now -= self._sizes.get(x.untyped_storage()._cdata, 0)
            self._sizes[x.untyped_storage()._cdata] = 0
        self.peak = self.now

    def exclude(self, x: Tensor) -> None:
        """Stop counting a tensor on the host, the source of a copy to the device."""
        if x.is_meta:
            key = x.untyped_storage()._cdata
            self.now -= self._sizes[key]
            self._sizes[key] = 0

    def _release(self, reference: _StorageReference) -> None:
        del self._references[reference.key]
        self.now -= self._sizes.pop(reference.key)


class Meter(TorchDispatchMode):
    """A context manager that records the operators inside it, including the backward pass, and the peak memory."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self.memory = LiveBytes()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. Otherwise torch imports its compiler, which takes 1.5 seconds, only to exclude this class."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        traits = _TRAITS.get(id(func)) or _describe_operator(func)
        kwargs, kind = kwargs or {}, traits.kind
        if kind is OperatorKind.UNCOUNTED:
            return func(*args, **kwargs)
        operands = _collect_tensors((*args, *kwargs.values()) if kwargs else args)
        # Work that simulates the peers of this rank is not work of the rank in a run.
        is_free = self._tape.is_simulating and operands and func is not HOST_DEVICE_COPY
        if is_free and not any(x.is_meta for x in operands):
            return func(*args, **kwargs)
        self.memory.track(operands, preexisting=True)
        if func is HOST_DEVICE_COPY:
            self.memory.exclude(args[0])
            self._tape.record_copy(args[0].nbytes)
        if kind is OperatorKind.ALLOCATES:
            result = _allocate(func, args, kwargs)
        else:
            work, result = _run_operator(traits, args, kwargs, operands)
            self._tape.record_operator(work.product, work.flops, work.bytes_touched)
        self.memory.track(_collect_tensors((result,)))
        return result


class OperatorKind(Enum):
    """How a meter counts an operator."""

    UNCOUNTED = auto()
    """A message, which the axes count, or a view."""
    ALLOCATES = auto()
    """Allocates uninitialised memory."""
    COMPUTES = auto()


class OperatorTraits(NamedTuple):
    """What a meter needs to know about an operator."""

    func: Any
    kind: OperatorKind
    flops: Callable[..., int] | None
    """Torch's formula of its flops."""
    is_product: bool


_TRAITS: dict[int, OperatorTraits] = {}
"""The traits of operators by id(): hashing an OpOverload costs as much as running it on meta tensors."""


def _describe_operator(func: Any) -> OperatorTraits:
    is_uncounted = func.is_view or func.namespace in ("c10d", "prim")
    allocates = func is HOST_DEVICE_COPY or func.overloadpacket in ONLY_ALLOCATE
    kind = OperatorKind.ALLOCATES if allocates else OperatorKind.COMPUTES
    traits = _TRAITS[id(func)] = OperatorTraits(
        func,
        OperatorKind.UNCOUNTED if is_uncounted else kind,
        get_flop_formula(func),
        func in SPARSE or func.overloadpacket in DENSE,
    )
    return traits


def _allocate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that allocates. Torch implements `new_empty` on meta tensors in Python, ten times slower."""
    if func is not ATEN.new_empty.default:
        return func(*args, **kwargs)
    like, shape = args
    return torch.empty(
        shape, dtype=kwargs.get("dtype") or like.dtype, device=kwargs.get("device") or like.device
    )


# Outcomes. An operator is not run again on the same shapes: many of torch's operators take longer to infer the shape of
# a result than a small kernel takes to compute its values.


def _run_operator(
    traits: OperatorTraits, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
) -> "tuple[OperatorWork, Any]":
    """Run an operator, or reuse a cached outcome, and return its work and result."""
    func = traits.func
    signature = _build_signature(func, args, kwargs) if operands else None
    if signature is not None and (cached := OUTCOMES.get(signature)):
        return cached.work, cached.make_result(args)
    result = func(*args, **kwargs)
    work = _count_work(traits, args, kwargs, result, operands)
    if signature is not None:
        outcome = _describe_outcome(func, args, result, operands, work)
        if outcome.is_repeatable and signature == _build_signature(func, args, kwargs):
            if len(OUTCOMES) == MAX_OUTCOMES:
                OUTCOMES.clear()
            OUTCOMES[signature] = outcome
    return work, result


class OperatorWork(NamedTuple):
    """The work of an operator."""

    flops: int
    bytes_touched: int
    """The bytes of the operands and of the result."""
    product: ProductShape | None


class OperatorOutcome(NamedTuple):
    """The work and the result of an operator on operands of given shapes."""

    work: OperatorWork
    is_repeatable: bool
    """True if the other fields describe the result completely."""
    new_tensors: tuple[tuple[Any, ...], ...]
    """The shape, strides and dtype of each new tensor; empty if the operator changes its first operand in place."""
    is_tuple: bool
    is_none: bool

    def make_result(self, args: tuple[Any, ...]) -> Any:
        """Make the result of the same operator on other operands of the same shapes."""
        if self.is_none:
            return None
        results = [
            torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            for shape, stride, dtype in self.new_tensors
        ]
        if self.is_tuple:
            return tuple(results)
        return results[0] if results else args[0]


OUTCOMES: "dict[Hashable, OperatorOutcome]" = {}
"""The cached outcomes of operators, by their signatures."""
MAX_OUTCOMES = 1 << 16


def _count_work(
    traits: OperatorTraits,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    operands: list[Tensor],
) -> OperatorWork:
    flops = int(traits.flops(*args, **kwargs, out_val=result)) if traits.flops else 0
    touched = _count_bytes(traits.func.overloadpacket, operands, result)
    return OperatorWork(flops, touched, _match_product(traits.func, args) if traits.is_product else None)


def _count_bytes(operator: Any, operands: list[Tensor], result: Any) -> int:
    """Return the bytes that an operator reads and writes."""
    if operator in SELECTED_ROWS:
        return SELECTED_ROWS[operator] * int(result.nbytes) + sum([x.nbytes for x in operands[1:]])
    if operator in CHANGED_ROWS:
        _, index, source = operands
        return index.nbytes + CHANGED_ROWS[operator] * source.nbytes
    results = sum([x.nbytes for x in _collect_tensors((result,))])
    if operator in ATTENTION:
        entries = len(operands[1])
        shares = [
            min(entries / max(x.shape[1], 1), 1.0) if x.dim() > 1 else 1.0 for x in operands
        ]  # heads, rows
        return round(sum(x.nbytes * share for x, share in zip(operands, shares, strict=True))) + results
    return sum([x.nbytes for x in operands]) + results


def _describe_outcome(
    func: Any, args: tuple[Any, ...], result: Any, operands: list[Tensor], work: OperatorWork
) -> OperatorOutcome:
    results = _collect_tensors((result,))
    in_place = bool(args) and result is args[0]
    is_tuple = isinstance(result, tuple) and len(results) == len(result)
    owned = {x.untyped_storage()._cdata for x in operands}
    are_new = all(x.is_meta and x.untyped_storage()._cdata not in owned for x in results)
    in_place = in_place and func.overloadpacket is not ATEN.set_  # set_ replaces the memory
    is_plain = result is None or isinstance(result, Tensor) or is_tuple
    return OperatorOutcome(
        work,
        is_plain and (in_place or are_new),
        () if in_place else tuple((x.shape, x.stride(), x.dtype) for x in results),
        is_tuple,
        result is None,
    )


def _build_signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """Return all that the shape of a result may depend on; None if an operand is on the host and has values."""
    parts = _describe_argument((*args, *kwargs.items()) if kwargs else args)
    return None if parts is None else (id(func), parts)


def _describe_argument(thing: Any) -> Hashable | None:
    kind = type(thing)
    if kind is Tensor or isinstance(thing, Tensor):
        return (thing.shape, thing.stride(), thing.dtype) if thing.is_meta else None
    if kind is tuple or kind is list or isinstance(thing, (list, tuple)):
        parts = list[Hashable]()
        for each in thing:
            part = _describe_argument(each)
            if part is None:
                return None
            parts.append(part)
        return tuple(parts)
    return float if isinstance(thing, float) else (kind, thing)


PLAIN_TYPES = frozenset({int, float, bool, str, NoneType, torch.dtype, torch.device})
"""The types of most arguments that contain no tensor."""


def _collect_tensors(things: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among arguments, including those in nested lists and tuples."""
    tensors: list[Tensor] = []
    for thing in things:
        kind = type(thing)
        if kind is Tensor:  # a type is compared faster than `isinstance` answers
            tensors.append(thing)
        elif kind in PLAIN_TYPES:
            continue
        elif isinstance(thing, Tensor):
            tensors.append(thing)
        elif isinstance(thing, (list, tuple)):
            tensors += _collect_tensors(thing)
    return tensors


@dataclass(frozen=True)
class ReplayedRank:
    """The work of one rank in an epoch, and its memory."""

    rank: int
    events: list[Event]
    """All kernels and calls in issue order."""
    first_of_step: list[int]
    """The index of the first event of each step."""
    entries: dict[Key, Amounts]
    persistent_bytes: dict[TensorName, int]
    peak_bytes: int
    """The peak memory of the rank in an epoch, including activations, gradients, optimizer states and buffers,
    but not what drawing a mini-batch takes."""
    setup_messages: dict[Key, Amounts] = field(default_factory=dict)
    """The messages of the rank before its first epoch, such as rows for a product of A and X that is computed once."""


class ReplayLimit(Protocol):
    """Ends a replay early, by raising an exception."""

    def check(self, events: Sequence[Event], /) -> None:
        """Check the events so far, all of which are complete."""

    def end_step(self, events: Sequence[Event], /) -> None:
        """Check the events at the end of a step."""


def preload_torch() -> None:
    """Import what torch otherwise imports within its first operators on meta tensors. It takes a second, once.

    Within an operator, that import leaves cycles that keep the tensors of its callers until a garbage collection, so
    that the peak memory of the first replay in a process would depend on when that comes.
    """
    import_module("torch._dynamo")


def replay(  # noqa: PLR0913  independent choices, all but two by name
    strategy: Strategy,
    rank: int = 0,
    blocks: Blocks | None = None,
    *,
    steps: int | None = None,
    evaluation: bool = False,
    skip_transient: bool = False,
    chosen: Mapping[str, str] | None = None,
    limit: ReplayLimit | None = None,
) -> ReplayedRank:
    """Replay an epoch of one rank, or one evaluation of the whole graph.

    Args:
        strategy: The strategy, with its spec and the facts of the graph.
        rank: The rank to replay.
        blocks: The blocks of the graph. Without them, sizes are expected values from the facts of the graph.
        steps: The number of steps to replay; None for the whole epoch.
        evaluation: Replay an evaluation instead of training.
        skip_transient: Replay the first epoch that is like all later ones, instead of the first epoch.
        chosen: The choices that the rank made by measured time. For each missing choice, the first variant is used.
        limit: Checked during the replay. It may raise an exception to end the replay.
    """
    world = strategy.spec.ranks
    if not 0 <= rank < world:
        raise UserError(f"rank = {rank} is out of range: the ranks of this world are 0 to {world - 1}.")
    assert not dist.is_initialized(), "cannot replay a rank while torch.distributed is initialized"
    preload_torch()
    tape = Tape()
    device = engine.join_world(Engine.REPLAY, RankPlace(rank, world))
    try:
        grid = Grid.build(strategy.grid, tape, device, wire=strategy.wire)
        shapes = blocks or ShapeBlocks(strategy.facts, strategy.spec.dataset.permutation)
        with Meter(tape) as meter:
            tape.start()
            trainer = Trainer(strategy, grid, shapes, chosen)
            setup_messages = {key: amounts for key, amounts in tape.stop().items() if key.op in MOVING}
            if skip_transient and not evaluation:
                for _ in range(strategy.transient_epochs * trainer.steps):
                    trainer.step()
            meter.memory.reset_peak(trainer.ctx.memory.host_shapes())
            tape.start()
            tape.watch = limit.check if limit else None
            first_of_step = []
            total = 1 if evaluation else trainer.steps
            run_step = trainer.output if evaluation else trainer.step
            for _ in range(total if steps is None else min(steps, total)):
                first_of_step.append(len(tape.events))
                run_step()
                if limit:
                    limit.end_step(tape.events)
            entries = tape.stop()
    finally:
        engine.leave_world()
    persistent_bytes = trainer.ctx.memory.persistent_bytes()
    return ReplayedRank(
        rank, tape.events, first_of_step, entries, persistent_bytes, meter.memory.peak, setup_messages
    )
