"""Seconds of collectives on the links of a machine: ring algorithms, bandwidth alone (Plexus, section 4.2).

A ring of p members moves what `harness.comm.traffic` says a member receives, at the effective bandwidth of its axis. It
knows nothing of latency, of calls that overlap, or of links that other jobs use.
"""

from collections.abc import Mapping
from math import prod

from harness.comm import traffic
from harness.ledger import AxisName, Op
from harness.spec.machine import Links
from harness.strategy import WORD, Words

GB = 1 << 30
"""As the authors of the model count."""


def bandwidth(links: Links, before: int, size: int) -> float:
    """GB a second of an axis of this size whose neighbours are `before` ranks apart (equation 4.6).

    Inside a node it is the node's own; else ranks of a node share what leaves it, as many of them as the axis passes
    over. Where it was measured, that is taken.
    """
    measured = [row.gbs for row in links.measured if row.before <= before and row.size <= size]
    if measured:
        return measured[-1]
    if before * size <= links.devices_per_node:
        return links.intra_gbs
    return links.node_gbs / min(links.devices_per_node, before)


def communication(words: Words, grid: Mapping[AxisName, int], links: Links, precision: str) -> float:
    """Seconds in which the words of an epoch travel, one call after the other. `grid` has its fastest axis last."""
    return sum(
        WORD[precision] * _received(key.op, count, size) / (bandwidth(links, before, size) * GB)
        for key, count in words.items()
        for before, size in [_place(grid, key.axis)]
    )


def _place(grid: Mapping[AxisName, int], label: str) -> tuple[int, int]:
    """How far apart the neighbours of an axis are, and how many members it has; of several taken as one."""
    names, order = label.split("+"), list(grid)
    last = max(order.index(AxisName(name)) for name in names)
    return prod(grid[axis] for axis in order[last + 1 :]), prod(grid[AxisName(name)] for name in names)


def _received(op: Op, words: float, size: int) -> float:
    """What a ring brings to a rank whose share is as large as the others'."""
    count, own = round(words), round(words / size)
    by_op = {
        Op.ALL_REDUCE: traffic.all_reduce(count, size),
        Op.ALL_GATHER: traffic.all_gather(count, own),
        Op.REDUCE_SCATTER: traffic.reduce_scatter(count, size),
        Op.BROADCAST: traffic.broadcast(count, root=False),
        Op.ALL_TO_ALL: traffic.all_to_all(count, 0),
        Op.SEND: traffic.send(count),
        Op.RECV: traffic.recv(count),
    }
    return by_op[op].received
