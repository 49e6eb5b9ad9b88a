"""What to expect of a graph with communities: degrees, cuts and the rows that parts need, without drawing an edge.

A vertex is sent to every other part in which it has a neighbour, so the number of rows that parts need of others is a
sum over vertices and parts. The parts are the communities after some divisions. METIS finds parts that need about as
many rows (benchmarks/results/twins.md).
Verifier (tests/sources/test_communities.py): all pairs of vertices one by one, and graphs that are drawn.
"""

from collections.abc import Callable, Mapping
from math import ceil, exp, log, log2

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UserError
from harness.graph.generators.communities import Communities
from harness.graph.generators.shapes import CommunityLaw
from harness.graph.model import Ints

Floats = NDArray[np.float64]

TYPICAL_GROWTH = 1.2
"""The growth where only one cut is known: that of coauthor-cs, cora and products-14m is 1.16 to 1.21."""
GROWTHS = (0.5, 2.0)
"""The smallest and the largest growth that is fitted."""
FITTED_VERTICES = 1 << 14
"""The vertices of the smaller graph to which a law is fitted: the rows per vertex depend on the degree, not on n."""
PART_VERTICES = 8
"""The vertices of a part of that graph, compared with the mean degree, at least."""
CLOSE = 1e-3
"""The relative error of fitted parameters."""


def count_expected_ends(graph: Communities) -> tuple[Floats, Floats]:
    """Return the expected number of draws from each rank and to each rank."""
    rank = np.arange(graph.n)
    own = graph.compute_rank_mass(rank, 0)
    shares = np.diff(graph.cuts, prepend=0.0, append=1.0)
    to = np.zeros(graph.n)
    for shared, share in enumerate(shares):  # the source is in the sibling of the target's community
        bits = min(shared + 1, graph.divisions)
        of_community = np.bincount(rank % (1 << bits), own, minlength=1 << bits)
        sources = rank if bits == shared else rank ^ (1 << shared)
        to += share * of_community[sources % (1 << bits)] * graph.compute_rank_mass(rank, bits)
    return graph.draws * own, graph.draws * to


def count_expected_rows(graph: Communities, divisions: int) -> Floats:
    """Return the rows of others that each of 2^divisions parts is expected to need, by the last bits of its ranks."""
    if divisions > graph.divisions:
        raise UserError(
            f"{graph.n:,} vertices with {graph.distinct:,} edges have {2**graph.divisions:,} communities, fewer than "
            f"{2**divisions:,} parts. Choose a larger graph, or fewer parts."
        )
    parts = 1 << divisions
    rank = np.arange(graph.n)
    own = graph.compute_rank_mass(rank, 0)
    from_part = np.bincount(rank % parts, own, minlength=parts)
    shares = np.diff(graph.cuts, prepend=0.0)
    needed = np.zeros(parts)
    for shared in range(divisions):
        mass = graph.compute_rank_mass(rank, shared + 1)
        to_part = np.bincount(rank % parts, mass, minlength=parts)
        for distance in range(1 << shared, parts, 2 << shared):  # parts that share this many divisions
            part = (rank % parts) ^ distance
            draws = own * to_part[part]
            if not graph.directed:
                draws += from_part[part] * mass
            chance = -np.expm1(-graph.draws * shares[shared] * draws)
            needed += np.bincount(part, chance, minlength=parts)
    return needed


def estimate_rows(graph: Communities, parts: int) -> float:
    """Return the rows of others that any number of parts is expected to need in total.

    Numbers of parts that are not powers of two are interpolated by a power law.
    """
    low = int(log2(parts))
    least, most = (float(count_expected_rows(graph, k).sum()) for k in (low, low + (1 << low < parts)))
    return least * (most / least) ** (log2(parts) - low) if least else 0.0


def fit_to_rows(
    n: int, edges: int, skew: float, rows: Mapping[int, float], *, directed: bool = False
) -> CommunityLaw:
    """Return the law of a graph whose parts need the published rows of others.

    Args:
        n: The number of vertices.
        edges: The number of distinct edges.
        skew: The skew of the degrees (`find_skew`).
        rows: The rows that all parts together need, by the number of parts, for one or two numbers. The growth is
            `TYPICAL_GROWTH` if there is only one.
        directed: Whether (u, v) and (v, u) are different edges.
    """
    few, *_, many = _check_targets(rows) * 2
    degree = edges * (1 if directed else 2) / n
    divisions = ceil(log2(many))  # nothing is known of smaller communities
    vertices = min(n, max(FITTED_VERTICES, round(PART_VERTICES * degree * many)))

    def make_graph(growth: float, across: float) -> Communities:
        law = CommunityLaw(across=across, growth=growth, skew=skew, divisions=divisions)
        return Communities(vertices, round(edges * vertices / n), 0, directed, law=law)

    def find_across(growth: float) -> float:
        target = rows[many] / n
        largest = 0.5

        def compare(across: float) -> float:
            return log(max(estimate_rows(make_graph(growth, across), many) / vertices, 1e-12) / target)

        if compare(largest) < 0:
            raise _make_too_many_error(rows, many, n)
        return _find_root(compare, 1e-7, largest)

    if few == many:
        return CommunityLaw(
            across=find_across(TYPICAL_GROWTH), growth=TYPICAL_GROWTH, skew=skew, divisions=divisions
        )

    def compare_few(growth: float) -> float:
        graph = make_graph(growth, find_across(growth))
        return log(rows[few] / n / max(estimate_rows(graph, few) / vertices, 1e-12))

    growth = _find_root(compare_few, *GROWTHS)
    return CommunityLaw(across=find_across(growth), growth=growth, skew=skew, divisions=divisions)


def fit_to_cuts(skew: float, cuts: Mapping[int, float]) -> CommunityLaw:
    """Return the law of a graph with these fractions of edges between parts, for one or two numbers of parts."""
    few, *_, many = _check_targets(cuts) * 2

    def add_up(growth: float, parts: int) -> float:
        k = log2(parts)
        return k if growth == 1 else (growth**k - 1) / (growth - 1)

    growth = TYPICAL_GROWTH
    if few != many:
        ratio = cuts[many] / cuts[few]
        growth = _find_root(lambda g: log(add_up(g, many) / add_up(g, few) / ratio), *GROWTHS)
    return CommunityLaw(across=cuts[many] / add_up(growth, many), growth=growth, skew=skew)


def find_skew(degrees: Ints) -> float:
    """Return the skew of a graph whose tenth of vertices with the most neighbours has the same share of all ends."""
    falling = np.sort(degrees)[::-1]
    share = falling[: max(len(falling) // 10, 1)].sum() / max(falling.sum(), 1)
    return min(max(round(4 * log(0.1) / log(min(share, 0.9))) / 4, 1.0), 8.0) if share > 0.1 else 1.0


def _check_targets(targets: Mapping[int, float]) -> list[int]:
    """Return the numbers of parts, ascending."""
    parts = sorted(targets)
    if len(parts) not in (1, 2) or parts[0] < 2 or min(targets.values()) <= 0:
        raise UserError(
            f"a law is fitted to one or two numbers of parts, each at least 2, with a positive cut; not {dict(targets)}"
        )
    return parts


def _make_too_many_error(rows: Mapping[int, float], parts: int, n: int) -> UserError:
    return UserError(
        f"{rows[parts]:,.0f} rows for {parts} parts of {n:,} vertices are more than parts of a graph without "
        "communities need. Check the number, the number of edges and the skew."
    )


def _find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function of a logarithm is zero; the nearer end if it does not change its sign."""
    from scipy.optimize import brentq

    if function(low) >= 0:
        return low
    if function(high) <= 0:
        return high
    root: float = brentq(lambda x: function(exp(x)), log(low), log(high), xtol=CLOSE)
    return exp(root)
