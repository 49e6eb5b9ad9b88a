"""NCCL between ranks without GPUs: gloo carries the messages, and NCCL's rules are law.

Refused are tensors of the host, strides, types that NCCL lacks, sizes or types that differ between members, another
order of calls, and messages between two members that are received in another order than they were sent. Until a call
was waited for, its result is not there: floating-point buffers hold NaN.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from fake_cuda import loaded, place
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

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


class Later(dist.Work):
    """A call under way: the results are put into the members' buffers when it is waited for."""

    def __init__(self, land: Callable[[], None], buffers: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._land: Callable[[], None] | None = land
        with unseen():
            for buffer in buffers:
                if buffer.is_floating_point():
                    buffer.fill_(torch.nan)

    def wait(self, timeout: Any = None) -> bool:
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


def hidden(buffers: Sequence[Tensor], carry: Callable[[Sequence[Tensor]], None]) -> Later:
    """Carries the messages now into copies of the buffers, which receive the copies' values when waited for."""
    with unseen():
        copies = [buffer.clone() for buffer in buffers]
        carry(copies)

    def land() -> None:
        for buffer, copy in zip(buffers, copies, strict=True):
            buffer.copy_(copy)

    return Later(land, buffers)


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

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._store = rank, size, store
        timeout = options._timeout or timedelta(minutes=10)
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._register_backend(torch.device("cuda"), kind, self._gloo)  # which keeps the name of the group
        self._calls = 0
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    # What torch asks of a backend.

    def _get_backend(self, device: torch.device) -> "FakeNccl":
        return self

    def _set_sequence_number_for_group(self) -> None: ...

    def getBackendName(self) -> str:
        return "nccl"

    def name(self) -> str:
        return "nccl"

    # The rules.

    def _host(self, *tensors: Tensor) -> list[Tensor]:
        """The tensors in the host's memory, if NCCL accepts them."""
        for x in tensors:
            if x.device.type != "cuda":
                raise NcclError(f"No backend type associated with device type {x.device.type} (at {place()})")
            if not x.is_contiguous():
                raise NcclError(f"Tensors must be contiguous (at {place()})")
            if x.dtype not in TYPES:
                raise NcclError(f"Unconvertible NCCL type {x.dtype} (at {place()})")
        return [loaded().host(x) for x in tensors]

    def _agree(self, operation: str, *numbers: int, sizes: Sequence[int] = ()) -> list[list[int]]:
        """All members issue the same calls in the same order, of the same type and size.

        Returns the sizes that each member gives, which may differ: at most one for each member.
        """
        self._calls += 1
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
            self._gloo.allgather([everyone], [mine]).wait()
            return [each.tolist() for each in everyone]

    # Collectives.

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Later:
        (x,) = self._host(*tensors)
        self._agree("all_reduce", TYPES[x.dtype], x.numel())
        options = dist.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        return hidden([x], lambda copies: self._wait(self._gloo.allreduce(list(copies), options)))

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Later:
        (x,) = self._host(*tensors)
        self._agree("broadcast", TYPES[x.dtype], x.numel(), opts.rootRank)
        if opts.rootRank == self._rank:
            with unseen():
                self._gloo.broadcast([x.clone()], opts).wait()
            return Later(lambda: None)
        return hidden([x], lambda copies: self._wait(self._gloo.broadcast(list(copies), opts)))

    def _allgather_base(self, out: Tensor, x: Tensor, opts: Any = None) -> Later:
        if out.dtype != x.dtype:
            raise NcclError("output tensor must have the same type as input tensor")
        if out.numel() != x.numel() * self._size:
            raise NcclError("output tensor size must be equal to world_size times input tensor size")
        out, x = self._host(out, x)
        self._agree("all_gather", TYPES[x.dtype], x.numel())
        with unseen():
            own = x.view(-1).clone()  # it may be a part of the result

        def carry(copies: Sequence[Tensor]) -> None:
            if own.numel():
                self._wait(self._gloo.allgather([list(copies[0].view(-1).split(own.numel()))], [own]))

        return hidden([out], carry)

    all_gather_single = _allgather_base

    def allgather(self, outs: Sequence[Sequence[Tensor]], xs: Sequence[Tensor], opts: Any = None) -> Later:
        """Uneven sizes are broadcasts from each member; every member knows all sizes."""
        (parts,), (x,) = outs, self._host(*xs)
        parts = self._host(*parts)
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

        return hidden(parts, carry)

    def _reduce_scatter_base(self, out: Tensor, x: Tensor, opts: Any = None) -> Later:
        if out.dtype != x.dtype or x.numel() != out.numel() * self._size:
            raise NcclError("input tensor must be the same size as output size times world size")
        out, x = self._host(out, x)
        self._agree("reduce_scatter", TYPES[x.dtype], x.numel())
        with unseen():
            whole, count = x.view(-1).clone(), out.numel()

        def carry(copies: Sequence[Tensor]) -> None:
            self._wait(self._gloo.allreduce([whole], dist.AllreduceOptions()))
            copies[0].view(-1).copy_(whole[self._rank * count : (self._rank + 1) * count])

        return hidden([out], carry)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall_base(
        self, out: Tensor, x: Tensor, receive: Sequence[int], send: Sequence[int], opts: Any = None
    ) -> Later:
        if out.dtype != x.dtype:
            raise NcclError("Tensors are not equal in data type")
        out, x = self._host(out, x)
        send = list(send) or [len(x) // self._size] * self._size
        receive = list(receive) or [len(out) // self._size] * self._size
        arriving = [each[self._rank] for each in self._agree("all_to_all", TYPES[x.dtype], sizes=send)]
        if arriving != receive:
            raise NcclError(f"all_to_all at {place()}: sent are {arriving} rows, received {receive}")

        with unseen():
            sent = x.clone()

        def carry(copies: Sequence[Tensor]) -> None:
            self._wait(self._gloo.alltoall_base(copies[0], sent, receive, send, dist.AllToAllOptions()))

        return hidden([out], carry)

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Later:
        self._agree("barrier")
        return Later(lambda: None)

    # Messages between two members match in the order of their calls: NCCL has no tags.

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> Any:
        (x,) = self._host(*tensors)
        number = self._sent[to] = self._sent.get(to, 0) + 1
        self._store.set(f"message/{self._rank}/{to}/{number}", _described(x, tag))
        with unseen():
            copy = x.clone()
        return self._gloo.send([copy], to, number)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Later:
        (x,) = self._host(*tensors)
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

        return Later(land, [x])

    def _wait(self, work: Any) -> None:
        work.wait()


def _described(x: Tensor, tag: int) -> str:
    return f"{x.numel()} of {x.dtype} with tag {tag}"


def install() -> None:
    """Makes the group that of the backend `nccl`."""
    torch._C._nccl_version = lambda: (2 << 32) + (27 << 16)
    torch._C._nccl_version_suffix = lambda: b""
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    c10d.ProcessGroupNCCL = FakeNccl  # type: ignore[attr-defined]
    c10d._NCCL_AVAILABLE = True  # type: ignore[attr-defined]
