"""The calls to torch.distributed, one function each: buffers in, a started call out.

No other file names a collective of the library. The functions hand over contiguous buffers only (gloo ignores strides
and is silently wrong), pad nothing, and work on empty buffers. They know nothing of grids or ledgers.

With `ring` a call is composed of messages (`harness.comm.ring_collectives`) instead of being the library's collective.

Every function returns a `Started`: the works to wait for, a function that then gives the result, and the bytes of the
full buffer in the type that travels.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from harness.comm.ring_collectives import RingCollectives, RingWork

T = TypeVar("T")
Group = dist.ProcessGroup
Sizes = Sequence[int]
Works = Sequence[dist.Work | RingWork]

# torch 2.13 renamed two collectives and warns on the old names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def rank() -> int:
    """The rank of this process in its world."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of ranks; one if no world was joined."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Reduction(StrEnum):
    """The operation of a reduction."""

    SUM = "sum"
    MAX = "max"


SMALL_REDUCTION, SMALL_GATHER = 1 << 16, 1 << 20
"""The most bytes that each member receives where an exchange takes the place of gloo's reduction or gather."""

_OPS = {Reduction.SUM: dist.ReduceOp.SUM, Reduction.MAX: dist.ReduceOp.MAX}


class StartedCall(NamedTuple, Generic[T]):
    """A call that was handed to the library."""

    works: Works
    """The works to wait for; empty if the library has waited already."""
    result: Callable[[], T]
    """Returns the result, once all works were waited for."""
    bytes: int


class ReceiveBuffer(NamedTuple):
    """A contiguous buffer in the type that travels, and a function that gives the result from it."""

    buffer: Tensor
    result: Callable[[], Tensor]


def all_reduce(
    group: Group, x: Tensor, op: Reduction, wire: torch.dtype | None, *, later: bool
) -> StartedCall[Tensor]:
    """Reduces in place: x holds the result afterwards, whatever its strides.

    Few numbers travel on gloo as one exchange: the library's ring has as many rounds as members, twice over, and takes
    about twice the time on one machine (benchmarks/collectives.py).
    """
    buffer = _to_wire(x, wire)
    if buffer.dtype == x.dtype and is_small_reduction(group, buffer):
        return all_reduce_by_exchange(group, x, buffer, op, later=later)
    work = dist.all_reduce(buffer, _OPS[op], group=group, async_op=later)
    return StartedCall(_as_works(work), lambda: x if buffer is x else x.copy_(buffer), buffer.nbytes)


def is_small_reduction(group: Group, buffer: Tensor) -> bool:
    """True if an exchange is faster than the library's ring, which has one round for one number."""
    return buffer.numel() > 1 and _is_gloo_ring(group) and group.size() * buffer.nbytes <= SMALL_REDUCTION


def _is_gloo_ring(group: Group) -> bool:
    """True if the library's collectives are rings of several rounds."""
    return group.size() > 2 and dist.get_backend(group) == "gloo"


def all_reduce_by_exchange(
    group: Group, x: Tensor, buffer: Tensor, op: Reduction, *, later: bool
) -> StartedCall[Tensor]:
    """Sends the whole buffer to every member; each member reduces what arrives, in rank order."""
    sizes = [buffer.numel()] * group.size()
    parts = buffer.new_empty((len(sizes), *buffer.shape))
    works = _all_to_all(group, buffer.view(-1).repeat(len(sizes)), sizes, parts.view(-1), sizes, later, None)
    reduce = torch.sum if op is Reduction.SUM else torch.amax
    return StartedCall(works, lambda: x.copy_(reduce(parts, dim=0)), buffer.nbytes)


def all_gather(
    group: Group,
    x: Tensor,
    sizes: Sizes,
    wire: torch.dtype | None,
    out: Tensor | None,
    *,
    later: bool,
    ring: RingCollectives | None = None,
) -> StartedCall[Tensor]:
    """Returns the members' rows, one after the other.

    Small buffers and uneven sizes, which gloo's own all-gather refuses, travel as one all-to-all in which every member
    sends the same rows to all. Padding to the longest costs up to four times as much. One broadcast from each member,
    all at once, needs no copies and takes a tenth to a half less time at 16 MiB, but up to twice the time of small
    calls on four ranks, and as many library calls as members (benchmarks/collectives.py). NCCL issues these broadcasts
    together as one call.
    """
    piece = _to_wire(x, wire)
    buffer, land = make_receive_buffer((sum(sizes), *x.shape[1:]), x.dtype, x.device, wire, out)
    if ring:
        blocks = buffer.split(list(sizes))
        blocks[group.rank()].copy_(piece)
        return StartedCall(ring.gather(blocks, later=later), land, buffer.nbytes)
    if len(set(sizes)) == 1 and not (_is_gloo_ring(group) and buffer.nbytes <= SMALL_GATHER):
        works = _as_works(_all_gather_single(buffer, piece, group=group, async_op=later))
    elif dist.get_backend(group) == "nccl":
        works = _as_works(
            dist.all_gather(list(buffer.split(list(sizes))), piece, group=group, async_op=later)
        )
    else:
        copies, same = torch.cat([piece] * len(sizes)), [len(piece)] * len(sizes)
        works = _all_to_all(group, copies, same, buffer, sizes, later, None)
    return StartedCall(works, land, buffer.nbytes)


def reduce_scatter(
    group: Group,
    x: Tensor,
    sizes: Sizes,
    wire: torch.dtype | None,
    *,
    later: bool,
    ring: RingCollectives | None = None,
) -> StartedCall[Tensor]:
    """Returns this rank's rows of the sum of every member's x."""
    own = (sizes[group.rank()], *x.shape[1:])
    if len(set(sizes)) == 1 and dist.get_backend(group) != "gloo":
        return reduce_scatter_by_library(group, x, own, wire, later=later)
    return reduce_scatter_by_exchange(group, x, own, sizes, wire, later=later, ring=ring)


def reduce_scatter_by_library(
    group: Group, x: Tensor, own: tuple[int, ...], wire: torch.dtype | None, *, later: bool
) -> StartedCall[Tensor]:
    whole = _to_wire(x, wire)
    buffer, land = make_receive_buffer(own, x.dtype, x.device, wire, None)
    work = _reduce_scatter_single(buffer, whole, group=group, async_op=later)
    return StartedCall(_as_works(work), land, whole.nbytes)


def reduce_scatter_by_exchange(
    group: Group,
    x: Tensor,
    own: tuple[int, ...],
    sizes: Sizes,
    wire: torch.dtype | None,
    *,
    later: bool,
    ring: RingCollectives | None = None,
) -> StartedCall[Tensor]:
    """Sends every member its rows; each member sums what arrives, in rank order and in full precision.

    This serves uneven sizes, and all calls on gloo, whose own reduce-scatter costs a whole all-reduce: the exchange
    takes a quarter to three quarters of that time (benchmarks/collectives.py).
    """
    whole, members = _to_wire(x, wire), len(sizes)
    parts = torch.empty((members, *own), dtype=whole.dtype, device=x.device)
    rows = parts.view(members * own[0], *own[1:])
    works = _all_to_all(group, whole, sizes, rows, [own[0]] * members, later, ring)
    return StartedCall(works, lambda: parts.sum(dim=0, dtype=x.dtype), whole.nbytes)


def broadcast_send(
    group: Group, x: Tensor, wire: torch.dtype | None, *, later: bool, ring: RingCollectives | None = None
) -> StartedCall[Tensor]:
    """Returns x; if a narrower type travels, x as the others receive it."""
    buffer = _to_wire(x, wire)
    works = _broadcast(group, group.rank(), buffer, later, ring)
    same = buffer.dtype == x.dtype
    return StartedCall(works, lambda: x if same else buffer.to(x.dtype), buffer.nbytes)


def broadcast_receive(
    group: Group, root: int, landing: ReceiveBuffer, *, later: bool, ring: RingCollectives | None = None
) -> StartedCall[Tensor]:
    """Returns the root's tensor."""
    works = _broadcast(group, root, landing.buffer, later, ring)
    return StartedCall(works, landing.result, landing.buffer.nbytes)


def _broadcast(group: Group, root: int, buffer: Tensor, later: bool, ring: RingCollectives | None) -> Works:
    if ring:
        return ring.broadcast(root, buffer, later=later)
    return _as_works(dist.broadcast(buffer, group=group, group_src=root, async_op=later))


def all_to_all(
    group: Group,
    x: Tensor,
    send: Sizes,
    receive: Sizes,
    wire: torch.dtype | None,
    *,
    later: bool,
    ring: RingCollectives | None = None,
) -> StartedCall[Tensor]:
    """Sends rows of x to each member; the result has the rows from each member, both in the members' order."""
    packed = _to_wire(x, wire)
    buffer, land = make_receive_buffer((sum(receive), *x.shape[1:]), x.dtype, x.device, wire, None)
    works = _all_to_all(group, packed, send, buffer, receive, later, ring)
    return StartedCall(works, land, buffer.nbytes)


def _all_to_all(
    group: Group,
    x: Tensor,
    send: Sizes,
    into: Tensor,
    receive: Sizes,
    later: bool,
    ring: RingCollectives | None,
) -> Works:
    send, receive = list(send), list(receive)
    if ring:
        return ring.exchange(x.split(send), into.split(receive), later=later)
    return _as_works(dist.all_to_all_single(into, x, receive, send, group=group, async_op=later))


def exchange(
    group: Group,
    sends: Mapping[int, Tensor],
    receives: Mapping[int, ReceiveBuffer],
    wire: torch.dtype | None,
    tag: int,
) -> StartedCall[dict[int, Tensor]]:
    """Exchanges messages with other members, all under way at once: no order of sends and receives can deadlock."""
    calls = [
        dist.P2POp(dist.irecv, landing.buffer, group=group, tag=tag, group_peer=peer)
        for peer, landing in receives.items()
    ] + [
        dist.P2POp(dist.isend, _to_wire(x, wire), group=group, tag=tag, group_peer=peer)
        for peer, x in sends.items()
    ]
    works = _start_all(calls)
    moved = sum(call.tensor.nbytes for call in calls)
    return StartedCall(works, lambda: {peer: landing.result() for peer, landing in receives.items()}, moved)


def barrier(group: Group) -> None:
    """Returns when every member has called."""
    dist.barrier(group=group)


def _to_wire(x: Tensor, wire: torch.dtype | None) -> Tensor:
    """x as it travels: contiguous and in the type of the wire. A tensor that is so already is not copied."""
    return x.to(wire or x.dtype).contiguous()


def make_receive_buffer(
    shape: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    wire: torch.dtype | None = None,
    out: Tensor | None = None,
) -> ReceiveBuffer:
    """A buffer for a tensor of this shape and type, in `out` if given."""
    wire = wire or dtype
    if out is None:
        buffer = torch.empty(tuple(shape), dtype=wire, device=device)
        return ReceiveBuffer(buffer, lambda: buffer.to(dtype))
    assert out.shape == tuple(shape) and out.dtype == dtype, (out.shape, shape, out.dtype, dtype)
    if out.is_contiguous() and wire == dtype:
        return ReceiveBuffer(out, lambda: out)
    buffer = torch.empty(tuple(shape), dtype=wire, device=device)
    return ReceiveBuffer(buffer, lambda: out.copy_(buffer))


def _start_all(calls: list[dist.P2POp]) -> list[dist.Work]:
    if calls[
        0
    ].tensor.is_meta:  # the library's batches look for the backend of a device, and shapes are on none
        return [call.op(call.tensor, call.peer, call.group, call.tag) for call in calls]
    return dist.batch_isend_irecv(calls)


def _as_works(work: dist.Work | None) -> Works:
    return () if work is None else (work,)
