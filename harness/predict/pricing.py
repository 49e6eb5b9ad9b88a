"""The seconds of a replayed event on a machine, by the constants of the machine's card: kernels and calls.

Kernels. A dense product and an elementwise kernel take the longer of their arithmetic and their memory traffic (a
roofline), each at the share of the peak that kernels reach; a sparse product takes the sum of five terms of its shape,
and of a sixth for the rows that a cache cannot hold, if the card names the cache.

Calls. A ring of p members has p - 1 rounds, each with the latency of a message; an axis has the bandwidth of Plexus'
equation 4.6, or a measured one. Small reductions go over a tree where a tree is faster. An all-to-all is bound by its
node's share of the links between nodes. Gloo, whose calls have other forms, is priced by the forms of
`harness.comm.collectives`.

Copies between a device and its host take the bandwidth and the latency of the link between them.

All seconds are kept apart by the constant that they are proportional to, so that a prediction can say what limits it,
and how far it is off where a constant is.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from math import ceil, log2, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.comm.collectives import SMALL_GATHER, SMALL_REDUCTION
from harness.comm.ring_collectives import PIECES
from harness.ledger import AxisName, Op
from harness.ledger.tape import Event, ProductShape
from harness.spec.machine_card import Constant, Links, MachineCard, Rates, SpmmTerms
from harness.strategy import Words

GB, MB = 1 << 30, 1 << 20
"""The GB and the MB of a machine card."""
MICRO, NANO = 1e-6, 1e-9
WIDTH = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
FULL = 4
"""The bytes of the numbers whose products the terms of a card were fitted to."""


class TimePart(IntEnum):
    """A part of a time: what it is proportional to."""

    ARITHMETIC = 0
    MEMORY = auto()
    LAUNCH = auto()
    SAMPLE = auto()
    SPMM = auto()
    INTRA = auto()
    NODE = auto()
    INTRA_ALL_TO_ALL = auto()
    NODE_ALL_TO_ALL = auto()
    INTRA_LATENCY = auto()
    LATENCY = auto()
    CPU = auto()
    HOST = auto()
    HOST_LATENCY = auto()
    MEASURED = auto()
    """Kernels that were measured, and hang on no constant."""


Seconds = NDArray[np.float64]
"""The seconds of each part."""


def constants(card: MachineCard) -> dict[str, tuple[float, tuple[TimePart, ...]]]:
    """By the name of each constant in a card: the factor of its interval, and the parts that it scales."""
    rates, links = card.rates, card.links
    assert rates and links, "a prediction is refused before (`harness.predict.prediction`)"
    named: dict[str, tuple[Constant | SpmmTerms | None, tuple[TimePart, ...]]] = {
        "rates.tflops": (rates.tflops, (TimePart.ARITHMETIC,)),
        "rates.memory_gbs": (rates.memory_gbs, (TimePart.MEMORY,)),
        "rates.efficiency": (rates.efficiency, (TimePart.ARITHMETIC, TimePart.MEMORY)),
        "rates.launch_us": (rates.launch_us, (TimePart.LAUNCH,)),
        "rates.sample_ns": (rates.sample_ns, (TimePart.SAMPLE,)),
        "rates.spmm": (rates.spmm, (TimePart.SPMM,)),
        "links.intra_gbs": (links.intra_gbs, (TimePart.INTRA, TimePart.INTRA_ALL_TO_ALL)),
        "links.node_gbs": (links.node_gbs, (TimePart.NODE, TimePart.NODE_ALL_TO_ALL)),
        "links.all_to_all_share": (
            links.all_to_all_share,
            (TimePart.INTRA_ALL_TO_ALL, TimePart.NODE_ALL_TO_ALL),
        ),
        "links.intra_latency_us": (links.intra_latency_us, (TimePart.INTRA_LATENCY,)),
        "links.latency_us": (links.latency_us, (TimePart.LATENCY,)),
        "links.cpu_gbs": (links.cpu_gbs, (TimePart.CPU,)),
        "links.host_gbs": (links.host_gbs, (TimePart.HOST,)),
        "links.host_latency_us": (links.host_latency_us, (TimePart.HOST_LATENCY,)),
    }
    within = {name: (constant.within, parts) for name, (constant, parts) in named.items() if constant}
    # Two constants of one part share the wider of their intervals.
    for name, other in (("rates.tflops", rates.tflops_half), ("rates.launch_us", links.call_us)):
        factor, parts = within[name]
        within[name] = max(factor, other.within) if other else factor, parts
    return within


# Kernels.


def kernel_seconds(event: Event, rates: Rates) -> Seconds:
    """The seconds of all kernels of an event and of its sampling, one after the other."""
    seconds = np.zeros(len(TimePart))
    memory = rates.efficiency.value * GB * rates.memory_gbs.value
    seconds[TimePart.LAUNCH] = (event.kernels + len(event.products)) * MICRO * rates.launch_us.value
    seconds[TimePart.SAMPLE] = event.drawn * NANO * rates.sample_ns.value
    seconds[TimePart.MEMORY] = event.streamed / memory
    for product in event.products:
        width = WIDTH[product.values]
        if product.indices:
            seconds[TimePart.SPMM] += spmm_seconds(product, rates.spmm) * width / FULL
            continue
        m, k, n = product.rows, product.inner, product.columns
        rate = rates.tflops_half if width < FULL and rates.tflops_half else rates.tflops
        peak = rates.efficiency.value * 1e12 * rate.value
        arithmetic = 2 * m * k * n / peak * max(width / FULL, 1)
        traffic = width * (m * k + k * n + m * n) / memory
        seconds[TimePart.ARITHMETIC if arithmetic > traffic else TimePart.MEMORY] += max(arithmetic, traffic)
    return seconds


def spmm_terms(product: ProductShape, cache_mb: float | None = None) -> tuple[float, ...]:
    """The factors of the five terms of a sparse product, and of the sixth with a cache of this size."""
    m, n, entries = product.rows, product.columns, product.nonzeros
    five = entries * n, entries, m * n, m, 1
    return five if cache_mb is None else (*five, entries * n * share_missed(product, cache_mb))


def share_missed(product: ProductShape, cache_mb: float) -> float:
    """The share of the rows of the dense matrix that a cache cannot hold. Rows that no nonzero reads do not count."""
    rows_read = min(product.inner, product.nonzeros)
    size, cache = rows_read * product.columns * WIDTH[product.values], cache_mb * MB
    return 1 - cache / size if size > cache else 0.0


def spmm_seconds(product: ProductShape, terms: SpmmTerms) -> float:
    """The seconds of a sparse product in float32. The type of the values decides only what fits the cache."""
    each: tuple[float, ...] = (terms.entry_column, terms.entry, terms.row_column, terms.row, terms.call)
    if terms.cache_mb is not None:
        each = *each, terms.missed_column
    factors = spmm_terms(product, terms.cache_mb)
    return NANO * sum(term * factor for term, factor in zip(each, factors, strict=True))


def copy_seconds(event: Event, links: Links) -> Seconds:
    """The seconds of an event's copies between the host and its device; none where ranks compute on the host."""
    seconds = np.zeros(len(TimePart))
    if links.host_gbs:
        seconds[TimePart.HOST] = event.copied / (GB * links.host_gbs.value)
    if links.host_latency_us:
        seconds[TimePart.HOST_LATENCY] = event.copies * MICRO * links.host_latency_us.value
    return seconds


# Calls.


class AxisPlace(NamedTuple):
    """An axis on the nodes of a machine."""

    before: int
    """The distance in ranks between neighbours."""
    size: int
    inside: int
    """The members in one node."""
    sharing: int
    """The ranks of a node, all of which send at the same time."""


def placed(grid: Mapping[AxisName, int], label: str, links: Links) -> AxisPlace:
    """An axis, or several as one, of a grid whose last axis is the fastest."""
    names, order = label.split("+"), list(grid)
    last = max(order.index(AxisName(name)) for name in names)
    before = prod(grid[axis] for axis in order[last + 1 :])
    size = prod(grid[AxisName(name)] for name in names)
    per_node = links.devices_per_node
    return AxisPlace(before, size, min(size, max(1, per_node // before)), min(per_node, prod(grid.values())))


def between(one: int, other: int, world: int, links: Links) -> AxisPlace:
    """Two ranks that send each other messages, as an axis of two."""
    per_node = links.devices_per_node
    together = one // per_node == other // per_node
    return AxisPlace(abs(one - other), 2, 2 if together else 1, min(per_node, world))


def bandwidth(links: Links, axis: AxisPlace) -> float:
    """The GB a second of a ring over an axis (Plexus, equation 4.6).

    A measured bandwidth is taken first. An axis inside a node has the bandwidth of the node. On other axes, the
    ranks that an axis passes over share the links of their node.
    """
    measured = [row.gbs for row in links.measured if row.before <= axis.before and row.size <= axis.size]
    if measured:
        return measured[-1]
    if axis.inside == axis.size:
        return links.intra_gbs.value
    return links.node_gbs.value / min(links.devices_per_node, axis.before)


def ring_seconds(words: Words, grid: Mapping[AxisName, int], links: Links, bytes_of_word: float) -> float:
    """The seconds of an epoch's words over rings without latency: the model of Plexus, section 4.2."""
    total = 0.0
    for key, count in words.items():
        axis = placed(grid, key.axis, links)
        passes = 2 if key.op is Op.ALL_REDUCE else 1
        received = passes * count * (axis.size - 1) / axis.size
        total += bytes_of_word * received / (GB * bandwidth(links, axis))
    return total


class CallBytes(NamedTuple):
    """What a call moves: the bytes of the whole buffer, and those that a ring brings to this rank."""

    op: Op
    whole: float
    received: float


class Passage(NamedTuple):
    """The way of a call through the links."""

    hops: float
    """The messages that follow each other."""
    bytes: float
    """The bytes on the busiest link of a member."""
    collides: bool = False
    """True for an all-to-all, whose messages meet on the links."""


def call_seconds(moved: CallBytes, axis: AxisPlace, card: MachineCard) -> tuple[Seconds, Seconds]:
    """The seconds of one call of all members of an axis: of the cores that compute, and of the links."""
    links, rates, on_links = card.links, card.rates, np.zeros(len(TimePart))
    assert links and rates
    form = (_by_gloo if card.engine == "gloo" else _by_nccl)(moved, axis, card.composed_from)
    # The share of the hops of a ring that leave a node, and the share of the bytes of an all-to-all that do.
    leaving = 0.0 if axis.inside == axis.size else 1 / axis.inside
    outside = (axis.size - axis.inside) / (axis.size - 1)
    on_links[TimePart.INTRA_LATENCY] = form.hops * (1 - leaving) * MICRO * links.intra_latency_us.value
    on_links[TimePart.LATENCY] = form.hops * leaving * MICRO * links.latency_us.value
    if form.collides:
        reached = GB * links.all_to_all_share.value
        inner = (1 - outside) * form.bytes / (reached * links.intra_gbs.value)
        outer = outside * form.bytes * axis.sharing / (reached * links.node_gbs.value)
        on_links[TimePart.NODE_ALL_TO_ALL if outer > inner else TimePart.INTRA_ALL_TO_ALL] = max(inner, outer)
    else:
        on_links[TimePart.NODE if leaving else TimePart.INTRA] = form.bytes / (GB * bandwidth(links, axis))
    on_cores = np.zeros(len(TimePart))
    if links.cpu_gbs is None:
        on_links[TimePart.LAUNCH] = MICRO * (links.call_us or rates.launch_us).value
        return on_cores, on_links
    for latency in (TimePart.INTRA_LATENCY, TimePart.LATENCY):  # the time in which cores wake each other
        on_cores[latency], on_links[latency] = on_links[latency], 0.0
    on_cores[TimePart.CPU] = form.bytes / (GB * links.cpu_gbs.value)
    return on_cores, on_links


def _by_nccl(moved: CallBytes, axis: AxisPlace, _: int | None) -> Passage:
    """Rings, and trees for the latency of reductions.

    Broadcasts follow each other from neighbouring roots, so they pass through a ring one behind the other, a hop apart.
    """
    rounds = axis.size - 1
    forms = {
        Op.ALL_REDUCE: Passage(2 * min(rounds, ceil(log2(axis.size))), moved.received),
        Op.BROADCAST: Passage(1, moved.whole),
        Op.ALL_TO_ALL: Passage(rounds, moved.received, collides=True),
        Op.SEND: Passage(1, moved.whole),
        Op.RECV: Passage(1, moved.whole),
    }
    return forms.get(moved.op, Passage(rounds, moved.received))


def _by_gloo(moved: CallBytes, axis: AxisPlace, composed_from: int | None) -> Passage:
    """The forms of `harness.comm.collectives`: exchanges for small calls, trees, and composed calls by size.

    The root's link carries a message once for each level of a tree; a member is half as deep as the tree on average:
    roots take turns, and members do not wait for each other.
    """
    size, rounds, copies = axis.size, axis.size - 1, ceil(log2(axis.size))
    composed = composed_from is not None and moved.whole >= composed_from
    exchanged = Passage(rounds, moved.received, collides=True)
    forms = {
        Op.ALL_REDUCE: Passage(2 * rounds, moved.received),
        Op.BROADCAST: Passage(copies / 2, copies * moved.whole),
        Op.ALL_GATHER: Passage(rounds, moved.received),
        Op.SEND: Passage(1, moved.whole),
        Op.RECV: Passage(1, moved.whole),
    }
    if composed and moved.op is Op.BROADCAST:
        return Passage(size, moved.whole * (PIECES + size - 2) / PIECES)
    if moved.op is Op.ALL_REDUCE and size > 2 and moved.whole * size <= SMALL_REDUCTION:
        return Passage(rounds, rounds * moved.whole, collides=True)
    if moved.op is Op.ALL_GATHER and not composed and moved.whole <= SMALL_GATHER:
        return exchanged
    return forms.get(moved.op, exchanged)
