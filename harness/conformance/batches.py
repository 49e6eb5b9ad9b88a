"""Checks that samples are unbiased: over many steps, the mean of the sampled matrices is the whole graph's matrix."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from harness.conformance.case import Case
from harness.conformance.checks import Finding, report_finding
from harness.conformance.mismatch import Mismatch
from harness.conformance.reference import Multiplier, dense_model_matrix, make_dense_graph, read_adjacency
from harness.graph.averaged import select_adjacency
from harness.graph.store.memory_store import MemoryStore
from harness.kernels import to_scipy
from harness.kernels.random import Purpose, integers
from harness.strategy import DenseGraph, Promise, Strategy
from harness.strategy.counts import find_targets

# Serial training uses the matrices that a strategy multiplies by in each training step, and a check tests their mean. A
# strategy numbers vertices in the order of its dataset, serial training in the order of the given graph.

STEPS = 400
DEVIATIONS = 5.0
"""The largest accepted deviation of a mean over the steps. A normal number exceeds it once in two million draws."""


def find_multiplier(case: Case) -> Multiplier | None:
    """Return the matrices of a case's training steps: A for an exact strategy, None if no matrix describes a step."""
    strategy = case.strategy()
    if strategy.effective_promise is Promise.EXACT:
        return _use_adjacency
    store = case.store()
    graph = make_dense_graph(strategy, store)
    if strategy.effective_adjacency(graph, 0, 0) is None:
        return None
    return partial(_multiply_in_order, strategy, graph, store.orders.cols(0))


def _use_adjacency(A: Tensor, _layer: int, _step: int | None) -> Tensor:
    return A


def _multiply_in_order(
    strategy: Strategy, graph: DenseGraph, order: Tensor, _A: Tensor, layer: int, step: int | None
) -> Tensor:
    """Return the matrix of a step in the order of the given graph; `graph` is in the order of the dataset."""
    ordered = strategy.effective_adjacency(graph, layer, step)
    assert ordered is not None
    matrix = torch.empty_like(ordered)
    matrix[order[:, None], order] = ordered
    return matrix


def check_unbiased_layers(case: Case, multiplier: Multiplier | None) -> Finding:
    """Check that the mean of weighted row sums over many steps is the row sum of A, within some standard deviations.

    Layers are tested separately, because a layer without sampling, such as a precomputed first layer, hides others.
    """
    assert multiplier is not None, "an estimator must define `effective_adjacency`"
    A = dense_model_matrix(case.spec.model.kind, MemoryStore(case.graph()))
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
    deviation = f"{largest:.1f} deviations in {STEPS} steps"
    wrong = Mismatch(
        None,
        f"the mean of {STEPS} steps",
        f"the sum of row {row} of layer {layer}'s matrix, its column c weighed by 1 + c / {case.vertices - 1}",
        f"{float(exact[row]):.6g}",
        f"{float(drawn.mean(dim=0)[layer, row]):.6g} ({deviation}, allowed are {DEVIATIONS:g})",
    )
    return _report_deviation("unbiased", case, [wrong] if largest > DEVIATIONS else [], deviation, largest)


HALVES = 8


def _draw_random_halves(count: int) -> Tensor:
    """Return HALVES rows, each with ones for a random half of `count` columns and zeros elsewhere."""
    return integers(1, Purpose.TEST, range(HALVES * count), high=2).view(HALVES, -1).double()


def check_unbiased_messages(case: Case) -> Finding:
    """Check that the mean of received rows over many steps equals the sent rows, and that the variance is bounded.

    Errors are measured in units of the largest deviation that is allowed for a number. Each number is tested by itself;
    then sums over random halves of all numbers are tested by their spread, which finds a small bias that all numbers
    share. A number in a row of equal numbers cannot vary and must arrive unchanged. The test has such a row, and a row
    with an outlier.
    """
    strategy = case.strategy()
    rows = integers(2, Purpose.TEST, range(12 * 10), high=1 << 20).view(12, 10).double() / (1 << 20) - 0.5
    rows[0], rows[1, 3] = 0.25, 100.0
    draws = [strategy.transmit_rows(rows, step) for step in range(STEPS)]
    numbers = torch.stack([each[0] for each in draws if each])
    bounds = torch.stack([each[1] for each in draws if each]).amax(dim=0)
    units = torch.where(bounds > 0, bounds.sqrt(), 1e-12)
    errors = ((numbers - rows) / units).flatten(1)
    each = errors.mean(dim=0).abs() * STEPS**0.5
    halves = errors @ _draw_random_halves(rows.numel()).T
    together = halves.mean(dim=0).abs() / (halves.std(dim=0) / STEPS**0.5).clamp(min=1e-12)
    worst = max(float(each.max()), float(together.max()))
    place = divmod(int(each.argmax()), rows.shape[1])
    deviation, wrong = f"{worst:.1f} deviations in {STEPS} steps", []
    if worst > DEVIATIONS:
        got = f"{float(numbers.mean(dim=0)[place]):.6g} ({deviation}, allowed are {DEVIATIONS:g})"
        when, what = f"the mean of {STEPS} steps", f"element {place}, and random halves of all elements"
        wrong.append(Mismatch(None, when, what, f"{float(rows[place]):.6g}", got))
    excess = numbers.var(dim=0, correction=0) - bounds * (1 + 1e-9)
    if bool((excess > 1e-24).any()):
        place = divmod(int(excess.argmax()), rows.shape[1])
        most, seen = f"{float(bounds[place]):.6g} or less", float(numbers.var(dim=0, correction=0)[place])
        wrong.append(Mismatch(None, f"the variance over {STEPS} steps", f"element {place}", most, seen))
    margin = f"{deviation}, variances within their bound"
    return _report_deviation("messages are unbiased", case, wrong, margin, worst)


def check_unbiased_batches(case: Case) -> Finding:
    """Check that errors of row sums in every layer's matrices, and of the loss's weights, have mean zero.

    An error is summed over random halves of all vertices: over the rows of a layer that are in the mini-batch, and over
    its targets, each times its importance. Single rows would not work, because a rarely sampled row has no spread. The
    groups are tested in turn. Reported is the largest mean error in standard deviations.
    """
    strategy, store = case.strategy(), case.store()
    kind = case.spec.model.kind
    A = read_adjacency(select_adjacency(store, kind))
    targets = find_targets(store, strategy.spec.protocol)
    weight = torch.linspace(1, 2, store.n, dtype=torch.float64)
    exact = dense_model_matrix(kind, store) @ weight
    halves = _draw_random_halves(store.n)
    balanced = torch.zeros_like(halves)
    balanced[:, targets] = halves[:, targets] - halves[:, targets].mean(dim=1, keepdim=True)
    layers = case.spec.model.layers
    missed = torch.empty(STEPS, layers + 1, HALVES, dtype=torch.float64)
    for step in range(STEPS):
        batch = strategy.mini_batch(step, step % strategy.groups, A, targets)
        for layer, sampled in enumerate(batch.A):
            drawn = torch.from_numpy(to_scipy(sampled) @ weight[batch.vertices[layer]].numpy())
            rows = batch.vertices[layer + 1]
            missed[step, layer] = halves[:, rows] @ (drawn - exact[rows])
        last = batch.vertices[-1]
        importance = torch.ones(len(last)) if batch.importance is None else batch.importance
        missed[step, layers] = balanced[:, last] @ importance.double()
    mean, spread = missed.mean(dim=0).abs(), missed.std(dim=0) / STEPS**0.5
    deviations = torch.where(mean < 1e-9, 0.0, mean / spread)
    place, worst = divmod(int(deviations.argmax()), HALVES)
    largest = float(deviations[place, worst])
    if not largest:
        return Finding("unbiased", case.name, True, "whole rows")
    deviation = f"{largest:.1f} deviations in {STEPS} steps"
    what = (
        f"the error of layer {place}'s row sums against A's" if place < layers else "the weights of targets"
    )
    wrong = Mismatch(
        None,
        f"the mean of {STEPS} steps",
        f"{what}, over half {worst} of the vertices",
        "0",
        f"{float(mean[place, worst]):.3g} ({deviation}, allowed are {DEVIATIONS:g})",
    )
    return _report_deviation("unbiased", case, [wrong] if largest > DEVIATIONS else [], deviation, largest)


def _report_deviation(
    check: str, case: Case, wrong: Sequence[Mismatch], margin: str, deviations: float
) -> Finding:
    """Return the finding of a check that compares a mean with its expectation, in standard deviations of the mean."""
    return report_finding(check, case, wrong, margin, deviations, DEVIATIONS, "deviations")
