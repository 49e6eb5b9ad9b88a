"""Caches equal plain Python, and inclusion probabilities equal a dense recursion and observed frequencies."""

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.base.ranges import split_range
from harness.conformance.case import make_check_graph
from harness.kernels import Csr, from_coo, to_scipy
from harness.kernels.parts import extract_block
from harness.ledger import AxisName
from harness.strategies.sampling.caches import (
    EvictingCache,
    EvictingPolicy,
    LikelyPolicy,
    PopularPolicy,
    StaticCache,
    count_all_neighbours,
    count_popularity,
    highest_scoring,
    inclusion_probabilities,
    other_vertices,
)
from harness.strategies.sampling.features import CachePolicy, NoCache, PeerCaches
from harness.strategies.sampling.graph_placement import BlockLayout, GlobalReplay, WholeGraph
from harness.strategies.sampling.sampler import Neighbours

N = 60


def draws(steps: int) -> list[Tensor]:
    """Return mini-batches with mostly small vertex numbers, and in the second half mostly large ones."""
    random = np.random.default_rng(1)
    weights = 1 / np.arange(1, N + 1)
    batches = []
    for step in range(steps):
        p = weights if step < steps // 2 else weights[::-1]
        batches.append(torch.from_numpy(random.choice(N, 12, replace=False, p=p / p.sum())))
    return batches


def test_requests_are_all_rows_without_a_cache_and_missing_rows_with_one() -> None:
    kept = torch.tensor([40, 3, 7])
    for vertices in draws(5):
        assert NoCache().look_up(vertices).requested.tolist() == vertices.tolist()
        lookup = StaticCache(kept, N).look_up(vertices)
        assert lookup.requested.tolist() == [v for v in vertices.tolist() if v not in (40, 3, 7)]
        assert vertices[lookup.misses].tolist() == lookup.requested.tolist()
        assert kept[lookup.slots].tolist() == vertices[lookup.hits].tolist()


@pytest.mark.parametrize(("alpha", "every"), [(0.05, 1), (0.5, 3), (0.1, 4)])
def test_evicting_cache_follows_the_paper(alpha: float, every: int) -> None:
    """Compared with scores in dictionaries. A row that is missed and enters the cache immediately is requested once."""
    boundary, first = range(5, 50), [5, 20, 33, 48]
    cache = EvictingCache(torch.tensor(first), torch.tensor(boundary), N, alpha, every)
    kept, S_A = dict.fromkeys(first, 1.0), dict.fromkeys(boundary, 0.0)
    slots, evicted = list(first), 0
    threshold = 1.0
    for _ in range(every):
        threshold *= 1 - alpha
    for step, vertices in enumerate(draws(60)):
        lookup, wanted = cache.look_up(vertices), vertices.tolist()
        missed = [v for v in wanted if v not in kept]
        for v in kept:
            kept[v] *= 1 if v in wanted else 1 - alpha
        for v in missed:
            if v in S_A:
                S_A[v] += 1
        newcomers: list[int] = []
        if (step + 1) % every == 0:
            ranked = sorted((v for v in boundary if v not in kept and S_A[v] > 0), key=lambda v: (-S_A[v], v))
            leaving = [v for v in slots if kept[v] <= threshold]
            for old, new in zip(leaving, ranked, strict=False):
                newcomers.append(new)
                slots[slots.index(old)] = new
                S_A[old], kept[new] = kept.pop(old), S_A[new]
        assert sorted(lookup.requested.tolist()) == sorted({*missed, *newcomers})
        assert lookup.requested[lookup.newcomers].tolist() == newcomers
        assert cache.vertices.tolist() == slots
        evicted += len(newcomers)
    assert evicted > 5


def test_caches_hold_the_highest_scores_of_other_ranks_rows() -> None:
    others = other_vertices(range(2, 4), 7)
    assert others.tolist() == [0, 1, 4, 5, 6]
    worth = torch.tensor([1.0, 3.0, 9.0, 9.0, 3.0, 0.0, 5.0])
    assert highest_scoring(worth[others], others, 3).tolist() == [6, 1, 4]


def stripes(A: Csr):
    return lambda rows: extract_block(A, rows, range(A.cols))


@pytest.mark.parametrize("parts", [1, 3, 80])
def test_inclusion_probabilities_equal_a_dense_recursion(parts: int) -> None:
    A = make_check_graph(N).A
    edges = to_scipy(A).toarray() != 0
    np.fill_diagonal(edges, False)
    degree = np.maximum(edges.sum(axis=1), 1)
    expected = p = np.where(np.arange(N) % 3 == 0, 0.25, 0.0)
    for fanout in (3, 1):
        absent = np.prod(1 - np.where(edges, (expected * np.minimum(1, fanout / degree))[:, None], 0), axis=0)
        expected = 1 - (1 - expected) * absent
    read, blocks = stripes(A), split_range(N, parts)
    degree = count_all_neighbours(read, blocks, N)
    found = inclusion_probabilities(read, blocks, [torch.from_numpy(p)], [3, 1], degree)[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert count_popularity(stripes(A), split_range(N, parts), N).tolist() == edges.sum(axis=0).tolist()


def test_inclusion_probabilities_of_several_batches_equal_single_batches_bitwise() -> None:
    A, read, blocks = make_check_graph(N).A, stripes(make_check_graph(N).A), split_range(N, 7)
    degree = count_all_neighbours(read, blocks, N)
    assert degree.tolist() == ((to_scipy(A).toarray() != 0) & ~np.eye(N, dtype=bool)).sum(axis=1).tolist()
    chances = [torch.where(torch.arange(N) % each == 0, 1 / each, 0.0).double() for each in (2, 3, 7, 61)]
    together = inclusion_probabilities(read, blocks, chances, (3, 2, 1), degree)
    for p, found in zip(chances, together, strict=True):
        assert torch.equal(found, inclusion_probabilities(read, blocks, [p], (3, 2, 1), degree)[0])


@pytest.mark.parametrize("number", [0, 1, 7, 59, 60, 99])
def test_highest_scores_are_the_first_of_a_stable_sort(number: int) -> None:
    scores = (torch.arange(N) * 37 % 11).double()
    vertices = torch.arange(N) + 100
    expected = vertices[scores.sort(descending=True, stable=True).indices[:number]]
    assert highest_scoring(scores, vertices, number).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "policy", [PopularPolicy(0.3), LikelyPolicy(0.3), EvictingPolicy(0.4, 0.5, 2), EvictingPolicy(0.0)]
)
def test_simulated_caches_of_peers_request_the_same_rows_as_real_caches(
    policy: CachePolicy,
) -> None:
    """Eleven ranks, more than are simulated together; every second mini-batch evicts rows."""
    A, blocks, targets = make_check_graph(N).A, split_range(N, 11), torch.arange(N)
    sampler = Neighbours(5, 2, (2, 1), layers=2, groups=11, own=True)
    layout = BlockLayout({AxisName.P: 11}, blocks, AxisName.P)

    def peers() -> PeerCaches:
        return PeerCaches(
            policy, layout, {AxisName.P: 0}, GlobalReplay(sampler, lambda: A, targets), stripes(A)
        )

    followed, judge = peers(), peers()
    caches = [judge.new_cache(member, torch.device("cpu")) for member in range(11)]
    expected = [cache.vertices.tolist() for cache in caches]
    assert [each.tolist() for each in followed.first_requests()] == expected
    for step in range(6):
        batches = [judge.global_replay.batch(step, group).vertices for group in range(11)]
        for group, layers in enumerate(batches):
            found = followed.global_replay.vertices(step, group)
            assert [each.tolist() for each in found] == [each.tolist() for each in layers]
        expected = [
            cache.look_up(layers[0]).requested.tolist() for cache, layers in zip(caches, batches, strict=True)
        ]
        assert [each.tolist() for each in followed.requests(step)] == expected


def test_inclusion_probabilities_equal_frequencies_on_a_tree() -> None:
    """The probabilities are exact for two hops down a tree whose root is in every batch."""
    child = torch.arange(1, 40)
    parent = (child - 1) // 3
    loops = torch.arange(40)
    row, col = torch.cat([parent, loops]), torch.cat([child, loops])
    A = from_coo(row, col, torch.ones(len(row)), (40, 40))
    targets = torch.tensor([0])
    sampler, graph = Neighbours(5, 1, (2, 1), layers=2, groups=1), WholeGraph(A)
    p = sampler.target_probabilities(0, targets, 40)
    read, blocks = stripes(A), [range(40)]
    degree = count_all_neighbours(read, blocks, 40)
    expected = inclusion_probabilities(read, blocks, [p], (2, 1), degree)[0].numpy()
    seen, steps = np.zeros(40), 3000
    for step in range(steps):
        seen[sampler.mini_batch(step, 0, graph, targets).vertices[0]] += 1
    deviation = np.sqrt(expected * (1 - expected) / steps)
    assert (np.abs(seen / steps - expected) <= 4.5 * deviation + 1e-12).all()
    assert {0.0, 1.0} < set(expected.round(9))
