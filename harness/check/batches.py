"""What mini-batches multiply by, in the mean over many steps: for a vertex that is in one, what the whole graph has."""

from functools import partial

import torch
from torch import Tensor

from harness.check.case import Case
from harness.check.laws import Finding, finding
from harness.check.mismatch import Mismatch
from harness.check.reference import Multiplier, matrix_of
from harness.graph.blocks import multiplied
from harness.kernels import to_scipy
from harness.kernels.random import Purpose, integers
from harness.store.memory_store import MemoryStore
from harness.strategy import Promise, Strategy
from harness.strategy.counts import targets_of

# What a strategy multiplies by in a training step: serial training uses the same, and its mean is looked
# at.
#
# A strategy speaks of the dataset in its order, serial training of the graph as it came.

STEPS = 400
DEVIATIONS = 5.0
"""Of the mean over the steps. Of normal numbers one in two million lies further out."""


def multiplier_of(case: Case) -> Multiplier | None:
    """None where no matrix says what a step does. Where the strategy is exact, A it is, in any order."""
    strategy = case.strategy()
    if strategy.promised() is Promise.EXACT:
        return _itself
    order = case.store().orders.cols(0)
    if strategy.multiplier(torch.eye(case.vertices), 0, 0) is None:
        return None
    return partial(_in_order, strategy, order)


def _itself(A: Tensor, _layer: int, _step: int) -> Tensor:
    return A


def _in_order(strategy: Strategy, order: Tensor, A: Tensor, layer: int, step: int) -> Tensor:
    there = strategy.multiplier(A[order][:, order], layer, step)
    assert there is not None
    back = torch.empty_like(there)
    back[order[:, None], order] = there
    return back


def unbiased(case: Case, multiplier: Multiplier | None) -> Finding:
    """Sums of the rows of the matrices of many steps, whose mean is that of A; told in standard deviations of it.

    Every layer by itself: a layer that takes no sample, as one that is aggregated once, says nothing of the others.
    """
    assert multiplier is not None, "an estimator says what it multiplies by"
    A = matrix_of(case.spec.model.kind, MemoryStore(case.graph()))
    weight = torch.linspace(1, 2, case.vertices, dtype=A.dtype)
    drawn = torch.stack(
        [
            torch.stack([multiplier(A, layer, step) @ weight for layer in range(case.spec.model.layers)])
            for step in range(STEPS)
        ]
    )
    exact, spread = A @ weight, drawn.std(dim=0) / STEPS**0.5
    error = (drawn.mean(dim=0) - exact).abs()
    fixed = spread < 1e-12
    deviations = torch.where(fixed, torch.where(error < 1e-12, 0.0, torch.inf), error / spread)
    layer, row = divmod(int(deviations.argmax()), case.vertices)
    largest = float(deviations[layer, row])
    told = f"{largest:.1f} deviations in {STEPS} steps"
    wrong = Mismatch(
        None,
        f"the mean of {STEPS} steps",
        f"the sum of row {row} of layer {layer}'s matrix, its column c weighed by 1 + c / {case.vertices - 1}",
        f"{float(exact[row]):.6g}",
        f"{float(drawn.mean(dim=0)[layer, row]):.6g} ({told}, allowed are {DEVIATIONS:g})",
    )
    return finding("unbiased", case, [wrong] if largest > DEVIATIONS else [], told)


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
