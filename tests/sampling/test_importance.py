"""GraphSAINT's closed-form probabilities equal observed frequencies, and its sums are unbiased."""

import numpy as np
import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.kernels import to_scipy
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.sampler import NodesByImportance

N, DRAWS = 43, 6000


@pytest.mark.long
def test_probabilities_equal_frequencies_and_sums_are_unbiased() -> None:
    """Vertices are drawn in proportion to the squares of their columns."""
    A = make_check_graph(N).A
    dense = to_scipy(A).toarray()
    graph = WholeGraph(A)
    sampler = NodesByImportance(3, 12, layers=1, groups=1, vertices=N).prepare_for(graph)
    assert sampler.probabilities is not None
    np.testing.assert_allclose(
        sampler.probabilities.q.numpy(), (dense**2).sum(axis=0) / (dense**2).sum(), rtol=1e-12
    )
    x = np.linspace(-1, 2, N)
    seen, pairs = np.zeros(N), np.zeros((N, N))
    sums, squares, loss = np.zeros(N), np.zeros(N), []
    for step in range(DRAWS):
        batch = sampler.mini_batch(step, 0, graph, torch.empty(0))
        S = batch.vertices[0].numpy()
        y = to_scipy(batch.A[0]) @ x[S]
        seen[S] += 1
        pairs[np.ix_(S, S)] += 1
        sums[S] += y
        squares[S] += y * y
        assert batch.importance is not None
        loss.append((batch.importance.numpy() * x[S]).sum())
    p, both = (
        sampler.probabilities.p.numpy(),
        sampler.pair_probability(torch.arange(N)[:, None], torch.arange(N)[None]).numpy(),
    )
    assert (np.abs(seen / DRAWS - p) < 5 * np.sqrt(p * (1 - p) / DRAWS)).all()
    off = ~np.eye(N, dtype=bool)
    assert (np.abs(pairs / DRAWS - both)[off] < 5.5 * np.sqrt(both * (1 - both) / DRAWS)[off]).all()
    mean = sums / seen
    spread = np.sqrt(np.maximum(squares / seen - mean**2, 1e-12) / seen)
    assert (np.abs(mean - dense @ x) < 5 * spread).all()
    assert abs(np.mean(loss) - p.mean() * x.sum()) < 5 * np.std(loss) / np.sqrt(DRAWS)
