"""Edges of nested communities are those of Python's integers, and as frequent as the law says.

The counts to expect agree with sums over all pairs of vertices, and with graphs that are drawn.
"""

from math import log2, sqrt

import numpy as np
import pytest
from scipy.sparse import coo_array

from harness.base.errors import UserError
from harness.graph.generators.communities import Communities
from harness.graph.generators.community_counts import (
    count_expected_ends,
    count_expected_rows,
    estimate_rows,
    find_skew,
    fit_to_cuts,
    fit_to_rows,
)
from harness.graph.generators.distinct_draws import MAX_COUNTED_EDGES
from harness.graph.generators.rank_permutation import permute_rank
from harness.graph.generators.shapes import MIN_COMMUNITY, ROOM, CommunityLaw
from harness.graph.partitions.metis import partition_with_metis
from harness.graph.sources.source import draw_edges
from harness.kernels.csr import from_scipy
from harness.kernels.random import GOLDEN, MIX_1, MIX_2, Purpose, derive_key

WORD = (1 << 64) - 1
LAW = CommunityLaw(across=0.1, growth=1.2, skew=2)
LAWS = [
    LAW,
    CommunityLaw(across=0.02, growth=1.5, skew=1.25),
    CommunityLaw(across=0.3, growth=0.8, skew=3.75),
]


def finalise(z):
    z = (z ^ (z >> 30)) * MIX_1 & WORD
    z = (z ^ (z >> 27)) * MIX_2 & WORD
    return z ^ (z >> 31)


def draw_unit(index, keys):
    bits = finalise((finalise((index * GOLDEN + keys[0]) & WORD) + keys[1]) & WORD)
    return (bits >> 11) * 0.5**53


def draw_rank(u, n, skew):
    """The product and the roots are taken in the order of the compiled loop: the last bit depends on it."""
    power = 1.0
    for factor in [u] * int(skew) + [sqrt(u)] * (skew % 1 >= 0.5) + [sqrt(sqrt(u))] * (4 * skew % 2 == 1):
        power *= factor
    return min(int(power * n), n - 1)


def draw_edge(k, graph):
    """Return the k-th edge: the communities are read off the last binary digits of a rank."""
    keys = derive_key(graph.seed, Purpose.EDGES)
    units = [draw_unit(3 * k + place, keys) for place in range(3)]
    start, end = (draw_rank(u, graph.n, graph.law.skew) for u in (units[0], units[2]))
    division = next((k for k, cut in enumerate(graph.cuts, 1) if units[1] < cut), None)
    size = 2 ** (division or len(graph.cuts))
    community = start % size if division is None else (start + size // 2) % size
    if division and start % (size // 2) != community % (size // 2):
        raise AssertionError("both halves of a community share the earlier digits")
    end = end // size * size + community
    end -= size * (end >= graph.n)
    bits, words = max((graph.n - 1).bit_length(), 2), tuple(np.uint64(key) for key in keys)
    return tuple(permute_rank(rank, graph.n, bits, words) for rank in (start, end))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n", [1, 2, 37, 1000, 1 << 20])
def test_edges_are_those_of_pythons_integers(n, law):
    graph = Communities(n, 5000, seed=3, law=law)
    found = zip(*(end.tolist() for end in graph.edges(range(100, 300))), strict=True)
    assert list(found) == [draw_edge(k, graph) for k in range(100, 300)]


def test_any_chunks_give_the_same_edges():
    graph = Communities(999, 7000, seed=1, law=LAW)
    whole = draw_edges(graph, range(7000))
    for chunk in (1, 64, 6999):
        for mine, theirs in zip(draw_edges(graph, range(7000), chunk), whole, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("law", LAWS)
def test_divisions_cut_the_fractions_of_the_law(law):
    """A binomial test of the draws, with the communities read off the ranks; and the distinct edges, by the law."""
    graph = Communities(50_000, 200_000, seed=5, law=law)
    source, target = graph.draw_edge_ranks(range(graph.draws))
    pairs = np.unique(np.minimum(source, target) * graph.n + np.maximum(source, target))
    low, high = pairs // graph.n, pairs % graph.n
    assert graph.divisions == 8
    for division, drawn in enumerate(graph.cuts, 1):
        size = 2**division
        cut = (source % size != target % size).mean()
        assert abs(cut - drawn) < 4 * sqrt(drawn * (1 - drawn) / graph.draws)
        expected = min(law.across * (law.growth**division - 1) / (law.growth - 1), 1 - 1 / size)
        lost = 0.02 if law.skew <= 2 else 0.1  # draws between hubs are often duplicates
        found = (low % size != high % size)[low != high].mean()
        assert abs(found - expected) < lost * expected + 4 * sqrt(expected / graph.distinct)


def test_divisions_of_a_small_and_dense_graph_cut_up_to_a_tenth_more_distinct_edges():
    law = CommunityLaw(across=0.05, growth=1.3)
    cut = np.zeros(4)
    for seed in range(5):
        graph = Communities(3001, 20_000, seed=seed, law=law)
        source, target = graph.draw_edge_ranks(range(graph.draws))
        pairs = np.unique(np.minimum(source, target) * graph.n + np.maximum(source, target))
        low, high = pairs // graph.n, pairs % graph.n
        cut += [(low % size != high % size)[low != high].mean() / 5 for size in (2, 4, 8, 16)]
    expected = law.across * (law.growth ** np.arange(1, 5) - 1) / (law.growth - 1)
    assert (cut > expected).all()
    assert (cut < 1.1 * expected).all()


def test_a_law_ends_at_its_last_division():
    graph = Communities(50_000, 200_000, seed=5, law=LAW.model_copy(update={"divisions": 3}))
    source, target = graph.draw_edge_ranks(range(200_000))
    assert len(graph.cuts) == 3
    inside = source % 8 == target % 8
    assert (source % 16 == target % 16)[inside].mean() == pytest.approx(0.5, abs=0.01)


def check_counts(counts, expected):
    """The chi-square of Poisson counts is their number, with this deviation."""
    chi_square = (np.square(counts - expected) / expected).sum()
    assert abs(chi_square - len(counts)) < 4 * sqrt((2 + 1 / expected).sum())


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("law", LAWS)
def test_probability_of_an_edge_is_how_often_it_is_drawn(law, directed):
    graph, draws = Communities(150, 100, seed=5, directed=directed, law=law), 2_000_000
    assert graph.divisions == 3
    source, target = graph.draw_edge_ranks(range(draws))
    seen = np.bincount(source * graph.n + target, minlength=graph.n**2).reshape(graph.n, graph.n)
    u, v = np.nonzero(~np.eye(graph.n, dtype=bool)) if directed else np.triu_indices(graph.n, 1)
    counts = seen[u, v] if directed else seen[u, v] + seen[v, u]
    expected = draws * graph.compute_probability(u, v)
    assert expected.sum() == pytest.approx(counts.sum(), rel=1e-3)
    check_counts(counts, expected)


def count_distinct(graph, draws):
    source, target = (end.tolist() for end in graph.edges(range(draws)))
    pairs = {
        (u, v) if graph.directed else (min(u, v), max(u, v)) for u, v in zip(source, target, strict=True)
    }
    return sum(u != v for u, v in pairs)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("n", "edges"), [(2, 1), (40, 0), (40, 600), (300, 2000), (1000, 20_000)])
def test_a_small_graph_stops_at_the_draw_of_its_last_edge(n, edges, directed):
    graph = Communities(n, edges, seed=3, directed=directed, law=LAW)
    assert count_distinct(graph, graph.draws) == edges
    assert count_distinct(graph, graph.draws - 1) == edges - 1 or not edges


@pytest.mark.parametrize("law", LAWS)
def test_a_large_graph_has_its_edges_within_a_fraction_of_a_percent(law):
    edges = MAX_COUNTED_EDGES + 1
    graph = Communities(20_000, edges, seed=4, law=law)
    source, target = draw_edges(graph, range(graph.draws))
    pairs = np.minimum(source, target) * graph.n + np.maximum(source, target)
    assert len(np.unique(pairs[source != target])) == pytest.approx(edges, rel=0.005)


@pytest.mark.parametrize("law", LAWS)
def test_communities_have_room_for_the_edges_that_stay(law):
    for n, degree in [(100, 5), (10_000, 5), (10_000, 400), (1 << 20, 50)]:
        cuts = law.compute_cuts(n, degree)
        assert (np.diff(cuts, prepend=0) >= 0).all()
        for division, cut in enumerate(cuts, 1):
            assert cut <= 1 - 0.5**division
            assert n // 2**division >= max(MIN_COMMUNITY, ROOM * degree * (1 - cut)) - 1 or division < len(
                cuts
            )


def test_denser_graphs_have_fewer_and_larger_communities():
    law = CommunityLaw(across=0.01, growth=1.2)
    assert [len(law.compute_cuts(10_000, degree)) for degree in (5, 50, 500, 5000)] == [8, 7, 3, 0]


def sum_over_pairs(graph, parts):
    """Return the expected ends of each rank, and the expected rows of each part, from all pairs of ranks one by one."""
    n, size = graph.n, [2**k for k in range(graph.divisions + 1)]
    chance = [((r + 1) / n) ** (1 / graph.law.skew) - (r / n) ** (1 / graph.law.skew) for r in range(n)]
    draw = np.zeros((n, n))
    for u in range(n):
        steps = zip([*graph.cuts, 1.0], [0.0, *graph.cuts], strict=True)
        for division, (cut, before) in enumerate(steps):
            last = division == graph.divisions
            block = size[division] if last else size[division + 1]
            community = (u if last else u + size[division]) % block
            for drawn in range(n):
                v = drawn // block * block + community
                v -= block * (v >= n)
                draw[u, v] += chance[u] * (cut - before) * chance[drawn]
    ends = draw if graph.directed else draw + draw.T
    rows = [
        sum(-np.expm1(-graph.draws * ends[v, part::parts].sum()) for v in range(n) if v % parts != part)
        for part in range(parts)
    ]
    return graph.draws * draw.sum(1), graph.draws * draw.sum(0), np.array(rows)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("law", LAWS)
def test_expected_counts_are_sums_over_all_pairs(law, directed):
    graph = Communities(203, 500, seed=1, directed=directed, law=law)
    assert graph.divisions == 3
    out, to, rows = sum_over_pairs(graph, 4)
    counted_out, counted_to = count_expected_ends(graph)
    np.testing.assert_allclose(counted_out, out, rtol=1e-9)
    np.testing.assert_allclose(counted_to, to, rtol=1e-9)
    np.testing.assert_allclose(count_expected_rows(graph, 2), rows, rtol=1e-9)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("law", LAWS)
def test_a_drawn_graph_has_the_expected_degrees_and_rows(law, directed):
    """Chi-square of the degrees, and z of the rows: a sum of independent events has at most its mean as variance."""
    graph = Communities(6000, 30_000, seed=7, directed=directed, law=law)
    source, target = graph.draw_edge_ranks(range(graph.draws))
    for ends, expected in zip((source, target), count_expected_ends(graph), strict=True):
        check_counts(np.bincount(ends, minlength=graph.n), expected)
    if not directed:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    for division in (1, 3, 6):
        parts = 2**division
        remote = source % parts != target % parts
        needed = len(np.unique(source[remote] * parts + target[remote] % parts))
        expected = count_expected_rows(graph, division).sum()
        assert abs(needed - expected) < 4 * sqrt(expected)


def partition(graph, parts):
    """Return the rows that parts by METIS need."""
    source, target = draw_edges(graph, range(graph.draws))
    ones = np.ones(2 * len(source))
    A = coo_array((ones, (np.append(source, target), np.append(target, source)))).tocsr()
    part = partition_with_metis(from_scipy(A), parts, 0).numpy()
    rows, cols = A.nonzero()
    remote = part[rows] != part[cols]
    return len(np.unique(cols[remote] * parts + part[rows][remote]))


@pytest.mark.parametrize("parts", [4, 16])
def test_metis_finds_parts_that_need_as_many_rows_as_the_communities(parts):
    graph = Communities(6000, 30_000, seed=7, law=CommunityLaw(across=0.03, growth=1.2))
    assert partition(graph, parts) == pytest.approx(estimate_rows(graph, parts), rel=0.05)


@pytest.mark.parametrize("law", LAWS[:2])
def test_a_law_is_found_again_by_the_rows_of_its_graph(law):
    n, edges, law = 4000, 15_000, law.model_copy(update={"divisions": 4})
    graph = Communities(n, edges, seed=0, law=law)
    rows = {parts: estimate_rows(graph, parts) for parts in (4, 10, 16)}
    found = fit_to_rows(n, edges, law.skew, {4: rows[4], 16: rows[16]})
    assert found.across == pytest.approx(law.across, rel=0.02)
    assert found.growth == pytest.approx(law.growth, rel=0.02)
    assert estimate_rows(Communities(n, edges, seed=0, law=found), 10) == pytest.approx(rows[10], rel=0.02)
    single = fit_to_rows(n, edges, law.skew, {10: rows[10]})
    assert estimate_rows(Communities(n, edges, seed=0, law=single), 10) == pytest.approx(rows[10], rel=0.02)


def test_a_law_is_fitted_on_a_smaller_graph_of_the_same_degree():
    law = fit_to_rows(1 << 24, 80_000_000, 2.0, {32: 5_000_000})
    graph = Communities(1 << 18, 1_250_000, seed=0, law=law)
    assert estimate_rows(graph, 32) * 64 == pytest.approx(5_000_000, rel=0.05)


@pytest.mark.parametrize("cuts", [{4: 0.1, 64: 0.5}, {8: 0.1, 64: 0.2}, {10: 0.2}])
def test_a_law_is_fitted_to_cuts(cuts):
    law = fit_to_cuts(2.0, cuts)
    for parts, cut in cuts.items():
        k = log2(parts)
        assert law.across * (law.growth**k - 1) / (law.growth - 1) == pytest.approx(cut, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({}, "one or two"),
        ({1: 5}, "at least 2"),
        ({2: 0}, "positive"),
        ({4: 90_000}, "90,000 rows for 4 parts"),
    ],
)
def test_impossible_rows_are_refused(rows, reason):
    with pytest.raises(UserError, match=reason):
        fit_to_rows(10_000, 40_000, 2.0, rows)


def test_more_parts_than_communities_are_refused():
    with pytest.raises(UserError, match="8 communities, fewer than 16 parts"):
        count_expected_rows(Communities(200, 500, seed=0, law=LAW), 4)


@pytest.mark.parametrize("skew", [1, 1.5, 2, 3])
def test_skew_is_found_again_in_the_degrees(skew):
    graph = Communities(40_000, 4_000_000, seed=2, law=CommunityLaw(across=0.1, growth=1, skew=skew))
    ends = np.concatenate(graph.draw_edge_ranks(range(1_000_000)))
    assert find_skew(np.bincount(ends, minlength=graph.n)) == pytest.approx(skew, abs=0.25)
