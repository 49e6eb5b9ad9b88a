"""Mini-batches of ClusterGCN-style training join clusters evenly, and are normalised as separate graphs."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from harness.conformance.case import Case
from harness.conformance.checks import ScipyCounts
from harness.conformance.reference import dense_matrix, mean_matrix
from harness.strategies.sampling.clusters import Cluster, JoinedClusters
from tests.cases import in_parts, make_case

RANKS, CLUSTERS, JOINED = 2, 7, 3


def make_clusters_case(kind: str = "gcn") -> Case:
    parts = RANKS * CLUSTERS
    return make_case(
        "cluster-gcn",
        {"p": RANKS},
        {"clusters": CLUSTERS},
        dataset=in_parts(parts),
        model={"kind": kind},
        training={"batch": JOINED * 211 // parts},
    )


def strategy_of(case: Case) -> Cluster:
    strategy = case.strategy()
    assert isinstance(strategy, Cluster)
    return strategy


def joined(strategy: Cluster, step: int, rank: int) -> tuple[int, ...]:
    """Return the clusters of a mini-batch, and check that they are complete clusters of this rank."""
    sampler = strategy.composed.sampler
    assert isinstance(sampler, JoinedClusters)
    S = sampler.draw_vertices(step, rank)
    found = [number for number, span in enumerate(strategy.clusters) if span.start in S.tolist()]
    assert S.tolist() == [v for number in found for v in strategy.clusters[number]]
    assert all(number // CLUSTERS == rank for number in found)
    return tuple(found)


@pytest.mark.parametrize("rank", range(RANKS))
def test_epoch_visits_every_cluster_once_and_joins_all_pairs_equally_often(rank: int) -> None:
    """Pairs are joined as often as in a random order of the clusters, within five standard deviations."""
    strategy, epochs, pairs = strategy_of(make_clusters_case()), 300, Counter[tuple[int, int]]()
    steps = strategy.steps
    assert steps == 3
    for epoch in range(epochs):
        groups = [joined(strategy, epoch * steps + turn, rank) for turn in range(steps)]
        assert [len(group) for group in groups] == [3, 3, 1]
        assert sorted(sum(groups, ())) == list(range(rank * CLUSTERS, (rank + 1) * CLUSTERS))
        pairs.update(pair for group in groups for pair in combinations(group, 2))
    chance = 2 * 3 / 21
    deviation = (epochs * chance * (1 - chance)) ** 0.5
    assert len(pairs) == 21
    assert all(abs(seen - epochs * chance) <= 5 * deviation for seen in pairs.values())


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_mini_batch_is_the_normalised_induced_subgraph(kind: str) -> None:
    """A subgraph has the entries of the full graph, with the weights of a separate graph."""
    case = make_clusters_case(kind)
    strategy, store = strategy_of(case), case.store()
    edges = (dense_matrix(store) != 0).double()
    batch = strategy.mini_batch(1, 1, ScipyCounts(store).adjacency(), torch.empty(0))
    S = batch.vertices[0]
    here = edges[S][:, S]
    if kind == "gcn":
        root = here.sum(dim=1).rsqrt()
        expected = root[:, None] * here * root
    else:
        alone = here.clone().fill_diagonal_(0)
        expected = alone / alone.sum(dim=1, keepdim=True).clamp(min=1)
        assert not torch.equal(expected, mean_matrix(store)[S][:, S])
    for A in batch.A:
        dense = torch.zeros_like(expected)
        row = np.repeat(np.arange(A.rows), A.rowptr.diff())
        dense[row, A.col.long()] = A.val.double()
        assert torch.allclose(dense, expected, rtol=0, atol=1e-7 if A.val.dtype == torch.float32 else 1e-15)
