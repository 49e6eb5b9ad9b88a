"""What mini-batches multiply by, in the mean over many steps: for a vertex that is in one, what the whole graph has."""

import torch

from harness.check.case import Case
from harness.check.laws import Finding, finding
from harness.check.mismatch import Mismatch
from harness.check.multiplier import DEVIATIONS, STEPS
from harness.check.reference import matrix_of
from harness.kernels import to_scipy
from harness.kernels.random import Purpose, integers
from harness.store.averaged import multiplied
from harness.strategy.counts import targets_of

HALVES = 8


def unbiased_batches(case: Case) -> Finding:
    """By how much sums of the rows of the first layer's matrices miss those of A, added up over a mini-batch.

    The mean of that over steps is zero, whichever vertices are looked at: some halves of all are, and the worst is told
    in standard deviations. A row by itself would not do: one that has seldom seen its neighbours has no spread.
    """
    strategy, store = case.strategy(), case.store()
    everyone, kind = range(store.n), case.spec.model.kind
    A = multiplied(store, kind).adjacency(everyone, everyone)
    targets = targets_of(store, "corrected")
    weight = torch.linspace(1, 2, store.n, dtype=torch.float64)
    exact = matrix_of(kind, store) @ weight
    halves = integers(1, Purpose.TEST, range(HALVES * store.n), below=2).view(HALVES, -1).double()
    missed = torch.empty(STEPS, HALVES, dtype=torch.float64)
    for step in range(STEPS):
        batch = strategy.mini_batch(step, 0, A, targets)
        drawn = torch.from_numpy(to_scipy(batch.A[0]) @ weight[batch.vertices[0]].numpy())
        rows = batch.vertices[1]
        missed[step] = halves[:, rows] @ (drawn - exact[rows])
    mean, spread = missed.mean(dim=0).abs(), missed.std(dim=0) / STEPS**0.5
    if bool((mean < 1e-9).all()):
        return Finding("unbiased", case.name, True, "whole rows")
    deviations = mean / spread
    worst = int(deviations.argmax())
    told = f"{float(deviations[worst]):.1f} deviations in {STEPS} steps"
    wrong = Mismatch(
        None,
        f"the mean of {STEPS} steps",
        f"by how much layer 0's rows miss those of A, over half {worst} of the vertices",
        "0",
        f"{float(mean[worst]):.3g} ({told}, allowed are {DEVIATIONS:g})",
    )
    return finding("unbiased", case, [wrong] if float(deviations[worst]) > DEVIATIONS else [], told)
