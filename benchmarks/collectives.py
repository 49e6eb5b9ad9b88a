"""Ways to do collectives, in one machine's memory and on slow links."""

import os
from collections.abc import Callable
from functools import partial
from resource import RUSAGE_SELF, getrusage
from statistics import fmean, median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.measuring import alternate, gather, slowest_rank
from benchmarks.registry import FOUR_HOSTS, Hosts, Results, Table, benchmark
from harness.base.ranges import split_range
from harness.comm import collectives as calls
from harness.comm import engine
from harness.comm.axis import Axis
from harness.comm.collectives import Reduction
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName
from harness.runtime.launch.worker_pool import Pool

COLUMNS = 16
Ways = dict[str, Callable[[], Tensor]]
KINDS = ("all_reduce", "all_gather", "all_gather, even", "reduce_scatter", "reduce_scatter, even")


@benchmark
def collectives(ranks: tuple[int, ...] = (2, 4), rounds: int = 15) -> Results:
    """Compare ways to do collectives that gloo lacks or does slowly, such as uneven gathers and small all-reduces.

    Milliseconds are the slowest rank's: the median of rounds in which the ways take turns, and the best. A star marks
    the way that an axis uses. Times are those of this machine's memory, not of a network.

    Args:
        ranks: sizes of worlds
    """
    yield Table("call", "ranks", "KiB:,", "way", "median ms:.2f", "best ms:.2f")
    with Pool() as pool:
        for kind in KINDS:
            for world in ranks:
                for rows in (16, 128, 1024, 16_384, 262_144):
                    by_rank = pool.run(world, time_ways, kind, rows, rounds)
                    for way, seconds in slowest_rank(by_rank).items():
                        times = 1e3 * median(seconds), 1e3 * min(seconds)
                        yield kind, world, rows * COLUMNS * 4 // 1024, way, *times


@benchmark
def queue(ranks: tuple[int, ...] = (2, 4), mebibytes: int = 16, rounds: int = 15) -> Results:
    """Time the sum of one number while exchanges are in flight, in their process group and in one of its own.

    Milliseconds are the slowest rank's median over rounds in which the two take turns. Times are those of this
    machine's memory, not of a network.

    Args:
        ranks: sizes of worlds
        mebibytes: what each rank sends in an exchange
    """
    yield Table("ranks", "exchanges in flight", "in their group, ms:.2f", "in its own group, ms:.2f")
    with Pool() as pool:
        for world in ranks:
            for in_flight in (0, 1, 2, 3, 4):
                taken = slowest_rank(pool.run(world, time_sum_beside_exchanges, in_flight, mebibytes, rounds))
                yield world, in_flight, *(1e3 * median(taken[way]) for way in ("shared", "own"))


def time_sum_beside_exchanges(in_flight: int, mebibytes: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of sums of one number that are asked for right after exchanges have begun."""
    axis = Grid.build({AxisName.P: engine.world_size()}, Ledger(recording=False))[AxisName.P]
    sizes = split_range(mebibytes << 14, axis.size)
    rows, lengths = torch.zeros(mebibytes << 14, 16), list(map(len, sizes))
    received = [lengths[axis.index]] * axis.size
    seconds: dict[str, list[float]] = {"shared": [], "own": []}
    for _ in range(rounds):
        for way, group in (("shared", axis.group), ("own", axis.reductions)):
            assert group is not None, "this measures worlds of two ranks and more"
            axis.barrier()
            started = [
                axis.all_to_all.later(rows, send=lengths, receive=received, tensor=TensorName.H)
                for _ in range(in_flight)
            ]
            since = perf_counter()
            calls.all_reduce(group, torch.ones(1), Reduction.SUM, None, later=False).result()
            seconds[way].append(perf_counter() - since)
            for each in started:
                each.wait()
    return seconds


def uneven_sizes(rows: int, ranks: int) -> list[int]:
    """Return sizes of which the first is half of the rows."""
    return [rows // 2, *map(len, split_range(rows - rows // 2, ranks - 1))]


def make_gathers(axis: Axis, x: Tensor, sizes: list[int]) -> Ways:
    """Return ways to get the members' rows, one after the other."""
    group, longest, total = axis.group, max(sizes), sum(sizes)

    def padded() -> Tensor:
        own = x.new_zeros(longest, COLUMNS)
        own[: len(x)] = x
        everyone = x.new_empty(longest * axis.size, COLUMNS)
        calls._all_gather_single(everyone, own, group=group)
        return torch.cat([part[:size] for part, size in zip(everyone.split(longest), sizes, strict=True)])

    def broadcasts() -> Tensor:
        everyone = x.new_empty(total, COLUMNS)
        parts = everyone.split(sizes)
        parts[axis.index].copy_(x)
        works = [
            dist.broadcast(part, group=group, group_src=i, async_op=True) for i, part in enumerate(parts)
        ]
        for work in works:
            work.wait()
        return everyone

    def messages() -> Tensor:
        everyone = x.new_empty(total, COLUMNS)
        parts = everyone.split(sizes)
        parts[axis.index].copy_(x)
        others = [other for other in range(axis.size) if other != axis.index]
        calls = [dist.P2POp(dist.irecv, parts[other], group=group, group_peer=other) for other in others]
        calls += [dist.P2POp(dist.isend, x, group=group, group_peer=other) for other in others]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return everyone

    def by_library() -> Tensor:
        everyone = x.new_empty(total, COLUMNS)
        calls._all_gather_single(everyone, x, group=group)
        return everyone

    even = len(set(sizes)) == 1
    return {
        "by the axis *" if even else "all-to-all *": lambda: axis.all_gather(
            x, tensor=TensorName.H, sizes=sizes
        ),
        **({"library": by_library} if even else {}),
        "padded": padded,
        "broadcasts": broadcasts,
        "messages": messages,
    }


def make_scatters(axis: Axis, x: Tensor, sizes: list[int]) -> Ways:
    """Return ways to get this member's rows of the sum. The library has one for equal sizes."""
    group, own = axis.group, (sizes[axis.index], COLUMNS)
    assert group is not None, "this measures worlds of two ranks and more"

    def reduced() -> Tensor:
        whole = x.clone()
        dist.all_reduce(whole, group=group)
        part: Tensor = whole.split(sizes)[axis.index]
        return part

    ways: Ways = {
        "all-to-all *": lambda: axis.reduce_scatter(x, tensor=TensorName.H, sizes=sizes),
        "all-reduce": reduced,
    }
    if len(set(sizes)) == 1:
        library = partial(calls.reduce_scatter_by_library, group, x, own, sizes, None, later=False)
        ways["library"] = lambda: library().result()
    return ways


def make_reductions(axis: Axis, x: Tensor) -> Ways:
    """Return ways to get the sum of every member's x."""
    group = axis.group
    assert group is not None, "this measures worlds of two ranks and more"

    def by_library() -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    def by_exchange() -> Tensor:
        total = x.clone()
        started = calls.all_reduce_by_exchange(group, total, total, Reduction.SUM, later=False)
        return started.result()

    small = calls.is_small_reduction(group, x)
    return {
        f"exchange{' *' if small else ''}": by_exchange,
        f"library{'' if small else ' *'}": by_library,
    }


def time_ways(what: str, rows: int, rounds: int) -> dict[str, list[float]]:
    """Return this rank's seconds of each way round by round, once all ways agree on the result."""
    axis = Grid.build({AxisName.P: engine.world_size()}, Ledger(recording=False))[AxisName.P]
    even = what.endswith("even")
    sizes = [rows // axis.size] * axis.size if even else uneven_sizes(rows, axis.size)
    whole = torch.arange(sum(sizes) * COLUMNS, dtype=torch.float32).remainder(8).view(-1, COLUMNS)
    own = whole.split(sizes)[axis.index]
    if what == "all_reduce":
        ways, expected = make_reductions(axis, whole), whole * axis.size
    elif what.startswith("all_gather"):
        ways, expected = make_gathers(axis, own.clone(), sizes), whole
    else:
        ways, expected = make_scatters(axis, whole, sizes), own * axis.size
    assert all(torch.equal(way(), expected) for way in ways.values())
    return alternate(ways, rounds, warm=0, before=axis.barrier)


# On links.

SIZES = (1 << 16, 1 << 20, 1 << 22)  # bytes of the full buffer
ROUNDS, WARM = 7, 2
H = TensorName.H


@benchmark
def links(hosts: Hosts = FOUR_HOSTS) -> Results:
    """Compare gloo's own collectives on slow links with those composed out of rounds.

    Milliseconds are the slowest rank's, the median of rounds in which the two ways take turns. Mbit/s are the words
    that a ring brings to a rank, over that time. A link carries 95 % of its nominal rate.

    All hosts share the cores of this machine, so the time that the cores spend on bytes, the kernel's included, is a
    limit too: the second table has it for each byte that a rank receives, the rate at which all cores would be busy,
    and a core's time of a call of 64 bytes from each rank.
    """
    shape = {AxisName.P: hosts.count}
    library = Grid.build(shape, Ledger(recording=False))
    composed = Grid.build(shape, Ledger(recording=False), composed_from=0)
    axes = {"gloo": library[AxisName.P], "rounds": composed[AxisName.P]}
    yield Table("call", "bytes:,", "gloo ms:.1f", "Mbit/s:.0f", "rounds ms:.1f", "Mbit/s:.0f")
    for size in SIZES:
        for name in make_calls(axes["gloo"], size):
            ways = {way: make_calls(axis, size)[name] for way, axis in axes.items()}
            own = alternate(ways, ROUNDS, warm=WARM, before=library.world.barrier)
            if by_rank := gather(library.world, own):
                mbits = count_received_bits(axes["gloo"], name, size) / 1e6
                gloo, rounds = map(median, slowest_rank(by_rank).values())
                yield name, size, 1e3 * gloo, mbits / gloo, 1e3 * rounds, mbits / rounds
    cores, largest = len(os.sched_getaffinity(0)), SIZES[-1]
    yield Table("call in rounds", "ns a byte:.1f", "Mbit/s of a link, cores busy:.0f", "µs of 64 bytes:.0f")
    long, short = (make_calls(axes["rounds"], size) for size in (largest, 64 * hosts.count))
    for name in long:
        spent = [
            gather(library.world, measure_processor(some[name], times, library.world.barrier))
            for some, times in ((long, ROUNDS), (short, 100))
        ]
        if all(spent):
            by_bytes, by_messages = (fmean(each) for each in spent)
            each = by_bytes / (count_received_bits(axes["rounds"], name, largest) / 8)
            yield name, 1e9 * each, 8 * cores / (each * hosts.count) / 1e6, 1e6 * by_messages


def make_calls(axis: Axis, size: int) -> dict[str, Callable[[], object]]:
    """Return every call on a buffer of SIZE bytes, from this member's side."""
    rows = size // (4 * COLUMNS)
    whole = torch.ones(rows, COLUMNS)
    sizes = [len(part) for part in split_range(rows, axis.size)]
    uneven = [rows // 2, *(len(part) for part in split_range(rows - rows // 2, axis.size - 1))]
    own, own_uneven = whole[: sizes[axis.index]], whole[: uneven[axis.index]]

    def exchange(*partners: int) -> None:
        """Send equally many rows to each partner, who sends as many."""
        each = [rows // len(partners) if member in partners else 0 for member in range(axis.size)]
        axis.all_to_all(whole[: sum(each)], send=each, receive=each, tensor=H)

    def broadcasts() -> None:
        for root in range(axis.size):
            axis.broadcast(own, root=root, shape=(sizes[root], COLUMNS), tensor=H)

    return {
        "broadcast": lambda: axis.broadcast(whole, root=0, shape=whole.shape, tensor=H),
        "a broadcast from each in turn": broadcasts,
        "all_gather": lambda: axis.all_gather(own, tensor=H, sizes=sizes),
        "all_gather, uneven": lambda: axis.all_gather(own_uneven, tensor=H, sizes=uneven),
        "reduce_scatter": lambda: axis.reduce_scatter(whole, tensor=H, sizes=sizes),
        "all_to_all": lambda: axis.all_to_all(
            whole, send=sizes, receive=[sizes[axis.index]] * axis.size, tensor=H
        ),
        "all_to_all, with one": lambda: exchange(axis.size - 1 - axis.index),
        "all_to_all, with two": lambda: exchange(*{(axis.index + step) % axis.size for step in (-1, 1)}),
        "all_reduce": lambda: axis.all_reduce(whole, tensor=H),
    }


def count_received_bits(axis: Axis, name: str, size: int) -> float:
    """Return the bits that a member other than the root receives, on average over the members."""
    share = 1.0 if name == "broadcast" or ", with" in name else (axis.size - 1) / axis.size
    return 8 * size * share * (2 if name == "all_reduce" else 1)


def measure_processor(call: Callable[[], object], times: int, first: Callable[[], object]) -> float:
    """Return the processor time of a call in this process, including the kernel's: the mean of some calls."""
    first()
    started = getrusage(RUSAGE_SELF)
    for _ in range(times):
        call()
    ended = getrusage(RUSAGE_SELF)
    return (ended.ru_utime - started.ru_utime + ended.ru_stime - started.ru_stime) / times
