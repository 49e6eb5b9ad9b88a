"""NCCL between ranks without GPUs: gloo carries the messages, and NCCL's rules are law.

Refused are tensors of the host, strides, types that NCCL lacks, sizes or types that differ between members, another
order of calls, and messages between two members that are received in another order than they were sent. A call is work
on a stream of its group's own: who writes what is sent, or reads what arrives, on a stream that did not wait for the
call makes a race, and `fake_cuda.cpp` refuses it. Until then the bytes of the result are ones, which are NaN.

A call that a member never makes ends the others as torch's watchdog does: with a word on stderr, by SIGABRT.
"""

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from fake_cuda import loaded, place
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

TYPES = {
    dtype: number
    for number, dtype in enumerate(
        (
            *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
            *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
        )
    )
}
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "all_gather_uneven",
    "reduce_scatter",
    "reduce_scatter_uneven",
    "all_to_all",
    "broadcast",
    "barrier",
)
SIGNATURE = 6


class NcclError(RuntimeError):
    """A call that NCCL refuses, or that would hang."""


def unseen() -> Any:
    """A context in which the harness does not see the work of this library as kernels of a rank."""
    return _disable_current_modes()


class Issued(NamedTuple):
    """The tensors of a call in the host's memory, and the event after its work on a device."""

    tensors: list[Tensor]
    done: Any


class Later(dist.Work):
    """A call under way: the results are put into the members' buffers when it is waited for."""

    def __init__(self, done: Any, land: Callable[[], None], buffers: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._done = done
        self.before_wait: Callable[[], None] = lambda: None
        self._land: Callable[[], None] | None = land
        with unseen():
            for buffer in buffers:
                buffer.view(-1).view(torch.uint8).fill_(0xFF)

    def wait(self, timeout: Any = None) -> bool:
        """The host does not wait, but the current stream does."""
        self.before_wait()
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
        land, self._land = self._land, None
        if land is not None:
            with unseen():
                land()
        return True

    def is_completed(self) -> bool:
        return self._land is None

    def get_future(self) -> Any:
        """The future of a call whose end is not seen: as soon as it is issued."""
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def hidden(done: Any, buffers: Sequence[Tensor], carry: Callable[[Sequence[Tensor]], None]) -> Later:
    """Carries the messages now into copies of the buffers, which receive the copies' values when waited for."""
    with unseen():
        copies = [buffer.clone() for buffer in buffers]
        carry(copies)

    def land() -> None:
        for buffer, copy in zip(buffers, copies, strict=True):
            buffer.copy_(copy)

    return Later(done, land, buffers)


Call = Callable[..., Later]


def captured(call: Call) -> Call:
    """A call that a graph issues again in every replay, in which its wait is a node of its own."""

    @wraps(call)
    def issue(group: "FakeNccl", *operands: Any, **options: Any) -> Later:
        if not loaded().is_capturing():
            return call(group, *operands, **options)
        loaded().will_write([x for x in tree_leaves(operands) if isinstance(x, Tensor)])
        held = tree_map_only(Tensor, loaded().Held, operands)
        under_way: list[Later] = []

        def reissue() -> None:
            under_way[:] = [call(group, *tree_map_only(loaded().Held, lambda x: x.tensor(), held), **options)]

        loaded().add_node(reissue)
        work = call(group, *operands, **options)
        work.before_wait = lambda: loaded().add_node(lambda: under_way.pop().wait())
        return work

    return issue


class FakeNccl(dist.ProcessGroup):
    """A process group whose backend says that it is NCCL.

    Gloo receives copies only: its threads keep a message for a moment after the call, and the memory of a tensor that
    the caller has freed must be free at once, as on a GPU.
    """

    class Options:
        """The options that torch sets on NCCL's groups."""

        is_high_priority_stream = False
        _timeout: Any = None
        global_ranks_in_group: Any = None
        group_name: Any = None
        config = None

    supports_splitting = True  # which torch asks of a backend that is bound to a device
    supports_coalescing = supports_time_estimate = False
    bound: torch.device | None = None
    """The device of the world's group, as it was joined."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._store = rank, size, store
        told = os.environ.get("FAKE_NCCL_SECONDS")
        self._timeout = timedelta(seconds=float(told)) if told else options._timeout or timedelta(minutes=10)
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, self._timeout)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._register_backend(torch.device("cuda"), kind, self._gloo)  # which keeps the name of the group
        self._stream = torch.cuda.Stream()
        self._calls, self._operation = 0, "none"
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    # What torch asks of a backend.

    def _get_backend(self, device: torch.device) -> "FakeNccl":
        return self

    def _set_sequence_number_for_group(self) -> None: ...

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.bound = device

    def getBackendName(self) -> str:
        return "nccl"

    def name(self) -> str:
        return "nccl"

    # The rules.

    def _issued(self, read: Sequence[Tensor] = (), written: Sequence[Tensor] = ()) -> Issued:
        """The tensors that a call reads and then those that it writes, if NCCL accepts them.

        The call's work follows on what was issued to the current stream, and keeps the memory until it is done.
        """
        for x in (*read, *written):
            if x.device.type != "cuda":
                raise NcclError(f"No backend type associated with device type {x.device.type} (at {place()})")
            if self.bound not in (None, x.device):
                raise NcclError(f"Tensor found on device {x.device} but backend constrained to {self.bound}")
            if not x.is_contiguous():
                raise NcclError(f"Tensors must be contiguous (at {place()})")
            if x.dtype not in TYPES:
                raise NcclError(f"Unconvertible NCCL type {x.dtype} (at {place()})")
        self._stream.wait_stream(torch.cuda.current_stream())
        with self._stream:
            loaded().touch("a call to other ranks", read, written, True)
        return Issued([loaded().host(x) for x in (*read, *written)], self._stream.record_event())

    def _agree(self, operation: str, *numbers: int, sizes: Sequence[int] = ()) -> list[list[int]]:
        """All members issue the same calls in the same order, of the same type and size.

        Returns the sizes that each member gives, which may differ: at most one for each member.
        """
        self._calls, self._operation = self._calls + 1, operation
        said = [self._calls, OPERATIONS.index(operation), *map(int, numbers)]
        said += [0] * (SIGNATURE - len(said))
        told = self._told([*said, *sizes, *[0] * (self._size - len(sizes))])
        said_by_all = [each[:SIGNATURE] for each in told]
        if any(other != said for other in said_by_all):
            raise NcclError(f"members disagree on {operation} at {place()}: {said_by_all}")
        return [each[SIGNATURE : SIGNATURE + len(sizes)] for each in told]

    def _told(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every member."""
        with unseen():
            mine = torch.tensor(numbers, dtype=torch.int64)
            everyone = [torch.empty_like(mine) for _ in range(self._size)]
            self._wait(self._gloo.allgather([everyone], [mine]))
            return [each.tolist() for each in everyone]

    # Collectives.

    @captured
    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Later:
        (x,), done = self._issued(written=tensors)
        self._agree("all_reduce", TYPES[x.dtype], x.numel())
        options = dist.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        return hidden(done, [x], lambda copies: self._wait(self._gloo.allreduce(list(copies), options)))

    @captured
    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Later:
        is_root = opts.rootRank == self._rank
        (x,), done = self._issued(read=tensors) if is_root else self._issued(written=tensors)
        self._agree("broadcast", TYPES[x.dtype], x.numel(), opts.rootRank)
        if is_root:
            with unseen():
                self._gloo.broadcast([x.clone()], opts).wait()
            return Later(done, lambda: None)
        return hidden(done, [x], lambda copies: self._wait(self._gloo.broadcast(list(copies), opts)))

    @captured
    def _allgather_base(self, out: Tensor, x: Tensor, opts: Any = None) -> Later:
        if out.dtype != x.dtype:
            raise NcclError("output tensor must have the same type as input tensor")
        if out.numel() != x.numel() * self._size:
            raise NcclError("output tensor size must be equal to world_size times input tensor size")
        (x, out), done = self._issued([x], [out])
        self._agree("all_gather", TYPES[x.dtype], x.numel())
        with unseen():
            own = x.view(-1).clone()  # it may be a part of the result

        def carry(copies: Sequence[Tensor]) -> None:
            if own.numel():
                self._wait(self._gloo.allgather([list(copies[0].view(-1).split(own.numel()))], [own]))

        return hidden(done, [out], carry)

    all_gather_single = _allgather_base

    @captured
    def allgather(self, outs: Sequence[Sequence[Tensor]], xs: Sequence[Tensor], opts: Any = None) -> Later:
        """Uneven sizes are broadcasts from each member; every member knows all sizes."""
        (x, *parts), done = self._issued(xs, *outs)
        expected = [part.numel() for part in parts]
        told = self._agree("all_gather_uneven", TYPES[x.dtype], sizes=expected)
        if any(each != expected for each in told) or x.numel() != expected[self._rank]:
            raise NcclError(f"all_gather at {place()}: a member expects other sizes than {expected}")
        with unseen():
            own = x.view(-1).clone()  # it may be a part of the result

        def carry(copies: Sequence[Tensor]) -> None:
            for root, copy in enumerate(copies):
                if root == self._rank:
                    copy.view(-1).copy_(own)
                options = dist.BroadcastOptions()
                options.rootRank = root
                self._wait(self._gloo.broadcast([copy], options))

        return hidden(done, parts, carry)

    @captured
    def _reduce_scatter_base(self, out: Tensor, x: Tensor, opts: Any = None) -> Later:
        if out.dtype != x.dtype or x.numel() != out.numel() * self._size:
            raise NcclError("input tensor must be the same size as output size times world size")
        (x, out), done = self._issued([x], [out])
        self._agree("reduce_scatter", TYPES[x.dtype], x.numel())
        with unseen():
            whole, count = x.view(-1).clone(), out.numel()

        def carry(copies: Sequence[Tensor]) -> None:
            self._wait(self._gloo.allreduce([whole], dist.AllreduceOptions()))
            copies[0].view(-1).copy_(whole[self._rank * count : (self._rank + 1) * count])

        return hidden(done, [out], carry)

    reduce_scatter_single = _reduce_scatter_base

    @captured
    def reduce_scatter(
        self, outs: Sequence[Tensor], xs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Later:
        """Uneven sizes are reductions to each member; every member knows all sizes."""
        (*parts, out), done = self._issued(xs[0], outs)
        expected = [part.numel() for part in parts]
        told = self._agree("reduce_scatter_uneven", TYPES[out.dtype], sizes=expected)
        if any(each != expected for each in told) or out.numel() != expected[self._rank]:
            raise NcclError(f"reduce_scatter at {place()}: a member expects other sizes than {expected}")
        with unseen():
            whole = torch.cat([part.reshape(-1) for part in parts])

        def carry(copies: Sequence[Tensor]) -> None:
            self._wait(self._gloo.allreduce([whole], dist.AllreduceOptions()))
            copies[0].view(-1).copy_(whole.split(expected)[self._rank])

        return hidden(done, [out], carry)

    @captured
    def alltoall_base(
        self, out: Tensor, x: Tensor, receive: Sequence[int], send: Sequence[int], opts: Any = None
    ) -> Later:
        if out.dtype != x.dtype:
            raise NcclError("Tensors are not equal in data type")
        (x, out), done = self._issued([x], [out])
        send = list(send) or [len(x) // self._size] * self._size
        receive = list(receive) or [len(out) // self._size] * self._size
        arriving = [each[self._rank] for each in self._agree("all_to_all", TYPES[x.dtype], sizes=send)]
        if arriving != receive:
            raise NcclError(f"all_to_all at {place()}: sent are {arriving} rows, received {receive}")

        with unseen():
            sent = x.clone()

        def carry(copies: Sequence[Tensor]) -> None:
            self._wait(self._gloo.alltoall_base(copies[0], sent, receive, send, dist.AllToAllOptions()))

        return hidden(done, [out], carry)

    all_to_all_single = alltoall_base

    @captured
    def barrier(self, opts: Any = None) -> Later:
        self._agree("barrier")
        return Later(None, lambda: None)

    # Messages between two members match in the order of their calls: NCCL has no tags.

    @captured
    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> Later:
        (x,), done = self._issued(read=tensors)
        number = self._sent[to] = self._sent.get(to, 0) + 1
        self._store.set(f"message/{self._rank}/{to}/{number}", _described(x, tag))
        with unseen():
            copy = x.clone()
        work = self._gloo.send([copy], to, number)
        return Later(done, lambda: self._wait(work))

    @captured
    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Later:
        (x,), done = self._issued(written=tensors)
        number = self._received[source] = self._received.get(source, 0) + 1
        with unseen():
            arriving, where = torch.empty_like(x), place()
        work = self._gloo.recv([arriving], source, number)

        def land() -> None:
            sent = self._store.get(f"message/{source}/{self._rank}/{number}").decode()
            if sent != _described(x, tag):
                raise NcclError(
                    "messages between two members match in the order of their calls, not by tag: "
                    f"sent is {sent}, received {_described(x, tag)} at {where}"
                )
            self._wait(work)
            x.copy_(arriving)

        return Later(done, land, [x])

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            if "timed out" in str(error).lower():
                self._end_by_watchdog()
            raise

    def _end_by_watchdog(self) -> None:
        milliseconds = round(self._timeout.total_seconds() * 1e3)
        call = f"SeqNum={self._calls}, OpType={self._operation.replace('_', '').upper()}"
        print(
            f"[rank{self._rank}]: [Rank {self._rank}] Watchdog caught collective operation timeout: WorkNCCL({call}, "
            f"Timeout(ms)={milliseconds}) ran for {milliseconds} milliseconds before timing out.\n"
            f"[rank{self._rank}]: [PG ID 0 PG GUID 0({self.group_desc}) Rank {self._rank}]",
            file=sys.stderr,
            flush=True,
        )
        os.abort()


def _described(x: Tensor, tag: int) -> str:
    return f"{x.numel()} of {x.dtype} with tag {tag}"


def install() -> None:
    """Makes the group that of the backend `nccl`."""
    torch._C._nccl_version = lambda: (2 << 32) + (27 << 16)
    torch._C._nccl_version_suffix = lambda: b""
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    c10d.ProcessGroupNCCL = FakeNccl  # type: ignore[attr-defined]
    c10d._NCCL_AVAILABLE = True  # type: ignore[attr-defined]
