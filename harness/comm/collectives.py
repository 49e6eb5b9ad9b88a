"""Wrappers of the collectives of torch.distributed, which no other module calls.

They pass only contiguous buffers (gloo ignores strides and is silently wrong), do not pad, and accept empty buffers.
They do not depend on grids or ledgers.

With `ring`, a call is implemented with messages (`harness.comm.ring_collectives`) instead of the library's collective.

Every function returns a `StartedCall`: the works to wait for, a function that then returns the result, and the bytes of
the full buffer in the dtype that is sent.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
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
    """Return the rank of this process in its world."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks; one if no world was joined."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Reduction(StrEnum):
    """The operation of a reduction."""

    SUM = "sum"
    MAX = "max"


SMALL_REDUCTION, SMALL_GATHER = 1 << 16, 1 << 20
"""The most bytes received per member for which an all-to-all replaces gloo's all-reduce or all-gather."""

_OPS = {Reduction.SUM: dist.ReduceOp.SUM, Reduction.MAX: dist.ReduceOp.MAX}


class StartedCall(NamedTuple, Generic[T]):
    """A call that was issued to the library."""

    works: Works
    """The works to wait for; empty for a synchronous call."""
    result: Callable[[], T]
    """Returns the result, after all works have completed."""
    bytes: int


class ReceiveBuffer(NamedTuple):
    """A contiguous buffer in the dtype that is sent, and a function that converts it to the result."""

    buffer: Tensor
    result: Callable[[], Tensor]


def all_reduce(
    group: Group, x: Tensor, op: Reduction, wire: torch.dtype | None, *, later: bool
) -> StartedCall[Tensor]:
    """Reduce x in place, whatever its strides.

    On gloo, small tensors use one all-to-all: the library's ring has two rounds per member and takes about twice the
    time on one machine (benchmarks/collectives.py).
    """
    buffer = _to_wire(x, wire)
    if buffer.dtype == x.dtype and is_small_reduction(group, buffer):
        return all_reduce_by_exchange(group, x, buffer, op, later=later)
    works = _issue(buffer, partial(dist.all_reduce, buffer, _OPS[op]), group, later=later)
    return StartedCall(works, lambda: x if buffer is x else x.copy_(buffer), buffer.nbytes)


def is_small_reduction(group: Group, buffer: Tensor) -> bool:
    """Return True if an all-to-all is faster than the library's ring. For a single element the ring has one round."""
    return buffer.numel() > 1 and _is_gloo_ring(group) and group.size() * buffer.nbytes <= SMALL_REDUCTION


def _is_gloo_ring(group: Group) -> bool:
    """Return True if the library's collectives are rings of several rounds."""
    return group.size() > 2 and dist.get_backend(group) == "gloo"


def all_reduce_by_exchange(
    group: Group, x: Tensor, buffer: Tensor, op: Reduction, *, later: bool
) -> StartedCall[Tensor]:
    """Send the whole buffer to every member; each member reduces what it receives in rank order."""
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
    """Return the members' rows, concatenated.

    On gloo, small buffers and uneven sizes (which its all-gather rejects) use one all-to-all, in which every member
    sends the same rows to all. Padding to the longest would cost up to four times as much. Concurrent broadcasts from
    all members need no copies and take 10 to 50 % less time at 16 MiB, but up to twice the time for small calls on four
    ranks (benchmarks/collectives.py). NCCL groups such broadcasts into one call.
    """
    piece = _to_wire(x, wire)
    buffer, get_result = make_receive_buffer((sum(sizes), *x.shape[1:]), x.dtype, x.device, wire, out)
    if ring:
        blocks = buffer.split(list(sizes))
        blocks[group.rank()].copy_(piece)
        return StartedCall(ring.gather(blocks, later=later), get_result, buffer.nbytes)
    if len(set(sizes)) == 1 and not (_is_gloo_ring(group) and buffer.nbytes <= SMALL_GATHER):
        works = _issue(buffer, partial(_all_gather_single, buffer, piece), group, later=later)
    elif dist.get_backend(group) == "nccl":
        blocks = list(buffer.split(list(sizes)))
        works = _issue(buffer, partial(dist.all_gather, blocks, piece), group, later=later)
    else:
        copies, same = torch.cat([piece] * len(sizes)), [len(piece)] * len(sizes)
        works = _all_to_all(group, copies, same, buffer, sizes, later, None)
    return StartedCall(works, get_result, buffer.nbytes)


def reduce_scatter(
    group: Group,
    x: Tensor,
    sizes: Sizes,
    wire: torch.dtype | None,
    *,
    later: bool,
    ring: RingCollectives | None = None,
) -> StartedCall[Tensor]:
    """Return this rank's rows of the sum of x over all members."""
    own = (sizes[group.rank()], *x.shape[1:])
    if dist.get_backend(group) != "gloo":
        return reduce_scatter_by_library(group, x, own, sizes, wire, later=later)
    return reduce_scatter_by_exchange(group, x, own, sizes, wire, later=later, ring=ring)


def reduce_scatter_by_library(
    group: Group, x: Tensor, own: tuple[int, ...], sizes: Sizes, wire: torch.dtype | None, *, later: bool
) -> StartedCall[Tensor]:
    """Call the library, for which NCCL groups reductions to each member into one call if sizes are uneven."""
    whole = _to_wire(x, wire)
    buffer, get_result = make_receive_buffer(own, x.dtype, x.device, wire, None)
    call = partial(_reduce_scatter_single, buffer, whole)
    if len(set(sizes)) > 1:
        call = partial(dist.reduce_scatter, buffer, list(whole.split(list(sizes))))
    return StartedCall(_issue(buffer, call, group, later=later), get_result, whole.nbytes)


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
    """Send every member its rows; each member sums what it receives in rank order and in full precision.

    Used on gloo, whose reduce-scatter costs a whole all-reduce: the all-to-all takes a quarter to three quarters of
    that time (benchmarks/collectives.py).
    """
    whole, members = _to_wire(x, wire), len(sizes)
    parts = torch.empty((members, *own), dtype=whole.dtype, device=x.device)
    rows = parts.view(members * own[0], *own[1:])
    works = _all_to_all(group, whole, sizes, rows, [own[0]] * members, later, ring)
    return StartedCall(works, lambda: parts.sum(dim=0, dtype=x.dtype), whole.nbytes)


def broadcast_send(
    group: Group, x: Tensor, wire: torch.dtype | None, *, later: bool, ring: RingCollectives | None = None
) -> StartedCall[Tensor]:
    """Broadcast x as the root. Returns x, or with a narrower wire dtype, x as the others receive it."""
    buffer = _to_wire(x, wire)
    works = _broadcast(group, group.rank(), buffer, later, ring)
    same = buffer.dtype == x.dtype
    return StartedCall(works, lambda: x if same else buffer.to(x.dtype), buffer.nbytes)


def broadcast_receive(
    group: Group, root: int, receive: ReceiveBuffer, *, later: bool, ring: RingCollectives | None = None
) -> StartedCall[Tensor]:
    """Receive the root's tensor."""
    works = _broadcast(group, root, receive.buffer, later, ring)
    return StartedCall(works, receive.result, receive.buffer.nbytes)


def _broadcast(group: Group, root: int, buffer: Tensor, later: bool, ring: RingCollectives | None) -> Works:
    if ring:
        return ring.broadcast(root, buffer, later=later)
    return _issue(buffer, partial(dist.broadcast, buffer, group_src=root), group, later=later)


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
    """Send rows of x to each member and return the rows from each, both in the order of the members."""
    packed = _to_wire(x, wire)
    buffer, get_result = make_receive_buffer((sum(receive), *x.shape[1:]), x.dtype, x.device, wire, None)
    works = _all_to_all(group, packed, send, buffer, receive, later, ring)
    return StartedCall(works, get_result, buffer.nbytes)


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
    return _issue(into, partial(dist.all_to_all_single, into, x, receive, send), group, later=later)


def exchange(
    group: Group,
    sends: Mapping[int, Tensor],
    receives: Mapping[int, ReceiveBuffer],
    wire: torch.dtype | None,
    tag: int,
) -> StartedCall[dict[int, Tensor]]:
    """Exchange messages with other members, all at once, so that no order of sends and receives can deadlock."""
    calls: list[tuple[Callable[..., dist.Work | None], Tensor, int]] = [
        (dist.irecv, receive.buffer, peer) for peer, receive in receives.items()
    ]
    calls += [(dist.isend, _to_wire(x, wire), peer) for peer, x in sends.items()]
    works: Works = ()
    if not calls[0][1].is_meta:  # a replay sends nothing
        works = dist.batch_isend_irecv(
            [dist.P2POp(op, x, group=group, tag=tag, group_peer=peer) for op, x, peer in calls]
        )
    moved = sum(x.nbytes for _, x, _ in calls)
    return StartedCall(works, lambda: {peer: receive.result() for peer, receive in receives.items()}, moved)


def gather_bytes(group: Group, data: bytes) -> list[bytes]:
    """Return the bytes of every member, equally many of each."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    everyone = own.new_empty(group.size() * len(data))
    _all_gather_single(everyone, own, group=group)
    return [part.numpy().tobytes() for part in everyone.split(len(data))]


def barrier(group: Group) -> None:
    """Wait until every member has called."""
    dist.barrier(group=group)


def _to_wire(x: Tensor, wire: torch.dtype | None) -> Tensor:
    """Return x contiguous and in the wire dtype, without a copy if it is already."""
    return (x if wire is None else x.to(wire)).contiguous()


def make_receive_buffer(
    shape: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    wire: torch.dtype | None = None,
    out: Tensor | None = None,
) -> ReceiveBuffer:
    """Return a buffer for a tensor of this shape and dtype, in `out` if possible."""
    wire = wire or dtype
    if out is None:
        buffer = torch.empty(tuple(shape), dtype=wire, device=device)
        return ReceiveBuffer(buffer, lambda: buffer if wire == dtype else buffer.to(dtype))
    assert out.shape == tuple(shape) and out.dtype == dtype, (out.shape, shape, out.dtype, dtype)
    if out.is_contiguous() and wire == dtype:
        return ReceiveBuffer(out, lambda: out)
    buffer = torch.empty(tuple(shape), dtype=wire, device=device)
    return ReceiveBuffer(buffer, lambda: out.copy_(buffer))


def _issue(buffer: Tensor, call: Callable[..., dist.Work | None], group: Group, *, later: bool) -> Works:
    """Issue a collective of the library on a buffer. A replay, whose buffers are meta tensors, sends nothing."""
    if buffer.is_meta:
        return ()
    work = call(group=group, async_op=later)
    return () if work is None else (work,)
