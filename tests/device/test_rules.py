"""The fake GPUs refuse what GPUs refuse: each rule is broken on purpose."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.comm import collectives, engine
from harness.comm.collectives import StartedCall
from harness.comm.engine import Engine
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger
from harness.runtime.launch.worker_pool import RankError
from harness.strategy.parallel.prefetch import Prefetcher

OnGpus = Callable[..., list[Any]]
TO_PINNED, FROM_PINNED = PINNED = "device to host, pinned", "host to device, pinned"
"""Copies to and from pinned memory, for which no host waits: torch's own count does not know them."""


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device="cuda")


def add_two_devices() -> None:
    ones(3) + torch.ones(3)


def add_two_gpus() -> None:
    ones(3) + ones(3).to("cuda:1")


def take_by_host_indices() -> None:
    ones(3).index_select(0, torch.zeros(2, dtype=torch.int64))


def index_a_host_matrix() -> None:
    torch.ones(3)[torch.zeros(2, dtype=torch.int64, device="cuda")]


def read_by_numpy() -> None:
    ones(3).numpy()


def multiply_sparse_by_host() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls these tensors young
        torch.eye(3).to_sparse_csr().to("cuda") @ torch.ones(3, 2)


REFUSED: dict[Callable[[], None], tuple[type[Exception], str]] = {
    add_two_devices: (RuntimeError, "Expected all tensors to be on the same device"),
    add_two_gpus: (RuntimeError, "cuda:1 and cuda:0|cuda:0 and cuda:1"),
    take_by_host_indices: (RuntimeError, "Expected all tensors to be on the same device"),
    index_a_host_matrix: (RuntimeError, "on the same device|indices should be either on cpu"),
    read_by_numpy: (TypeError, "can't convert cuda:0 device type tensor to numpy"),
    multiply_sparse_by_host: (RuntimeError, "on the same device"),
}


@pytest.mark.parametrize("broken", REFUSED, ids=lambda broken: broken.__name__)
def test_one_kernel_reads_one_device(on_gpus: OnGpus, broken: Callable[[], None]) -> None:
    kind, words = REFUSED[broken]
    with pytest.raises(RankError, match=words) as caught:
        on_gpus(1, broken)
    assert caught.value.kind == kind.__name__


ACTIONS: dict[str, tuple[Callable[[], object], dict[str, int]]] = {
    "item": (lambda: ones(4).sum().item(), {"_local_scalar_dense": 1}),
    "cpu": (lambda: ones(4).cpu(), {"device to host": 1}),
    "mask": (lambda: ones(4)[ones(4) > 0], {"nonzero": 1}),
    "nonzero": (lambda: ones(4).nonzero(), {"nonzero": 1}),
    "upload": (lambda: torch.ones(3).to("cuda"), {"host to device": 1}),
    "pinned": (lambda: torch.ones(3).pin_memory().to("cuda", non_blocking=True), {FROM_PINNED: 1}),
    "pinned, blocking": (lambda: torch.ones(3).pin_memory().to("cuda"), {"host to device": 1}),
    "to pinned": (
        lambda: torch.empty(3, pin_memory=True).copy_(ones(3), non_blocking=True),
        {TO_PINNED: 1},
    ),
    "unique": (lambda: ones(4).unique(), {"_unique2": 1}),
    "repeat": (lambda: ones(2).repeat_interleave(ones(2, dtype=torch.int64)), {"repeat_interleave": 1}),
    "repeat of a known size": (
        lambda: ones(2).repeat_interleave(ones(2, dtype=torch.int64), output_size=2),
        {},
    ),
    "bincount": (lambda: ones(4, dtype=torch.int64).bincount(), {"bincount": 1}),
    "sort": (lambda: ones(4, 4).sort(0), {}),
    "search": (lambda: torch.searchsorted(ones(4), ones(4)), {}),
    "scatter": (lambda: ones(4).index_copy_(0, ones(1, dtype=torch.int64), ones(1)), {}),
    "write at indices": (lambda: ones(4).__setitem__(ones(1, dtype=torch.int64), ones(1)), {}),
    "fill at indices": (
        lambda: ones(4).__setitem__(ones(1, dtype=torch.int64), 2),
        {"host to device, number": 1},
    ),
    "fill at a mask": (lambda: ones(4).__setitem__(ones(4) > 0, 2), {}),
    "fill by an operator": (lambda: ones(4).index_fill_(0, ones(1, dtype=torch.int64), 2), {}),
    "scatter a number": (lambda: ones(4).scatter_(0, ones(1, dtype=torch.int64), 2), {}),
    "nothing": (lambda: torch.relu(ones(4) @ ones(4) + ones(4).sum()), {}),
}
"""Some actions, and the waits that each makes."""


def waits_of(action: str) -> dict[str, int]:
    import fake_cuda

    fake_cuda.waits.clear()
    ACTIONS[action][0]()
    return {what: count for (what, _), count in fake_cuda.waits.items()}


@pytest.mark.parametrize("action", ACTIONS)
def test_waits_are_counted(on_gpus: OnGpus, action: str) -> None:
    assert on_gpus(1, waits_of, action) == [ACTIONS[action][1]]


# Streams: work that another stream may not have finished is not touched.


def on_another_stream() -> tuple[torch.Tensor, torch.Stream]:
    """A tensor that a stream of its own computes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        return torch.relu(ones(8)), stream


def read_without_waiting() -> None:
    x, _ = on_another_stream()
    x.sum()


def write_without_waiting() -> None:
    x, stream = on_another_stream()
    torch.cuda.current_stream().wait_stream(stream)
    x.sum()
    with torch.cuda.stream(stream):
        x.zero_()


def begin_without_waiting() -> None:
    x = ones(8) + 1
    with torch.cuda.stream(torch.cuda.Stream()):
        x.sum()


def free_too_early() -> None:
    x, stream = on_another_stream()
    torch.cuda.current_stream().wait_stream(stream)
    x.sum()
    del x
    with torch.cuda.stream(stream):
        ones(8)


def write_while_it_is_copied() -> None:
    """Pinned memory that one stream copies to a GPU and another fills."""
    on_host, x = torch.ones(8).pin_memory(), ones(8)
    on_host.to("cuda", non_blocking=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        on_host.copy_(x, non_blocking=True)


def read_before_it_was_copied() -> None:
    """Pinned memory that one stream fills and another copies to a GPU."""
    x, stream = on_another_stream()
    with torch.cuda.stream(stream):
        on_host = torch.empty(8, pin_memory=True).copy_(x, non_blocking=True)
    on_host.to("cuda", non_blocking=True)


RACES = {
    write_while_it_is_copied: "which (reads|writes) the same memory",
    read_before_it_was_copied: "which writes the same memory",
    read_without_waiting: "which writes the same memory",
    write_without_waiting: "which reads the same memory",
    begin_without_waiting: "which writes the same memory",
    free_too_early: "unknown to record_stream",
}


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_races_between_streams_are_refused(on_gpus: OnGpus, race: Callable[[], None]) -> None:
    with pytest.raises(RankError, match=RACES[race]):
        on_gpus(1, race)


def wait_in_every_way() -> None:
    x, stream = on_another_stream()
    torch.cuda.current_stream().wait_event(stream.record_event())
    x.sum()
    x.record_stream(torch.cuda.current_stream())
    del x
    with torch.cuda.stream(stream):
        y = ones(8)
    stream.synchronize()
    y.sum()
    z, _ = on_another_stream()
    torch.cuda.synchronize()
    z.sum()
    last, stream = on_another_stream()
    with torch.cuda.stream(stream):
        last.sum().item()
    last.sum()


def test_streams_that_wait_may_share_memory(on_gpus: OnGpus) -> None:
    on_gpus(1, wait_in_every_way)


def use_empty_tensors_on_two_streams() -> None:
    other = torch.cuda.Stream()
    uploads = [torch.empty(0).pin_memory() for _ in range(2)]
    copies = [uploads[0].to("cuda", non_blocking=True).relu()]
    with torch.cuda.stream(other):
        copies.append(uploads[1].to("cuda", non_blocking=True).relu())
    assert not any(len(each) for each in copies)


def test_empty_tensors_share_no_memory(on_gpus: OnGpus) -> None:
    on_gpus(1, use_empty_tensors_on_two_streams)


def drop_while_the_next_is_made() -> list[float]:
    dropped = threading.Event()

    def make(number: int) -> torch.Tensor:
        if number:
            dropped.wait()
        return torch.relu(ones(8) + number)

    items = Prefetcher(make, torch.device("cuda", 0))
    used = [items.take(0).sum()]  # nobody else has the item while the next is made
    dropped.set()
    used += [items.take(number).sum() for number in (1, 2)]
    return [float(each) for each in used]


def test_a_prefetched_item_stays_until_it_was_used(on_gpus: OnGpus) -> None:
    assert on_gpus(1, drop_while_the_next_is_made) == [[8.0, 16.0, 24.0]]


# NCCL.


def reduce_on_host() -> None:
    dist.all_reduce(torch.ones(2))


def reduce_elsewhere() -> None:
    dist.all_reduce(torch.ones(2, device=f"cuda:{engine.rank() + 1}"))


def reduce_strided() -> None:
    dist.all_reduce(ones(4, 4)[:, :2])


def reduce_uneven() -> None:
    dist.all_reduce(ones(2 + engine.rank()))


def reduce_types() -> None:
    dist.all_reduce(ones(2, dtype=torch.bfloat16 if engine.rank() else torch.float32))


def gather_uneven() -> None:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # of before torch 2.13
    gather(ones(4), ones(2 - engine.rank()))


def gather_other_sizes() -> None:
    rank = engine.rank()
    dist.all_gather([ones(2 - rank), ones(1 + rank)], ones(1))


def scatter_other_sizes() -> None:
    rank = engine.rank()
    dist.reduce_scatter(ones(1), [ones(2 - rank), ones(1 + rank)])


def in_another_order() -> None:
    if engine.rank():
        dist.all_reduce(ones(2))
    else:
        dist.broadcast(ones(2), 0)


def exchange_other_sizes() -> None:
    sizes = [1, 2] if engine.rank() else [2, 1]
    dist.all_to_all_single(ones(3), ones(3), [1, 2], sizes)


def receive_in_another_order() -> None:
    a, b = ones(2), ones(3)
    if engine.rank():
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, b, 0), dist.P2POp(dist.irecv, a, 0)])[0].wait()
    else:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, a, 1), dist.P2POp(dist.isend, b, 1)])


BROKEN_RULES = {
    reduce_on_host: "No backend type associated with device type cpu",
    reduce_elsewhere: "backend constrained to cuda:",
    reduce_strided: "contiguous",
    reduce_uneven: "members disagree on all_reduce",
    reduce_types: "members disagree on all_reduce",
    gather_uneven: "output tensor size must be equal to world_size times input tensor size",
    gather_other_sizes: "a member expects other sizes",
    scatter_other_sizes: "a member expects other sizes",
    in_another_order: "members disagree",
    exchange_other_sizes: "all_to_all",
    receive_in_another_order: "match in the order of their calls",
}


@pytest.mark.parametrize("broken", BROKEN_RULES, ids=lambda broken: broken.__name__)
def test_rules_of_nccl_are_enforced(on_gpus: OnGpus, broken: Callable[[], None]) -> None:
    with pytest.raises(RankError, match=BROKEN_RULES[broken]):
        on_gpus(2, broken)


# A call over NCCL is work on a stream of its own.


def write_what_is_sent() -> None:
    x = ones(3)
    work = dist.broadcast(x, 0, async_op=True)
    x.zero_() if engine.rank() == 0 else work.wait()


def write_a_message_that_is_sent() -> None:
    x = ones(3)
    (work,) = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv if engine.rank() else dist.isend, x, 1 - engine.rank())]
    )
    work.wait() if engine.rank() else x.zero_()


def read_what_has_not_arrived() -> None:
    x = ones(3)
    dist.all_reduce(x, async_op=True)
    x.sum()


def read_where_nobody_waited() -> None:
    x = ones(3)
    work = dist.all_reduce(x, async_op=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work.wait()
        x.sum()
    x.sum()


RACES_OF_CALLS = {
    write_what_is_sent: "which reads the same memory",
    write_a_message_that_is_sent: "which reads the same memory",
    read_what_has_not_arrived: "which writes the same memory",
    read_where_nobody_waited: "which writes the same memory",
}


@pytest.mark.parametrize("race", RACES_OF_CALLS, ids=lambda race: race.__name__)
def test_races_with_calls_are_refused(on_gpus: OnGpus, race: Callable[[], None]) -> None:
    with pytest.raises(RankError, match=RACES_OF_CALLS[race]):
        on_gpus(2, race)


def compute_beside_a_call() -> list[float]:
    """One half of a matrix is summed over the ranks while the other half is computed."""
    x = ones(4, 2)
    work = dist.all_reduce(x[:2], async_op=True)
    x[2:] += 2
    work.wait()
    return x.sum(1).tolist()


def test_a_call_races_with_its_own_rows_alone(on_gpus: OnGpus) -> None:
    assert on_gpus(2, compute_beside_a_call) == [[4.0, 4.0, 6.0, 6.0]] * 2


def communicators() -> tuple[torch.device | None, list[tuple[str, int]]]:
    """The GPU to which the world is bound, and the backend and size of each axis' own group."""
    device = engine.select_device(Engine.NCCL, engine.rank())
    grid = Grid.build({AxisName.X: 2, AxisName.Y: 2}, Ledger(recording=False), device)
    groups = [grid[AxisName.X].group, grid[AxisName.Y].group, grid.world.group]
    assert len({id(group) for group in groups}) == 3
    return dist.group.WORLD.bound, [(dist.get_backend(each), each.size()) for each in groups if each]


def test_every_axis_has_a_communicator_and_the_world_a_gpu(on_gpus: OnGpus) -> None:
    for rank, (bound, groups) in enumerate(on_gpus(4, communicators)):
        assert bound == torch.device("cuda", rank)
        assert groups == [("nccl", 2), ("nccl", 2), ("nccl", 4)]


UNEVEN = [1, 300, 0, 20]
Uneven = tuple[list[float], int]
"""The distinct numbers of a result, in order, and the bytes that its call takes beside it."""


def call_unevenly(call: Callable[[], StartedCall[torch.Tensor]]) -> Uneven:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call().result()
    beside = torch.cuda.max_memory_allocated() - before - out.nbytes
    return out.unique_consecutive().tolist(), beside


def gathered_unevenly() -> Uneven:
    rank = engine.rank()
    x = float(rank) + ones(UNEVEN[rank])
    return call_unevenly(lambda: collectives.all_gather(dist.group.WORLD, x, UNEVEN, None, None, later=False))


def scattered_unevenly() -> Uneven:
    members = torch.arange(4, device="cuda").repeat_interleave(torch.tensor(UNEVEN, device="cuda"))
    x = (10.0 ** engine.rank()) * (1 + members)
    return call_unevenly(lambda: collectives.reduce_scatter(dist.group.WORLD, x, UNEVEN, None, later=False))


def test_an_uneven_gather_copies_nothing(on_gpus: OnGpus) -> None:
    assert on_gpus(4, gathered_unevenly) == [([1.0, 2.0, 4.0], 0)] * 4


def test_an_uneven_reduce_scatter_copies_nothing(on_gpus: OnGpus) -> None:
    """As an exchange it would hold the rows of every member before it adds them."""
    assert on_gpus(4, scattered_unevenly) == [([1111.0], 0), ([2222.0], 0), ([], 0), ([4444.0], 0)]


def bytes_in_flight() -> list[tuple[set[int], list[float]]]:
    """For every call and type: the bytes of the result before the call was waited for, and its numbers afterwards."""
    import fake_cuda

    rank, seen, sent = engine.rank(), [], list[Any]()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x, pair = ones(2, dtype=dtype), ones(4, dtype=dtype)
        calls: list[tuple[torch.Tensor, Callable[..., Any]]] = [
            (x.clone(), lambda out: dist.all_reduce(out, async_op=True)),
            (pair.clone(), lambda out, x=x: dist.all_gather(list(out.split(2)), x, async_op=True)),
            (x.clone(), lambda out, x=x: dist.all_to_all_single(out, x, async_op=True)),
            (x[:1].clone(), lambda out, x=x: collectives._reduce_scatter_single(out, x, async_op=True)),
            (x[:1].clone(), lambda out, x=x: dist.reduce_scatter(out, list(x.split(1)), async_op=True)),
        ]
        if rank:
            calls += [(x.clone(), lambda out: dist.irecv(out, 0))]
        else:
            sent += [dist.isend(x, 1)]
        for out, call in calls:
            work = call(out)
            early = set(fake_cuda.loaded().host(out).view(torch.uint8).tolist())
            work.wait()
            seen.append((early, out.tolist()))
    for message in sent:
        message.wait()
    return seen


def test_a_result_is_not_there_before_it_was_waited_for(on_gpus: OnGpus) -> None:
    of_sender, of_receiver = on_gpus(2, bytes_in_flight)
    assert (len(of_sender), len(of_receiver)) == (3 * 5, 3 * 6)
    for seen in (of_sender, of_receiver):
        assert all(early == {0xFF} for early, _ in seen)
        assert [late for _, late in seen[:5]] == [[2.0] * 2, [1.0] * 4, [1.0] * 2, [2.0], [2.0]]


def copied_between_gpus() -> list[float]:
    """Work on both GPUs before and after a copy, for which no stream has to wait by hand."""
    x = torch.relu(ones(3)).to("cuda:1")
    x += 1
    return (x.to("cuda:0") * 2).tolist()


def test_a_copy_joins_the_streams_of_two_gpus(on_gpus: OnGpus) -> None:
    assert on_gpus(1, copied_between_gpus) == [[4.0] * 3]
