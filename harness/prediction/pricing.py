"""Prices replayed events: the seconds of kernels, copies and calls on a machine, from the constants of its card.

Kernels. A dense product or an elementwise kernel takes the longer of its arithmetic and its memory traffic (a
roofline), each at the fraction of the peak that kernels reach. A sparse product takes the sum of five terms of its
shape, and of two more for rows that do not fit the cache, if the card gives the size of the cache.

Calls. A call takes a minimum time, the latency of each round, and the transfer of its bytes. A ring of p members has
p - 1 rounds. Between nodes an axis has the bandwidth of Plexus' equation 4.6, or a measured one: the axes whose members
lie in the same nodes share the links of the nodes. Inside a node a call of p devices uses p - 1 direct links of each
device, unless a switch connects them. NCCL cuts what leaves a node into slices, so that the latency of a slice overlaps
with the transfer of others. Small reductions use a tree where a tree is faster. An all-to-all is limited by the links
between nodes, which the ranks of a node share. Calls of Gloo are priced by the algorithms of
`harness.comm.collectives`; if ranks compute on GPUs, their bytes are copied through the host.

Copies between a device and its host are limited by the bandwidth and the latency of the link between them.

Seconds are kept separately for each constant that they are proportional to. A prediction can then report what limits
it, and how the uncertainty of a constant affects it.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from math import ceil, inf, log2, prod, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.base.formatting import GB, MB
from harness.comm.collectives import SMALL_GATHER, SMALL_REDUCTION
from harness.comm.ring_collectives import PIECES
from harness.ledger import AxisName, Op
from harness.ledger.tape import Event, ProductShape
from harness.spec.machine_card import Constant, Links, MachineCard, Rates, SpmmTerms
from harness.strategy import Words

MICRO, NANO = 1e-6, 1e-9
BYTES_PER_VALUE = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
FITTED_BYTES = 4
"""The bytes of a value in the products to which the terms of a card were fitted."""
MESSAGES_PER_ROUND = 2
"""The messages of an exchange over gloo, posted at once, that take a core as long as a round of another call
(benchmarks/results/links.md)."""
SPMM_TERMS = ("entry_column", "entry", "row_column", "row", "call", "missed_column", "missed_entry")
"""The terms of a sparse product in a card (`harness.spec.machine_card.SpmmTerms`)."""


class TimePart(IntEnum):
    """A part of a time, named by what it is proportional to."""

    ARITHMETIC = 0
    MEMORY = auto()
    LAUNCH = auto()
    EVENT = auto()
    ISSUE = auto()
    SAMPLE = auto()
    SPMM = auto()
    INTRA = auto()
    PEER = auto()
    NODE = auto()
    NODE_ALL_TO_ALL = auto()
    CALL = auto()
    EXCHANGE = auto()
    INTRA_LATENCY = auto()
    LATENCY = auto()
    MESSAGE = auto()
    CPU = auto()
    HOST = auto()
    HOST_LATENCY = auto()
    MEASURED = auto()
    """Measured kernels, which depend on no constant."""


Seconds = NDArray[np.float64]
"""The seconds of each part."""
BETWEEN_NODES = (TimePart.NODE, TimePart.NODE_ALL_TO_ALL, TimePart.LATENCY)
"""The parts that are spent on the links between nodes, where the messages of others cause noise."""


def list_constants(card: MachineCard) -> dict[str, tuple[float, tuple[TimePart, ...]]]:
    """Return the factor of the interval of each constant of a card, and the parts of a time that it scales."""
    rates, links = card.rates, card.links
    assert rates and links, "check_card has not been called"
    unmeasured = [TimePart.CALL] * (not links.call_us) + [TimePart.EXCHANGE] * (not links.exchange_us)
    named: dict[str, tuple[Constant | SpmmTerms | None, tuple[TimePart, ...]]] = {
        "rates.tflops": (rates.tflops, (TimePart.ARITHMETIC,)),
        "rates.memory_gbs": (rates.memory_gbs, (TimePart.MEMORY,)),
        "rates.efficiency": (rates.efficiency, (TimePart.ARITHMETIC, TimePart.MEMORY)),
        "rates.launch_us": (rates.launch_us, (TimePart.LAUNCH, *(() if links.call_us else unmeasured))),
        "rates.issue_us": (rates.issue_us, (TimePart.ISSUE,)),
        "rates.event_us": (rates.event_us, (TimePart.EVENT,)),
        "rates.sample_ns": (rates.sample_ns, (TimePart.SAMPLE,)),
        "rates.spmm": (rates.spmm, (TimePart.SPMM,)),
        "links.intra_gbs": (links.intra_gbs, (TimePart.INTRA,)),
        "links.peer_gbs": (links.peer_gbs, (TimePart.PEER,)),
        "links.node_gbs": (links.node_gbs, (TimePart.NODE, TimePart.NODE_ALL_TO_ALL)),
        "links.all_to_all_share": (links.all_to_all_share, (TimePart.NODE_ALL_TO_ALL,)),
        "links.call_us": (links.call_us, (TimePart.CALL, *unmeasured)),
        "links.exchange_us": (links.exchange_us, (TimePart.EXCHANGE,)),
        "links.intra_latency_us": (links.intra_latency_us, (TimePart.INTRA_LATENCY,)),
        "links.latency_us": (links.latency_us, (TimePart.LATENCY, TimePart.MESSAGE)),
        "links.cpu_gbs": (links.cpu_gbs, (TimePart.CPU,)),
        "links.host_gbs": (links.host_gbs, (TimePart.HOST,)),
        "links.host_latency_us": (links.host_latency_us, (TimePart.HOST_LATENCY,)),
    }
    within = {name: (constant.within, parts) for name, (constant, parts) in named.items() if constant}
    if rates.tflops_half:  # both scale the same part, and the wider of their intervals counts
        factor, parts = within["rates.tflops"]
        within["rates.tflops"] = max(factor, rates.tflops_half.within), parts
    return within


# Kernels.


def price_kernels(event: Event, rates: Rates) -> Seconds:
    """Return the seconds of all kernels of an event, its sampling and the code around them, one after the other."""
    seconds = np.zeros(len(TimePart))
    memory = rates.efficiency.value * GB * rates.memory_gbs.value
    seconds[TimePart.LAUNCH] = event.launches * MICRO * rates.launch_us.value
    if rates.event_us and event.does_something:
        seconds[TimePart.EVENT] = MICRO * rates.event_us.value
    seconds[TimePart.SAMPLE] = event.drawn * NANO * rates.sample_ns.value
    seconds[TimePart.MEMORY] = event.streamed / memory
    for product in event.products:
        width = BYTES_PER_VALUE[product.values]
        if product.indices:
            seconds[TimePart.SPMM] += price_spmm(product, rates.spmm) * width / FITTED_BYTES
            continue
        m, k, n = product.rows, product.inner, product.columns
        rate = rates.tflops_half if width < FITTED_BYTES and rates.tflops_half else rates.tflops
        peak = rates.efficiency.value * 1e12 * rate.value
        arithmetic = 2 * m * k * n / peak * max(width / FITTED_BYTES, 1)
        traffic = width * (m * k + k * n + m * n) / memory
        seconds[TimePart.ARITHMETIC if arithmetic > traffic else TimePart.MEMORY] += max(arithmetic, traffic)
    return seconds


def compute_spmm_factors(
    product: ProductShape, cache_mb: float | None = None, pass_columns: int | None = None
) -> tuple[float, ...]:
    """Return the factors of the terms of a sparse product, in the order of `SPMM_TERMS`."""
    m, n, entries = product.rows, product.columns, product.nonzeros
    width = min(n, pass_columns or n)
    passes = ceil(n / width) if n else 0
    missed = entries * compute_miss_rate(product, width, cache_mb)
    return entries * n, entries * passes, m * n, m * passes, 1, missed * n, missed * passes


def compute_miss_rate(product: ProductShape, width: int, cache_mb: float | None) -> float:
    """Return the fraction of the reads of `width` columns of the dense matrix that miss the cache.

    Rows are read in no order, so a cache holds any row with the same probability. Rows that no nonzero reads do not
    count. Without the size of the cache, no read misses.
    """
    if cache_mb is None:
        return 0.0
    rows_read = min(product.inner, product.nonzeros)
    size, cache = rows_read * width * BYTES_PER_VALUE[product.values], cache_mb * MB
    return 1 - cache / size if size > cache else 0.0


def price_spmm(product: ProductShape, terms: SpmmTerms) -> float:
    """Return the seconds of a sparse product in float32. The data type only affects how much fits the cache."""
    factors = compute_spmm_factors(product, terms.cache_mb, terms.pass_columns)
    each = [getattr(terms, name) for name in SPMM_TERMS]
    return NANO * float(sum(term * factor for term, factor in zip(each, factors, strict=True)))


def price_copies(event: Event, links: Links) -> Seconds:
    """Return the seconds of an event's copies between the host and the device; 0 if ranks compute on the host."""
    seconds = np.zeros(len(TimePart))
    if links.host_gbs:
        seconds[TimePart.HOST] = event.copied / (GB * links.host_gbs.value)
    if links.host_latency_us:
        seconds[TimePart.HOST_LATENCY] = event.copies * MICRO * links.host_latency_us.value
    return seconds


# Calls.


class AxisPlacement(NamedTuple):
    """The placement of an axis on the nodes of a machine."""

    stride: int
    """The distance in ranks between neighbours."""
    size: int
    members_per_node: int
    """The members on a node; on the last node there may be fewer."""
    ranks_per_node: int
    """The ranks of a node, which all send at the same time."""


def place_axis(grid: Mapping[AxisName, int], label: str, links: Links) -> AxisPlacement:
    """Return the placement of an axis, or of several as one, of a grid whose last axis varies fastest."""
    names, order = label.split("+"), list(grid)
    last = max(order.index(AxisName(name)) for name in names)
    stride = prod(grid[axis] for axis in order[last + 1 :])
    size = prod(grid[AxisName(name)] for name in names)
    per_node = links.devices_per_node
    inside = min(size, max(1, per_node // stride))
    return AxisPlacement(stride, size, inside, min(per_node, prod(grid.values())))


def place_pair(one: int, other: int, world: int, links: Links) -> AxisPlacement:
    """Return the placement of two ranks that exchange messages, as an axis of two.

    All ranks of a node are assumed to exchange messages at the same time, so that each has its part of the links.
    """
    per_node = links.devices_per_node
    if one // per_node == other // per_node:
        return AxisPlacement(abs(one - other), 2, 2, min(per_node, world))
    return AxisPlacement(max(abs(one - other), per_node), 2, 1, min(per_node, world))


def find_bandwidth(links: Links, axis: AxisPlacement) -> float:
    """Return the bandwidth of a ring over an axis in GB/s (Plexus, equation 4.6).

    A measured bandwidth takes precedence. Otherwise, an axis within a node has the direct links of its members, or the
    bandwidth of a device, and the ranks between two neighbours of any other axis share the links of a node.
    """
    if (measured := find_measured_bandwidth(links, axis)) is not None:
        return measured
    if axis.members_per_node == axis.size:
        return _find_bandwidth_inside(links, axis.size)[0]
    return links.node_gbs.value / min(links.devices_per_node, axis.stride)


def find_measured_bandwidth(links: Links, axis: AxisPlacement) -> float | None:
    """Return the bandwidth that was measured on such an axis; None if none was."""
    found = [row.gbs for row in links.measured if row.before <= axis.stride and row.size <= axis.size]
    return found[-1] if found else None


def _find_bandwidth_inside(links: Links, members: int) -> tuple[float, TimePart]:
    """Return the bandwidth of a call of this many devices of a node in GB/s, and the part of its transfer."""
    by_peers = (members - 1) * links.peer_gbs.value if links.peer_gbs else inf
    return min((by_peers, TimePart.PEER), (links.intra_gbs.value, TimePart.INTRA), key=lambda pair: pair[0])


def price_rings(words: Words, grid: Mapping[AxisName, int], links: Links, bytes_of_word: float) -> float:
    """Return the seconds to send the words of an epoch over rings, without latency (Plexus, section 4.2)."""
    total = 0.0
    for key, count in words.items():
        axis = place_axis(grid, key.axis, links)
        passes = 2 if key.op is Op.ALL_REDUCE else 1
        received = passes * count * (axis.size - 1) / axis.size
        total += bytes_of_word * received / (GB * find_bandwidth(links, axis))
    return total


class CallBytes(NamedTuple):
    """The bytes of a call: of the full logical buffer, and those that a ring delivers to this rank."""

    op: Op
    buffer: float
    received: float
    partners: int | None = None
    """The members with which a member exchanges messages in an all-to-all; None for all."""


class LinkTraffic(NamedTuple):
    """The traffic of a call on the links."""

    hops: float
    """The number of messages that must follow each other."""
    bytes: float
    """The bytes on the busiest link of a member."""
    senders: float = 0
    """The members that send to a member at the same time in an all-to-all, so that their messages compete for its link:
    infinitely many if the share of an all-to-all is a measured one. 0 for other calls."""
    is_tree: bool = False
    """True if the hops form a tree, with one subtree on each node."""


def price_call(size: CallBytes, axis: AxisPlacement, card: MachineCard) -> tuple[Seconds, Seconds]:
    """Return the seconds of a call of all members of an axis: on the cores, and on the links."""
    links, rates, on_links = card.links, card.rates, np.zeros(len(TimePart))
    assert links and rates
    uses_gloo = card.engine == "gloo"
    traffic = (_model_gloo if uses_gloo else _model_nccl)(size, axis, card.composed_from)
    leaving = _find_leaving_fraction(axis, is_tree=traffic.is_tree)
    outside = (axis.size - axis.members_per_node) / (axis.size - 1)  # of the bytes of an all-to-all
    on_links[TimePart.INTRA_LATENCY] = traffic.hops * (1 - leaving) * MICRO * links.intra_latency_us.value
    on_links[TimePart.LATENCY] = traffic.hops * leaving * MICRO * links.latency_us.value
    if traffic.senders:
        gbs, part = _find_bandwidth_inside(links, axis.members_per_node)
        inner = (1 - outside) * traffic.bytes / (GB * gbs) if outside < 1 else 0.0
        many = links.all_to_all_share.value
        node = GB * (many + (1 - many) / traffic.senders) * links.node_gbs.value
        outer = outside * traffic.bytes * axis.ranks_per_node / node
        on_links[TimePart.NODE_ALL_TO_ALL if outer > inner else part] = max(inner, outer)
    else:
        transfer = traffic.bytes / (GB * find_bandwidth(links, axis))
        part = TimePart.NODE if leaving else _find_bandwidth_inside(links, axis.size)[1]
        on_links[part] = transfer
        if leaving and not uses_gloo and find_measured_bandwidth(links, axis) is None:
            # The time of slices of the best size is (sqrt(latency) + sqrt(transfer))^2.
            slicing = sqrt(transfer * on_links[TimePart.LATENCY])
            on_links[[TimePart.NODE, TimePart.LATENCY]] += slicing
    if uses_gloo and links.host_gbs and links.host_latency_us:  # through the host, both ways
        pieces = traffic.senders or 1
        on_links[TimePart.HOST] = 2 * size.buffer / (GB * links.host_gbs.value)
        on_links[TimePart.HOST_LATENCY] = 2 * pieces * MICRO * links.host_latency_us.value
    on_cores = np.zeros(len(TimePart))
    if links.cpu_gbs is None:
        call = links.call_us or rates.launch_us
        floor = (links.exchange_us or call) if traffic.senders else call
        on_links[TimePart.EXCHANGE if traffic.senders else TimePart.CALL] = MICRO * floor.value
        return on_cores, on_links
    for latency in (TimePart.INTRA_LATENCY, TimePart.LATENCY):  # the cores wake each other
        on_cores[latency], on_links[latency] = on_links[latency], 0.0
    on_cores[TimePart.CPU] = traffic.bytes / (GB * links.cpu_gbs.value)
    if traffic.senders:  # its messages are posted and handled while others are in flight
        on_cores[TimePart.MESSAGE] = traffic.senders / MESSAGES_PER_ROUND * MICRO * links.latency_us.value
    return on_cores, on_links


def _find_leaving_fraction(axis: AxisPlacement, *, is_tree: bool) -> float:
    """Return the fraction of the hops of a ring or a tree that leave a node."""
    if axis.members_per_node == axis.size:
        return 0.0
    if not is_tree:
        return 1 / axis.members_per_node
    inside, outside = count_tree_levels(axis)
    return outside / (inside + outside)


def count_tree_levels(axis: AxisPlacement) -> tuple[int, int]:
    """Return the levels of a tree with one subtree on each node: those inside a node, and those between nodes."""
    nodes = ceil(axis.size / axis.members_per_node)
    return ceil(log2(axis.members_per_node)), ceil(log2(nodes))


def _model_nccl(size: CallBytes, axis: AxisPlacement, _: int | None) -> LinkTraffic:
    """Return the traffic of a call of NCCL: rings, and trees for the latency of reductions.

    Consecutive broadcasts come from neighbouring roots, so they are pipelined through the ring, one hop apart.
    """
    rounds = axis.size - 1
    forms = {
        Op.ALL_REDUCE: LinkTraffic(2 * sum(count_tree_levels(axis)), size.received, is_tree=True),
        Op.BROADCAST: LinkTraffic(1, size.buffer),
        Op.ALL_TO_ALL: LinkTraffic(rounds, size.received, senders=inf),
        Op.SEND: LinkTraffic(1, size.buffer),
        Op.RECV: LinkTraffic(1, size.buffer),
    }
    return forms.get(size.op, LinkTraffic(rounds, size.received))


def _model_gloo(size: CallBytes, axis: AxisPlacement, composed_from: int | None) -> LinkTraffic:
    """Return the traffic of a call by `harness.comm.collectives`: exchanges for small calls, trees, or composed rounds.

    The link of the root carries a message once for each level of a tree. A member is half as deep as the tree on
    average: roots take turns, and members do not wait for each other.
    """
    members, rounds, copies = axis.size, axis.size - 1, ceil(log2(axis.size))
    composed = composed_from is not None and size.buffer >= composed_from
    partners = rounds if size.partners is None else size.partners
    exchanged = LinkTraffic(1, size.received, partners)
    forms = {
        Op.ALL_REDUCE: LinkTraffic(2 * rounds, size.received),
        Op.BROADCAST: LinkTraffic(copies / 2, copies * size.buffer),
        Op.ALL_GATHER: LinkTraffic(rounds, size.received),
        Op.SEND: LinkTraffic(1, size.buffer),
        Op.RECV: LinkTraffic(1, size.buffer),
    }
    if composed and size.op is Op.BROADCAST:
        return LinkTraffic(members, size.buffer * (PIECES + members - 2) / PIECES)
    if size.op is Op.ALL_REDUCE and members > 2 and size.buffer * members <= SMALL_REDUCTION:
        return exchanged._replace(bytes=rounds * size.buffer)
    if size.op is Op.ALL_GATHER and not composed and size.buffer <= SMALL_GATHER:
        return exchanged
    return forms.get(size.op, exchanged)
