"""The seconds of kernels and calls: bandwidths by Plexus' section 4.2, latencies by rounds, products by five terms."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.ledger import AxisName, Direction, Key, Op, Phase, TensorName
from harness.ledger.tape import Event, ProductShape
from harness.prediction.pricing import (
    GB,
    MESSAGES_PER_ROUND,
    SPMM_TERMS,
    AxisPlacement,
    CallBytes,
    TimePart,
    find_bandwidth,
    list_constants,
    place_axis,
    place_pair,
    price_call,
    price_copies,
    price_kernels,
    price_rings,
    price_spmm,
)
from harness.spec.machine_card import Constant, MachineCard, list_machines, load_machine_card
from harness.strategy import Words

ROOT = Path(__file__).parents[2]
X, Y, Z = AxisName.X, AxisName.Y, AxisName.Z
KEY = Key(Phase.CONVOLVE, 0, Direction.FORWARD, Op.SPMM)


def constant(value: float, within: float = 1.5) -> dict[str, Any]:
    return {"value": value, "within": within, "source": "assumed"}


def card(engine: str = "nccl", **links: Any) -> MachineCard:
    """Four devices a node: 200 GB/s inside, 100 GB/s outside, 1 us and 10 us."""
    terms = {"entry_column": 1.0, "entry": 2.0, "row_column": 3.0, "row": 4.0, "call": 5.0}
    return MachineCard.model_validate(
        {
            "name": "any",
            "engine": engine,
            "rates": {
                "tflops": constant(2),
                "memory_gbs": constant(10),
                "efficiency": constant(0.5),
                "launch_us": constant(7),
                "sample_ns": constant(20),
                "spmm": {**terms, "within": 1.5, "source": "assumed"},
            },
            "links": {
                "devices_per_node": 4,
                "intra_gbs": constant(200),
                "node_gbs": constant(100),
                "intra_latency_us": constant(1),
                "latency_us": constant(10),
                "all_to_all_share": constant(0.5),
                **links,
            },
        }
    )


CARD = card()
assert CARD.links and CARD.rates
LINKS, RATES = CARD.links, CARD.rates


@pytest.mark.parametrize(
    ("before", "size", "gbs"),
    [(1, 4, 200), (2, 2, 200), (1, 8, 100), (2, 4, 50), (4, 4, 25), (16, 2, 25)],
)
def test_ranks_of_a_node_share_what_leaves_it(before: int, size: int, gbs: float) -> None:
    assert find_bandwidth(LINKS, on_axis(before, size)) == gbs


def on_axis(before: int, size: int) -> AxisPlacement:
    return place_axis({X: size, Y: before}, "x", LINKS)


def test_two_rings_over_one_socket_have_half_the_rate_each() -> None:
    """CAG-087: 12.5 GB/s shared by the devices of a socket."""
    socket = card(devices_per_node=3, node_gbs=constant(12.5)).links
    assert socket
    alone, beside = (find_bandwidth(socket, place_axis({X: 2, Y: before}, "x", socket)) for before in (3, 6))
    one_ring = find_bandwidth(socket, place_axis({X: 6, Y: 1}, "x", socket))
    two_rings = find_bandwidth(socket, place_axis({X: 6, Y: 2}, "x", socket))
    assert (one_ring, two_rings) == (12.5, 6.25)
    assert alone == beside == 12.5 / 3


@pytest.mark.parametrize(
    ("machine", "table"),
    [
        (
            "perlmutter-measured",
            {(1, 2): 76, (1, 4): 225, (1, 64): 66.59, (2, 2): 76, (2, 8): 33.3, (4, 2): 16.6},
        ),
        (
            "frontier",
            {
                (1, 2): 129,
                (1, 4): 52,
                (1, 8): 135,
                (1, 64): 40,
                (2, 2): 50,
                (2, 4): 72,
                (2, 8): 20,
                (4, 2): 36,
            }
            | {(4, 8): 10, (8, 2): 5, (32, 64): 5},
        ),
    ],
)
def test_measured_bandwidths_are_the_authors(machine: str, table: dict[tuple[int, int], float]) -> None:
    links = load_machine_card(ROOT, machine).links
    assert links is not None
    assert {place: find_bandwidth(links, on_axis(*place)) for place in table} == table


def test_a_ring_moves_the_words_that_it_brings() -> None:
    grid = {X: 4, Y: 2}
    words = Words(grid)
    words.add(Direction.FORWARD, 0, Op.ALL_REDUCE, Y, TensorName.T, 4000)
    words.add(Direction.FORWARD, 0, Op.ALL_GATHER, X, TensorName.W, 4000)
    words.add(Direction.FORWARD, -1, Op.ALL_REDUCE, (X, Y), TensorName.LOSS, 1)
    summed, gathered = 4 * 2 * 4000 / 2 / (200 * GB), 4 * 4000 * 3 / 4 / (50 * GB)
    loss = 4 * 2 * 7 / 8 / (100 * GB)
    assert price_rings(words, grid, LINKS, 4) == pytest.approx(summed + gathered + loss)


def on_links(moved: CallBytes, axis: AxisPlacement, machine: MachineCard = CARD) -> dict[TimePart, float]:
    """The parts of a call's time on the links that are not zero."""
    _, seconds = price_call(moved, axis, machine)
    return {part: float(seconds[part]) for part in TimePart if seconds[part]}


def test_a_gather_inside_a_node_has_a_latency_for_each_round() -> None:
    seconds = on_links(CallBytes(Op.ALL_GATHER, 4 * GB, 3 * GB), on_axis(1, 4))
    assert seconds == pytest.approx(
        {TimePart.INTRA_LATENCY: 3e-6, TimePart.INTRA: 3 / 200, TimePart.CALL: 7e-6}
    )


def test_a_ring_over_nodes_leaves_each_node_once() -> None:
    seconds = on_links(CallBytes(Op.ALL_GATHER, 0, 0), on_axis(1, 16))
    hops = {TimePart.INTRA_LATENCY: 15 * 3 / 4 * 1e-6, TimePart.LATENCY: 15 / 4 * 10e-6}
    assert seconds == pytest.approx({**hops, TimePart.CALL: 7e-6})


@pytest.mark.parametrize("received", [1 << 16, 1 << 26, 15 * GB])
def test_slices_between_nodes_take_the_least_time_of_any_number_of_slices(received: int) -> None:
    """Of k slices, the last one leaves after k steps and arrives h hops later; a step is a latency and a slice."""
    seconds = on_links(CallBytes(Op.ALL_GATHER, received * 16 / 15, received), on_axis(1, 16))
    hops, latency, transfer = 15 / 4, 10e-6, received / (100 * GB)
    slices = [2 ** (power / 64) for power in range(-1280, 1280)]
    best = min((hops + k) * (latency + transfer / k) for k in slices)
    assert seconds[TimePart.NODE] + seconds[TimePart.LATENCY] == pytest.approx(best, rel=1e-3)


def test_measured_bandwidths_include_slices() -> None:
    rows = [{"before": 1, "size": 2, "gbs": 50.0}]
    machine = card(measured=rows)
    seconds = on_links(CallBytes(Op.ALL_GATHER, 16 * GB, 15 * GB), on_axis(1, 16), machine)
    assert seconds[TimePart.NODE] == pytest.approx(15 / 50)
    assert seconds[TimePart.LATENCY] == pytest.approx(15 / 4 * 10e-6)


def test_a_reduction_of_many_takes_a_tree() -> None:
    seconds = on_links(CallBytes(Op.ALL_REDUCE, 0, 0), on_axis(4, 256))
    assert seconds == pytest.approx({TimePart.LATENCY: 2 * 8 * 10e-6, TimePart.CALL: 7e-6})


def test_a_tree_over_nodes_has_a_tree_on_each_node() -> None:
    seconds = on_links(CallBytes(Op.ALL_REDUCE, 0, 0), on_axis(1, 64))
    levels = {TimePart.INTRA_LATENCY: 2 * 2 * 1e-6, TimePart.LATENCY: 2 * 4 * 10e-6}
    assert seconds == pytest.approx({**levels, TimePart.CALL: 7e-6})


@pytest.mark.parametrize(("members", "gbs"), [(2, 60), (3, 120), (4, 150)])
def test_devices_of_a_node_use_all_their_direct_links(members: int, gbs: float) -> None:
    meshed = card(peer_gbs=constant(60), intra_gbs=constant(150)).links
    assert meshed
    assert find_bandwidth(meshed, on_axis(1, members)) == gbs
    assert find_bandwidth(meshed, place_pair(0, 3, 8, meshed)) == 60
    assert find_bandwidth(LINKS, on_axis(1, members)) == 200, "a switch"
    seconds = on_links(CallBytes(Op.ALL_TO_ALL, 0, GB), on_axis(1, members), card(peer_gbs=constant(60)))
    assert seconds[TimePart.PEER] == pytest.approx(1 / (60 * (members - 1)))


def test_an_all_to_all_is_bound_by_what_leaves_a_node() -> None:
    """Of 15 other members 12 are elsewhere, and 4 ranks share the links of a node, of which half is reached."""
    seconds = on_links(CallBytes(Op.ALL_TO_ALL, 16 * GB, 15 * GB), on_axis(1, 16))
    assert seconds[TimePart.NODE_ALL_TO_ALL] == pytest.approx(12 * 4 / 100 / 0.5)
    inside = on_links(CallBytes(Op.ALL_TO_ALL, 4 * GB, 3 * GB), on_axis(1, 4))
    assert inside[TimePart.INTRA] == pytest.approx(3 / 200), "nothing collides inside a node"


@pytest.mark.parametrize(("one", "other", "inside"), [(0, 3, 2), (3, 4, 1), (5, 4, 2), (0, 9, 1)])
def test_two_ranks_of_a_node_are_near_each_other(one: int, other: int, inside: int) -> None:
    pair = place_pair(one, other, 12, LINKS)
    assert pair.members_per_node == inside
    assert find_bandwidth(LINKS, pair) == (200 if inside == 2 else 25), "four ranks share the links of a node"


def test_gloo_sends_a_broadcast_along_a_tree_and_in_pieces_where_it_is_composed() -> None:
    whole = 64 << 20
    hosts = place_axis({X: 4}, "x", card("gloo", devices_per_node=1).links)  # type: ignore[arg-type]
    tree = on_links(CallBytes(Op.BROADCAST, whole, whole), hosts, card("gloo", devices_per_node=1))
    assert tree[TimePart.NODE] == pytest.approx(2 * whole / (100 * GB))
    composed = card("gloo", devices_per_node=1).model_copy(update={"composed_from": 1024})
    ring = on_links(CallBytes(Op.BROADCAST, whole, whole), hosts, composed)
    assert ring[TimePart.NODE] == pytest.approx((64 + 2) / 64 * whole / (100 * GB))


def test_messages_on_cpus_take_time_of_the_cores() -> None:
    machine = card("gloo", devices_per_node=1, cpu_gbs=constant(2))
    hosts = place_axis({X: 2}, "x", machine.links)  # type: ignore[arg-type]
    cores, links = price_call(CallBytes(Op.SEND, GB, 0), hosts, machine)
    assert cores[TimePart.CPU] == pytest.approx(0.5)
    assert cores[TimePart.LATENCY] == pytest.approx(10e-6)
    assert links.sum() == pytest.approx(1 / 100)


def test_kernels_are_a_roofline_and_sparse_products_five_terms() -> None:
    sparse = ProductShape(10, 20, 4, 100, "float32", "int32")
    dense, thin = (
        ProductShape(4000, 4000, 4000, 0, "float32", ""),
        ProductShape(1000, 1, 1000, 0, "float32", ""),
    )
    event = Event(KEY, products=[sparse, dense, thin], kernels=2, streamed=GB, drawn=1000)
    seconds = price_kernels(event, RATES)
    assert seconds[TimePart.SAMPLE] == pytest.approx(20e-6)
    assert seconds[TimePart.LAUNCH] == pytest.approx(5 * 7e-6)
    assert seconds[TimePart.EVENT] == 0
    around = price_kernels(event, RATES.model_copy(update={"event_us": Constant(**constant(40))}))
    assert around[TimePart.EVENT] == pytest.approx(40e-6), "once for the event, not for each kernel"
    marker = price_kernels(Event(KEY), RATES.model_copy(update={"event_us": Constant(**constant(40))}))
    assert marker.sum() == 0
    assert seconds[TimePart.SPMM] == pytest.approx(1e-9 * (400 + 2 * 100 + 3 * 40 + 4 * 10 + 5))
    assert seconds[TimePart.ARITHMETIC] == pytest.approx(2 * 64e9 / 1e12)
    assert seconds[TimePart.MEMORY] == pytest.approx((GB + 4 * (1000 + 1000 + 1e6)) / (5 * GB))
    double = Event(KEY, products=[sparse._replace(values="float64")])
    assert price_kernels(double, RATES)[TimePart.SPMM] == pytest.approx(2 * seconds[TimePart.SPMM])


@pytest.mark.parametrize(
    ("inner", "values", "missed"),
    [
        (1 << 18, "float32", 0.0),  # 64 MiB, the size of the cache
        (1 << 20, "float32", 0.75),
        (1 << 20, "bfloat16", 0.5),
        (1 << 26, "float32", 1 - 1 / 16),  # no more rows are read than there are nonzeros
    ],
)
def test_rows_that_the_cache_cannot_hold_take_two_more_terms(inner: int, values: str, missed: float) -> None:
    entries, width = 1 << 22, 64
    product = ProductShape(1000, inner, width, entries, values, "int32")
    cached = RATES.spmm.model_copy(update={"cache_mb": 64.0, "missed_column": 0.5, "missed_entry": 7.0})
    more = price_spmm(product, cached) - price_spmm(product, RATES.spmm)
    assert more == pytest.approx(1e-9 * missed * entries * (0.5 * width + 7), abs=1e-12)


@pytest.mark.parametrize(("columns", "passes"), [(40, 1), (64, 1), (65, 2), (512, 8)])
def test_a_pass_reads_the_nonzeros_and_the_rows_once(columns: int, passes: int) -> None:
    """The cache holds a pass over 64 columns of H, however many columns H has."""
    spmm = RATES.spmm.model_copy(update={"pass_columns": 64, "cache_mb": 64.0, "missed_column": 0.5})
    e = 1 << 20
    product = ProductShape(10, 1 << 18, columns, e, "float32", "int32")
    expected = e * columns + 2 * e * passes + 3 * 10 * columns + 4 * 10 * passes + 5
    assert price_spmm(product, spmm) == pytest.approx(1e-9 * expected)
    missed = columns - 64 if columns > 64 else 0  # of all columns at once, these do not fit
    whole = spmm.model_copy(update={"pass_columns": None})
    once = e * columns + 2 * e + 3 * 10 * columns + 4 * 10 + 5 + 0.5 * e * missed
    assert price_spmm(product, whole) == pytest.approx(1e-9 * once)


def test_rows_without_nonzeros_take_the_time_of_their_zeros() -> None:
    """A hypersparse block has many more rows than nonzeros."""
    empty = ProductShape(1_000_000, 1_000_000, 16, 0, "float32", "int32")
    assert price_spmm(empty, RATES.spmm) == pytest.approx(1e-9 * (3 * 16e6 + 4e6 + 5))
    assert price_spmm(empty._replace(columns=0), RATES.spmm) == pytest.approx(1e-9 * 5)


def test_a_card_with_rates_for_half_precision_and_for_calls_prices_them_by_these() -> None:
    half = CARD.rates.model_copy(update={"tflops_half": Constant(value=8, within=3, source="any")})  # type: ignore[union-attr]
    for values, expected in (("float32", 64), ("bfloat16", 16), ("float64", 128)):
        dense = Event(KEY, products=[ProductShape(4000, 4000, 4000, 0, values, "")])
        assert price_kernels(dense, half)[TimePart.ARITHMETIC] == pytest.approx(2e-3 * expected)
    assert list_constants(CARD.model_copy(update={"rates": half}))["rates.tflops"][0] == 3, (
        "the wider interval"
    )
    assert list_constants(CARD)["rates.tflops"][0] == 1.5


@pytest.mark.parametrize(
    ("floors", "reduction", "exchange"),
    [
        ({}, ("rates.launch_us", 7), ("rates.launch_us", 7)),
        ({"call_us": 50}, ("links.call_us", 50), ("links.call_us", 50)),
        ({"exchange_us": 90}, ("rates.launch_us", 7), ("links.exchange_us", 90)),
        ({"call_us": 50, "exchange_us": 90}, ("links.call_us", 50), ("links.exchange_us", 90)),
    ],
)
def test_minimum_time_of_a_call_scales_with_its_constant(
    floors: dict[str, float], reduction: tuple[str, float], exchange: tuple[str, float]
) -> None:
    machine = card(**{name: constant(value) for name, value in floors.items()})
    for op, part, (name, microseconds) in (
        (Op.ALL_REDUCE, TimePart.CALL, reduction),
        (Op.ALL_TO_ALL, TimePart.EXCHANGE, exchange),
    ):
        assert on_links(CallBytes(op, 0, 0), on_axis(1, 4), machine)[part] == pytest.approx(
            1e-6 * microseconds
        )
        assert [key for key, (_, parts) in list_constants(machine).items() if part in parts] == [name]


@pytest.mark.parametrize(("partners", "share"), [(1, 1.0), (2, 0.75), (7, 4 / 7), (None, 4 / 7)])
def test_messages_of_an_exchange_compete_for_the_link_of_their_receiver(
    partners: int | None, share: float
) -> None:
    """The share of a link is s + (1 - s) / k with k senders; s is 0.5 on this card."""
    machine = card("gloo", devices_per_node=1)
    assert machine.links
    hosts = place_axis({X: 8}, "x", machine.links)
    seconds = on_links(CallBytes(Op.ALL_TO_ALL, 8 * GB, 7 * GB, partners), hosts, machine)
    assert seconds[TimePart.NODE_ALL_TO_ALL] == pytest.approx(7 / (share * machine.links.node_gbs.value))
    assert seconds[TimePart.LATENCY] == pytest.approx(10e-6), "all messages are posted at once"


def test_each_message_of_an_exchange_takes_time_of_a_core() -> None:
    machine = card("gloo", devices_per_node=1, cpu_gbs=constant(2))
    hosts = place_axis({X: 8}, "x", machine.links)  # type: ignore[arg-type]
    cores, _ = price_call(CallBytes(Op.ALL_TO_ALL, 8 * GB, 7 * GB, 4), hosts, machine)
    assert cores[TimePart.CPU] == pytest.approx(7 / 2)
    assert cores[TimePart.MESSAGE] == pytest.approx(4 / MESSAGES_PER_ROUND * 10e-6)
    assert cores[TimePart.LATENCY] == pytest.approx(10e-6)


def test_an_exchange_without_messages_takes_no_bandwidth() -> None:
    machine = card("gloo", devices_per_node=1)
    assert machine.links
    hosts = place_axis({X: 8}, "x", machine.links)
    seconds = on_links(CallBytes(Op.ALL_TO_ALL, 0, 0, 0), hosts, machine)
    assert TimePart.NODE_ALL_TO_ALL not in seconds and TimePart.NODE not in seconds


def test_gloo_on_gpus_copies_its_messages_through_the_host() -> None:
    staged = card("gloo", host_gbs=constant(20), host_latency_us=constant(10), call_us=constant(5))
    seconds = on_links(CallBytes(Op.ALL_TO_ALL, 16 * GB, 15 * GB), on_axis(1, 16), staged)
    assert seconds[TimePart.HOST] == pytest.approx(2 * 16 / 20), "to the host, and back to the device"
    assert seconds[TimePart.HOST_LATENCY] == pytest.approx(2 * 15 * 10e-6), "one copy for each member"
    on_hosts = on_links(CallBytes(Op.ALL_TO_ALL, 16 * GB, 15 * GB), on_axis(1, 16), card("gloo"))
    assert TimePart.HOST not in on_hosts


def test_copies_take_the_link_of_the_host_where_there_is_one() -> None:
    linked = card(host_gbs=constant(20), host_latency_us=constant(10)).links
    assert linked
    event = Event(KEY, copies=3, copied=5 * GB)
    seconds = price_copies(event, linked)
    assert seconds[TimePart.HOST] == pytest.approx(0.25)
    assert seconds.sum() == pytest.approx(0.25 + 30e-6)
    assert price_copies(event, LINKS).sum() == 0


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rates", "tflops", constant(-1)),
        ("rates", "memory_gbs", constant(0)),
        ("rates", "launch_us", constant(1, within=0.9)),
        ("rates", "efficiency", {"value": 1, "within": 1}),
        ("links", "node_gbs", 100),
        ("links", "latency_us", {**constant(1), "source": ""}),
        ("links", "cpu_gbs", constant(float("inf"))),
    ],
)
def test_a_constant_is_positive_and_has_an_interval_and_a_source(section: str, key: str, value: Any) -> None:
    data = CARD.model_dump()
    data[section][key] = value
    with pytest.raises(ValidationError):
        MachineCard.model_validate(data)


@pytest.mark.parametrize("term", SPMM_TERMS)
def test_a_term_of_a_product_is_not_negative(term: str) -> None:
    data = CARD.model_dump()
    data["rates"]["spmm"][term] = -1e-9
    with pytest.raises(ValidationError):
        MachineCard.model_validate(data)


@pytest.mark.parametrize("name", list_machines(ROOT))
def test_every_constant_of_every_card_scales_a_part_of_the_time(name: str) -> None:
    machine = load_machine_card(ROOT, name)
    if machine.rates and machine.links:
        parts = [
            part for within, scaled in list_constants(machine).values() for part in scaled if within >= 1
        ]
        on_gpu = {TimePart.HOST, TimePart.HOST_LATENCY, TimePart.ISSUE}
        elsewhere = on_gpu if machine.device == "cpu" else {TimePart.CPU}
        elsewhere |= set() if machine.links.peer_gbs else {TimePart.PEER}
        elsewhere |= set() if machine.rates.event_us else {TimePart.EVENT}
        assert set(TimePart) - set(parts) == elsewhere | {TimePart.MEASURED}
