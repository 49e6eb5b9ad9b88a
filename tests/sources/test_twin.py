"""A twin's edges are what Python's integers say they are, its names a permutation, its degrees those of its nature.

It has as many different edges as it is asked for.
"""

from math import isqrt

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.graph.generators.distinct_draws import MAX_COUNTED_EDGES
from harness.graph.generators.rank_permutation import permute_rank
from harness.graph.generators.shapes import count_max_edges
from harness.graph.generators.twin import (
    MIN_CLUSTER,
    PowerLawTwin,
    RoadTwin,
)
from harness.graph.sources.generated import SHARE_WITHIN
from harness.graph.sources.source import draw_edges
from harness.kernels.random import GOLDEN, MIX_1, MIX_2, Purpose, derive_key

WORD = (1 << 64) - 1


def finalised(z):
    z = (z ^ (z >> 30)) * MIX_1 & WORD
    z = (z ^ (z >> 27)) * MIX_2 & WORD
    return z ^ (z >> 31)


def bits(index, keys):
    return finalised((finalised((index * GOLDEN + keys[0]) & WORD) + keys[1]) & WORD)


def unit(number):
    return (number >> 11) * 0.5**53


def name(rank, n, keys):
    size = max((n - 1).bit_length(), 2)
    low = size - size // 2
    x = rank
    while True:
        left, right = x >> low, x & ((1 << low) - 1)
        for turn in range(4):
            z = (right ^ (keys[turn % 2] >> (turn // 2))) * MIX_1 & WORD
            mask = (1 << (low if turn % 2 else size // 2)) - 1
            left, right = right, left ^ ((z ^ (z >> 31)) & mask)
        x = (left << low) | right
        if x < n:
            return x


def edge(k, twin):
    keys = derive_key(twin.seed, Purpose.EDGES)
    u = unit(bits(4 * k, keys))
    start, v = int(u * u * twin.n), unit(bits(4 * k + 2, keys))
    end = int(v * v * twin.n)
    if twin.within and unit(bits(4 * k + 1, keys)) < twin.within:
        corner = start - start % twin.cluster
        end = corner + int(v * min(twin.cluster, twin.n - corner))
    return name(start, twin.n, keys), name(end, twin.n, keys)


@pytest.mark.parametrize("within", [0.0, SHARE_WITHIN])
@pytest.mark.parametrize("n", [1, 2, 37, 1000, 1 << 20])
def test_edges_are_those_of_pythons_integers(n, within):
    twin = PowerLawTwin(n, 5000, seed=3, within=within)
    found = zip(*(end.tolist() for end in twin.edges(range(100, 400))), strict=True)
    assert list(found) == [edge(k, twin) for k in range(100, 400)]


@pytest.mark.parametrize(
    "twin",
    [
        PowerLawTwin(999, 7000, seed=1),
        PowerLawTwin(999, 7000, seed=1, within=SHARE_WITHIN),
        RoadTwin(5000, 7000, seed=1),
    ],
)
def test_any_chunks_give_the_same_edges(twin):
    whole = draw_edges(twin, range(7000))
    for chunk in (1, 64, 6999):
        for mine, theirs in zip(draw_edges(twin, range(7000), chunk), whole, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 1000, 4097])
def test_names_are_a_permutation_that_hides_ranks(n):
    keys = tuple(np.uint64(key) for key in derive_key(5, Purpose.EDGES))
    names = [permute_rank(rank, n, max((n - 1).bit_length(), 2), keys) for rank in range(n)]
    assert sorted(names) == list(range(n))
    if n > 100:
        assert abs(np.corrcoef(names, range(n))[0, 1]) < 5 / n**0.5


def test_degrees_fall_with_the_root_of_the_rank():
    n, edges = 40_000, 400_000
    source, target = draw_edges(PowerLawTwin(n, edges, seed=2), range(edges))
    for ends in (source, target):
        degrees = np.sort(np.bincount(ends, minlength=n))[::-1]
        expected = edges * (np.sqrt(np.arange(1, n + 1) / n) - np.sqrt(np.arange(n) / n))
        assert degrees[0] == pytest.approx(expected[0], rel=0.1)
        assert degrees[:1000].sum() == pytest.approx(expected[:1000].sum(), rel=0.05)
        assert np.median(degrees) == pytest.approx(np.median(expected), abs=1.5)


def test_in_clusters_edges_stay_among_few():
    n, edges = 64 * 500, 100_000
    keys = tuple(np.uint64(key) for key in derive_key(4, Purpose.EDGES))
    names = np.array([permute_rank(rank, n, max((n - 1).bit_length(), 2), keys) for rank in range(n)])
    cluster = np.empty(n, np.int64)
    cluster[names] = np.arange(n) // MIN_CLUSTER
    source, target = draw_edges(PowerLawTwin(n, edges, seed=4, within=SHARE_WITHIN), range(edges))
    assert (cluster[source] == cluster[target]).mean() == pytest.approx(SHARE_WITHIN, abs=0.02)
    source, target = draw_edges(PowerLawTwin(n, edges, seed=4), range(edges))
    assert (cluster[source] == cluster[target]).mean() < 0.02


def different(twin, draws):
    """The different edges of so many draws, by Python's sets."""
    source, target = (end.tolist() for end in twin.edges(range(draws)))
    pairs = {(u, v) if twin.directed else (min(u, v), max(u, v)) for u, v in zip(source, target, strict=True)}
    return sum(u != v for u, v in pairs)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("within", [0.0, SHARE_WITHIN])
@pytest.mark.parametrize(("n", "edges"), [(2, 1), (40, 0), (40, 600), (300, 2000), (1000, 30_000)])
def test_a_small_twin_stops_at_the_draw_that_brings_its_last_edge(n, edges, within, directed):
    twin = PowerLawTwin(n, edges, seed=3, within=within, directed=directed)
    assert different(twin, twin.draws) == edges
    assert different(twin, twin.draws - 1) == edges - 1 or not edges


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("within", [0.0, SHARE_WITHIN])
def test_a_large_twin_has_its_edges_within_a_fraction_of_a_percent(within, directed):
    """Dense enough that a tenth of the draws and more are lost."""
    edges = 2 * MAX_COUNTED_EDGES
    twin = PowerLawTwin(3000, edges, seed=4, within=within, directed=directed)
    assert twin.draws > 1.1 * edges
    source, target = twin.draw_edge_ranks(range(twin.draws))
    ends = (source, target) if directed else (np.minimum(source, target), np.maximum(source, target))
    found = len(np.unique((ends[0] * twin.n + ends[1])[source != target]))
    assert found == pytest.approx(edges, rel=0.003)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("within", [0.0, SHARE_WITHIN])
def test_the_chance_of_an_edge_is_how_often_it_is_drawn(within, directed):
    twin, draws = PowerLawTwin(150, 300, seed=5, within=within, directed=directed), 2_000_000
    source, target = twin.draw_edge_ranks(range(draws))
    seen = np.bincount(source * twin.n + target, minlength=twin.n**2).reshape(twin.n, twin.n)
    u, v = np.nonzero(~np.eye(twin.n, dtype=bool)) if directed else np.triu_indices(twin.n, 1)
    counts = seen[u, v] if directed else seen[u, v] + seen[v, u]
    expected = draws * twin.compute_probability(u, v)
    assert expected.sum() == pytest.approx(counts.sum(), rel=1e-3)
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected) + 1).all()
    assert np.square(counts - expected).sum() == pytest.approx(expected.sum(), rel=0.1)


def test_clusters_have_room_for_the_edges_that_stay():
    assert PowerLawTwin(1000, 2000, seed=0, within=SHARE_WITHIN).cluster == MIN_CLUSTER
    assert PowerLawTwin(1000, 50_000, seed=0, within=SHARE_WITHIN).cluster == 200
    assert PowerLawTwin(1000, 50_000, seed=0, within=SHARE_WITHIN, directed=True).cluster == 100


@pytest.mark.parametrize("n", [1, 2, 3, 5, 12, 13, 64, 1000])
def test_roads_join_neighbours_of_a_lattice_each_once(n):
    width, most = isqrt(n), count_max_edges("lattice", n, directed=False)
    lattice = {(v, v + 1) for v in range(n - 1) if v % width < width - 1} | {
        (v, v + width) for v in range(n - width)
    }
    assert most == len(lattice)
    for edges in {0, most // 2, most}:
        source, target = draw_edges(RoadTwin(n, edges, seed=6), range(edges))
        found = set(zip(source.tolist(), target.tolist(), strict=True))
        assert len(found) == edges
        assert found <= lattice


@pytest.mark.parametrize("n", [60, 1000])
def test_a_complete_twin_is_drawn_or_refused(n, monkeypatch):
    """Its rarest pairs take long to meet."""
    complete = count_max_edges("power", n, directed=False)
    assert PowerLawTwin(n, complete, seed=1, within=SHARE_WITHIN).draws > 4 * complete
    monkeypatch.setattr("harness.graph.generators.distinct_draws.DRAWS_PER_EDGE", 4)
    with pytest.raises(UserError, match="Choose a larger scale"):
        _ = PowerLawTwin(n, complete, seed=1, within=SHARE_WITHIN).draws
