"""What mini-batches multiply by, in the mean over many steps: for a vertex that is in one, what the whole graph has."""

import torch

from harness.check.case import Case
from harness.check.laws import Finding
from harness.check.multiplier import DEVIATIONS, STEPS
from harness.check.reference import dense_matrix
from harness.graph.model import TRAIN, labelled
from harness.kernels import to_scipy

FEWEST = 30
"""Steps in which a vertex must be for its mean to be looked at."""


def unbiased_batches(case: Case) -> Finding:
    """Sums of the rows of the first layer's matrices over the steps that have the row; told in standard deviations."""
    strategy, store = case.strategy(), case.store()
    A, everyone = store.adjacency(range(store.n), range(store.n)), range(store.n)
    targets = (labelled(store.labels(everyone)) & (store.split(everyone) == TRAIN)).nonzero()[:, 0]
    weight = torch.linspace(1, 2, store.n, dtype=torch.float64)
    times, sums, squares = (torch.zeros(store.n, dtype=torch.float64) for _ in range(3))
    for step in range(STEPS):
        batch = strategy.mini_batch(step, 0, A, targets)
        drawn = torch.from_numpy(to_scipy(batch.A[0]) @ weight[batch.vertices[0]].numpy())
        rows = batch.vertices[1]
        times[rows] += 1
        sums[rows] += drawn
        squares[rows] += drawn * drawn
    often = times >= FEWEST
    mean, exact = (sums / times)[often], (dense_matrix(store) @ weight)[often]
    spread = ((squares / times)[often] - mean**2).clamp(min=0).sqrt() / times[often].sqrt()
    error, fixed = (mean - exact).abs(), spread < 1e-7
    worst = float((error / spread)[~fixed].max()) if not bool(fixed.all()) else 0.0
    holds = worst <= DEVIATIONS and bool((error[fixed] < 1e-9).all()) and bool(often.any())
    return Finding("unbiased", case.name, holds, f"{worst:.1f} deviations in {STEPS} steps")
