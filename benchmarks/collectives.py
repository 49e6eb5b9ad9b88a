"""Ways to do what gloo does not do, or does slowly: uneven all-gathers, and reduce-scatters.

    python benchmarks/collectives.py [--ranks 2 4] [--rounds 15]

Milliseconds of the slowest rank, the median over rounds in which the ways take turns, and the best in brackets. What
an axis uses is marked with a star. Times are those of this machine's memory, not of a network.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from harness.comm import collectives, engine
from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName, Ledger, TensorName
from harness.ranges import split

COLUMNS = 16
Ways = dict[str, Callable[[], Tensor]]


def uneven(rows: int, ranks: int) -> list[int]:
    """The first member has half of the rows."""
    return [rows // 2, *map(len, split(rows - rows // 2, ranks - 1))]


def gathers(axis: Axis, x: Tensor, sizes: list[int]) -> Ways:
    """The members' rows, one after the other."""
    group, longest, total = axis.group, max(sizes), sum(sizes)

    def padded() -> Tensor:
        mine = x.new_zeros(longest, COLUMNS)
        mine[: len(x)] = x
        everyone = x.new_empty(longest * axis.size, COLUMNS)
        collectives._all_gather_single(everyone, mine, group=group)
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

    return {
        "all-to-all *": lambda: axis.all_gather(x, tensor=TensorName.H, sizes=sizes),
        "padded": padded,
        "broadcasts": broadcasts,
        "messages": messages,
    }


def scatters(axis: Axis, x: Tensor, sizes: list[int]) -> Ways:
    """This member's rows of the sum. Without sizes that differ, the library's own can serve."""
    group, own = axis.group, (sizes[axis.index], COLUMNS)

    def reduced() -> Tensor:
        whole = x.clone()
        dist.all_reduce(whole, group=group)
        return whole.split(sizes)[axis.index]

    ways: Ways = {
        "all-to-all *": lambda: axis.reduce_scatter(x, tensor=TensorName.H, sizes=sizes),
        "all-reduce": reduced,
    }
    if len(set(sizes)) == 1:
        ways["library"] = lambda: collectives.reduce_scatter_by_library(
            group, x, own, None, later=False
        ).land()
    return ways


def take_turns(what: str, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of this rank in each round of each way; all ways must agree."""
    axis = Grid.build({AxisName.P: engine.world_size()}, Ledger(recording=False))[AxisName.P]
    even = what == "reduce_scatter, even"
    sizes = [rows // axis.size] * axis.size if even else uneven(rows, axis.size)
    whole = torch.arange(sum(sizes) * COLUMNS, dtype=torch.float32).remainder(8).view(-1, COLUMNS)
    mine = whole.split(sizes)[axis.index]
    ways = gathers(axis, mine.clone(), sizes) if what == "all_gather" else scatters(axis, whole, sizes)
    expected = whole if what == "all_gather" else mine * axis.size
    assert all(torch.equal(way(), expected) for way in ways.values())
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            axis.barrier()
            begun = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with Pool() as pool:
        for what in ("all_gather", "reduce_scatter", "reduce_scatter, even"):
            for ranks in options.ranks:
                for rows in (16, 1024, 16_384, 262_144):
                    found = pool.run(ranks, take_turns, what, rows, options.rounds)
                    slowest = {
                        name: [max(turn) for turn in zip(*(rank[name] for rank in found), strict=True)]
                        for name in found[0]
                    }
                    told = [f"{n} {1e3 * median(s):.2f} ({1e3 * min(s):.2f})" for n, s in slowest.items()]
                    print(
                        f"{what}, {ranks} ranks, {rows * COLUMNS * 4 // 1024} KiB:",
                        ", ".join(told),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
