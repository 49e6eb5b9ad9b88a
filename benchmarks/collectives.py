"""Ways to do collectives that gloo lacks or does slowly: uneven gathers, reduce-scatters, small all-reduces.

    python benchmarks/collectives.py [--ranks 2 4] [--rounds 15]

Milliseconds are the slowest rank's: the median of rounds in which the ways take turns, and the best in brackets. A star
marks the way that an axis uses. Times are those of this machine's memory, not of a network.
"""

from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from measuring import alternate, argument_parser, slowest_rank
from torch import Tensor

from harness.comm import collectives, engine
from harness.comm.axis import Axis
from harness.comm.collectives import Reduction
from harness.comm.grid import Grid
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName, Ledger, TensorName
from harness.ranges import split_range

COLUMNS = 16
Ways = dict[str, Callable[[], Tensor]]


def uneven(rows: int, ranks: int) -> list[int]:
    """Sizes of which the first is half of the rows."""
    return [rows // 2, *map(len, split_range(rows - rows // 2, ranks - 1))]


def gathers(axis: Axis, x: Tensor, sizes: list[int]) -> Ways:
    """Ways to get the members' rows, one after the other."""
    group, longest, total = axis.group, max(sizes), sum(sizes)

    def padded() -> Tensor:
        own = x.new_zeros(longest, COLUMNS)
        own[: len(x)] = x
        everyone = x.new_empty(longest * axis.size, COLUMNS)
        collectives._all_gather_single(everyone, own, group=group)
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
        collectives._all_gather_single(everyone, x, group=group)
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


def scatters(axis: Axis, x: Tensor, sizes: list[int]) -> Ways:
    """Ways to get this member's rows of the sum. The library has one for equal sizes."""
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
        ways["library"] = lambda: collectives.reduce_scatter_by_library(
            group, x, own, None, later=False
        ).result()
    return ways


def reductions(axis: Axis, x: Tensor) -> Ways:
    """Ways to get the sum of every member's x."""
    group = axis.group
    assert group is not None, "this measures worlds of two ranks and more"

    def by_library() -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    def by_exchange() -> Tensor:
        total = x.clone()
        started = collectives.all_reduce_by_exchange(group, total, total, Reduction.SUM, later=False)
        return started.result()

    small = collectives.is_small_reduction(group, x)
    return {
        f"exchange{' *' if small else ''}": by_exchange,
        f"library{'' if small else ' *'}": by_library,
    }


def measured(what: str, rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of this rank in each round of each way, once all ways agree on the result."""
    axis = Grid.build({AxisName.P: engine.world_size()}, Ledger(recording=False))[AxisName.P]
    even = what.endswith("even")
    sizes = [rows // axis.size] * axis.size if even else uneven(rows, axis.size)
    whole = torch.arange(sum(sizes) * COLUMNS, dtype=torch.float32).remainder(8).view(-1, COLUMNS)
    own = whole.split(sizes)[axis.index]
    if what == "all_reduce":
        ways, expected = reductions(axis, whole), whole * axis.size
    elif what.startswith("all_gather"):
        ways, expected = gathers(axis, own.clone(), sizes), whole
    else:
        ways, expected = scatters(axis, whole, sizes), own * axis.size
    assert all(torch.equal(way(), expected) for way in ways.values())
    return alternate(ways, rounds, warm=0, before=axis.barrier)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with Pool() as pool:
        for what in (
            "all_reduce",
            "all_gather",
            "all_gather, even",
            "reduce_scatter",
            "reduce_scatter, even",
        ):
            for ranks in options.ranks:
                for rows in (16, 128, 1024, 16_384, 262_144):
                    seconds = slowest_rank(pool.run(ranks, measured, what, rows, options.rounds))
                    times = (f"{n} {1e3 * median(s):.2f} ({1e3 * min(s):.2f})" for n, s in seconds.items())
                    size = f"{rows * COLUMNS * 4 // 1024} KiB"
                    print(f"{what}, {ranks} ranks, {size}:", ", ".join(times), flush=True)


if __name__ == "__main__":
    main()
