"""The fake GPUs refuse what GPUs refuse: each rule is broken on purpose."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.comm import engine
from harness.launch.worker_pool import RankError
from harness.parallel.prefetch import Prefetcher

OnGpus = Callable[..., list[Any]]
TO_PINNED, FROM_PINNED = PINNED = "device to host, pinned", "host to device, pinned"
"""Copies to and from pinned memory, for which no host waits: torch's own count does not know them."""


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device="cuda")


def add_two_devices() -> None:
    ones(3) + torch.ones(3)


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
    "fill at indices": (lambda: ones(4).__setitem__(ones(1, dtype=torch.int64), 2), {}),
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


RACES = {
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
    reduce_strided: "contiguous",
    reduce_uneven: "members disagree on all_reduce",
    reduce_types: "members disagree on all_reduce",
    gather_uneven: "output tensor size must be equal to world_size times input tensor size",
    gather_other_sizes: "a member expects other sizes",
    in_another_order: "members disagree",
    exchange_other_sizes: "all_to_all",
    receive_in_another_order: "match in the order of their calls",
}


@pytest.mark.parametrize("broken", BROKEN_RULES, ids=lambda broken: broken.__name__)
def test_nccl_s_rules_are_law(on_gpus: OnGpus, broken: Callable[[], None]) -> None:
    with pytest.raises(RankError, match=BROKEN_RULES[broken]):
        on_gpus(2, broken)


def read_too_early() -> tuple[bool, list[float]]:
    x = ones(3)
    work = dist.all_reduce(x, async_op=True)
    early = bool(x.isnan().all())
    work.wait()
    return early, x.tolist()


def test_a_result_is_not_there_before_it_was_waited_for(on_gpus: OnGpus) -> None:
    assert on_gpus(2, read_too_early) == [(True, [2.0] * 3)] * 2
