"""Collectives on slow links: gloo's own beside those composed out of rounds.

    python benchmarks/testbed up --hosts 4 --rate 200mbit
    python benchmarks/testbed run -- python benchmarks/links.py

Milliseconds are the slowest rank's, the median of rounds in which the two ways take turns. Mbit/s are the words that a
ring brings to a rank, over that time. A link carries 95 % of its nominal rate.

All hosts share the cores of this machine, so the time that the cores spend on bytes, the kernel's included, is a limit
too: the second table has it for each byte that a rank receives, and the rate at which all cores would be busy.
"""

import os
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from statistics import median

import torch
from measuring import Table, alternate, argument_parser, on_hosts, slowest_rank

from harness.comm.axis import Axis
from harness.comm.grid import Grid
from harness.ledger import AxisName, Ledger, TensorName
from harness.ranges import split_range
from harness.run.rank_tables import gather_tables

COLUMNS = 16
SIZES = (1 << 16, 1 << 20, 1 << 22)  # bytes of the full buffer
ROUNDS, WARM = 7, 2
H = TensorName.H


def calls(axis: Axis, size: int) -> dict[str, Callable[[], object]]:
    """Every call on a buffer of so many bytes, from this member's side."""
    rows = size // (4 * COLUMNS)
    whole = torch.ones(rows, COLUMNS)
    sizes = [len(part) for part in split_range(rows, axis.size)]
    uneven = [rows // 2, *(len(part) for part in split_range(rows - rows // 2, axis.size - 1))]
    across, nothing = axis.size - 1 - axis.index, [0] * axis.size
    to_one = [*nothing[:across], rows, *nothing[across + 1 :]]
    own, own_uneven = whole[: sizes[axis.index]], whole[: uneven[axis.index]]

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
        "all_to_all, to one": lambda: axis.all_to_all(whole, send=to_one, receive=to_one, tensor=H),
        "all_reduce": lambda: axis.all_reduce(whole, tensor=H),
    }


def received_bits(axis: Axis, name: str, size: int) -> float:
    """The bits that a member other than the root receives, on average over the members."""
    share = 1.0 if name in ("broadcast", "all_to_all, to one") else (axis.size - 1) / axis.size
    return 8 * size * share * (2 if name == "all_reduce" else 1)


def processor_seconds(call: Callable[[], object]) -> float:
    """The seconds of this process's threads in some calls, those of the kernel included."""
    before = getrusage(RUSAGE_SELF)
    for _ in range(ROUNDS):
        call()
    after = getrusage(RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    argument_parser(__doc__).parse_args()
    with on_hosts() as place:
        shape = {AxisName.P: place.world}
        library = Grid.build(shape, Ledger(recording=False))
        composed = Grid.build(shape, Ledger(recording=False), composed_from=0)
        axes = {"gloo": library[AxisName.P], "rounds": composed[AxisName.P]}
        table = Table("call", "bytes", "gloo ms", "Mbit/s", "rounds ms", "Mbit/s", shown=place.rank == 0)
        for size in SIZES:
            for name in calls(axes["gloo"], size):
                ways = {way: calls(axis, size)[name] for way, axis in axes.items()}
                own = alternate(ways, ROUNDS, warm=WARM, before=library.world.barrier)
                if ranks := gather_tables(library.world, own):
                    bits = received_bits(axes["gloo"], name, size)
                    cells = []
                    for seconds in map(median, slowest_rank(ranks).values()):
                        cells += [f"{1e3 * seconds:.1f}", f"{bits / seconds / 1e6:.0f}"]
                    table.row(name, f"{size:,}", *cells)
        if place.rank == 0:
            print()
        cores, largest = len(os.sched_getaffinity(0)), SIZES[-1]
        table = Table("call in rounds", "ns a byte", "Mbit/s of a link, cores busy", shown=place.rank == 0)
        for name, call in calls(axes["rounds"], largest).items():
            library.world.barrier()
            if spent := gather_tables(library.world, processor_seconds(call)):
                each = sum(spent) / (ROUNDS * place.world * received_bits(axes["rounds"], name, largest) / 8)
                table.row(name, f"{1e9 * each:.1f}", f"{8 * cores / (each * place.world) / 1e6:.0f}")


if __name__ == "__main__":
    main()
