"""The constants of links are those that a fit to published collectives finds, and they predict what it has not seen."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from benchmarks import message_fit
from benchmarks.message_fit import Point
from harness.base.formatting import GB
from harness.ledger import Op
from harness.spec.machine_card import Constant, Links, list_machines, load_machine_card

ROOT = Path(__file__).parents[2]
CARD = load_machine_card(ROOT, "perlmutter")
POINTS = message_fit.read_points()
FITTED = message_fit.fit_constants(CARD, POINTS)
HELD = message_fit.HeldOut.compute(CARD, POINTS)


def test_points_are_the_published_calls() -> None:
    """24 rows of four calls. The authors print 10^9 bytes per second: 64.84 for an all-gather of 64 MB by 16 ranks."""
    assert len(POINTS) == 24 * 4
    (last,) = [p for p in POINTS if (p.ranks, p.megabytes, p.op) == (16, 64.0, Op.ALL_GATHER)]
    assert 64e6 * 15 / 16 / last.measured / 1e9 == pytest.approx(64.84, rel=1e-3)


@pytest.mark.parametrize("name", ["perlmutter", "perlmutter-80gb", "perlmutter-measured"])
def test_cards_of_perlmutter_have_the_constants_of_the_fit(name: str) -> None:
    links = load_machine_card(ROOT, name).links
    assert links and links.peer_gbs and links.noise
    within = message_fit.find_intervals(CARD, HELD)
    for key, factor in within.items():
        constant = getattr(links, key)
        assert constant.value == pytest.approx(FITTED[key], rel=2e-3), key
        assert constant.within == factor and "prediction.messages" in constant.source, key
    assert within.keys() == FITTED.keys() - {"intra_latency_us"}
    assert links.intra_latency_us.value == FITTED["intra_latency_us"]
    assert links.intra_gbs.value == pytest.approx(3 * links.peer_gbs.value, rel=1e-3)
    assert links.intra_gbs.within == links.peer_gbs.within
    assert links.noise.deviation == pytest.approx(message_fit.measure_noise(CARD, POINTS), rel=0.01)


def test_fit_finds_the_constants_of_calls_that_follow_the_formula() -> None:
    call, exchange, hop, peer, node, share = 30e-6, 70e-6, 20e-6, 40 * GB, 60 * GB, 0.5
    points = []
    for ranks in (2, 4, 8, 16):
        for megabytes in (0.1, 1.0, 10.0, 100.0):
            received, hops = 1e6 * megabytes * (ranks - 1) / ranks, (ranks - 1) / 4
            outside = 1e6 * megabytes * (ranks - 4) / ranks
            if ranks <= 4:
                latency = 0.5e-6 * (ranks - 1)
                ring = exchanged = latency + received / (peer * (ranks - 1))
            else:
                latency = 0.5e-6 * (ranks - 1) * 3 / 4
                ring = latency + (sqrt(hop * hops) + sqrt(received / node)) ** 2
                inside = (received - outside) / (3 * peer)
                exchanged = latency + hop * hops + max(inside, 4 * outside / (share * node))
            points.append(Point(ranks, megabytes, Op.ALL_GATHER, call + ring, 0.0))
            points.append(Point(ranks, megabytes, Op.ALL_TO_ALL, exchange + exchanged, 0.0))
    found = message_fit.fit_constants(CARD, points)
    expected = {
        "call_us": 1e6 * call,
        "exchange_us": 1e6 * exchange,
        "intra_latency_us": 0.5,
        "latency_us": 1e6 * hop,
        "peer_gbs": peer / GB,
        "node_gbs": node / GB,
        "all_to_all_share": share,
    }
    assert found == pytest.approx(expected, rel=1e-3)


def test_held_out_sizes_and_ranks_are_predicted() -> None:
    """Nine of ten calls within 1.4, whether their size or their number of ranks is held out; half within 1.15."""
    for ratios in (HELD.by_size, HELD.by_span):
        off = np.exp(abs(np.log(ratios)))
        assert np.quantile(off, 0.9) < 1.4 and np.median(off) < 1.15
        assert np.exp(np.log(ratios).mean()) == pytest.approx(1, abs=0.1), "neither too fast nor too slow"


def test_axes_that_share_nodes_have_the_bandwidths_that_authors_report() -> None:
    """The fitted calls are of consecutive ranks: no two of them share a node."""
    for (before, size), (low, high) in message_fit.REPORTED_AXES.items():
        gbs = message_fit.predict_axis_bandwidth(CARD, before, size) / 1e9
        assert low / 1.1 < gbs < high * 1.1, (before, size)


def test_all_to_alls_of_others_take_the_reported_time() -> None:
    for (ranks, size), (low, high) in message_fit.REPORTED_EXCHANGES.items():
        assert low / 1.1 < message_fit.predict_exchange(CARD, ranks, size) < high * 1.1


@pytest.mark.parametrize("name", list_machines(ROOT))
def test_assumed_constants_of_links_have_wide_intervals(name: str) -> None:
    links = load_machine_card(ROOT, name).links
    for key in Links.model_fields if links else ():
        constant = getattr(links, key)
        if isinstance(constant, Constant) and constant.source.startswith("assumed"):
            assert constant.within >= 2, key
