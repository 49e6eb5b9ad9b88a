"""Checks that a strategy draws what its reference sampler describes: the same vertices, entries, values and weights,
with the same frequencies, and as independently.

Both draw many epochs. The features of a mini-batch are the numbers of vertices, the numbers and sums of entries, and
the weights of the loss, in random halves of the rows and columns of every layer. The statistics of an epoch are the
means and variances of the features, and their covariances between halves of the rows, layers, groups, steps and
epochs, which differ if random numbers are shared. Each statistic's means over the epochs are compared by a z test.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.conformance.case import Case
from harness.conformance.checks import Finding, report_finding
from harness.conformance.mismatch import Mismatch
from harness.conformance.reference import make_dense_graph, read_adjacency
from harness.graph.averaged import select_adjacency
from harness.graph.blocks import Blocks
from harness.kernels.csr import to_scipy
from harness.strategy import DenseBatch, MiniBatch, Promise, Strategy
from harness.strategy.counts import find_targets
from harness.strategy.reference_sampler import Array

CHECK, SIDES = "samples as described", ("reference", "strategy")
Epoch = list[list[DenseBatch]]
"""The mini-batch of each group, in each step."""

VERTICES, BATCH = 61, 10
"""The vertices of the graph to draw from, and the largest mini-batch: few, so that many epochs can be drawn."""
BATCHES, FEWEST, MORE = 900, 150, 3
"""The fewest mini-batches and epochs to draw; from the reference, MORE times as many."""
HALVES = 8
"""The random halves of the rows and columns. The first is everything; the second has the columns up to the middle."""
FALSE_ALARM = 1e-5
"""The probability that a correct sampler fails the check in one case; a hundred cases rarely do."""
BIAS, POWER = 0.05, 0.99
"""A bias of this share of a layer's entries, or of their sum, is found with this probability."""


def choose_cases(cases: Sequence[Case]) -> list[Case]:
    """Return the cases whose draws are tested: a few that together have every setting that can change a draw."""
    candidates = [(case, _list_draw_settings(case)) for case in cases if _draws(case)]
    chosen, missing = list[Case](), set[str]().union(*(settings for _, settings in candidates))
    while missing:
        best, settings = max(candidates, key=lambda each: len(each[1] & missing))
        chosen.append(best)
        missing -= settings
    return chosen


def _list_draw_settings(case: Case) -> set[str]:
    """Return what can change the draws of a case: parameters, and properties of its graph."""
    spec, order = case.spec, case.spec.dataset
    params = {f"{key} = {value}" for key, value in spec.strategy.params.items() if key != "wire"}
    kind = "mean" if spec.model.kind == "sage" else "sum"
    direction = "directed" if case.directed else "undirected"
    return params | {kind, direction, str(case.weights), order.permutation, order.partition}


def _draws(case: Case) -> bool:
    """Return whether a case draws at random, from enough vertices."""
    try:
        strategy = case.strategy()
    except Exception:  # the check of the case reports it
        return False
    promise = strategy.effective_promise
    describes = strategy.reference_sampler is not None and (
        strategy.mini_batches or promise is not Promise.EXACT
    )
    return case.vertices >= VERTICES and (describes or promise is Promise.ESTIMATOR)


def check_samples(case: Case, most: int) -> Finding:
    """Check that a strategy draws as its reference sampler does, by at most 2 `most` mini-batches.

    More and more are drawn, until a bias would be found, or one is.
    """
    case = _shrink(case)
    strategy, store = case.strategy(), case.store()
    ours, theirs = (
        map(_measure, epochs) for epochs in (_draw_epochs(strategy, store), _draw_reference(strategy, store))
    )
    drawn, expected = [next(ours)], [next(theirs)]
    if drawn[0].shape != expected[0].shape:
        described, got = (f"{epoch.shape[0]} and {epoch.shape[1]}" for epoch in (*expected, *drawn))
        wrong = Mismatch(None, "an epoch", "steps and groups", described, got, SIDES)
        return report_finding(CHECK, case, [wrong], "")
    batches = drawn[0].shape[0] * drawn[0].shape[1]
    epochs = max(FEWEST, BATCHES // batches)
    while True:
        drawn += islice(ours, epochs - len(drawn))
        expected += islice(theirs, MORE * epochs - len(expected))
        comparison = _compare(np.stack(drawn), np.stack(expected))
        if (
            comparison.is_powerful
            or comparison.deviations.max() > comparison.allowed
            or epochs * batches >= most
        ):
            return _report(case, comparison, epochs)
        epochs *= 2


def _shrink(case: Case) -> Case:
    """Return the case on a smaller graph, with smaller mini-batches; or the case, if it needs its vertices."""
    training = case.spec.training
    smaller_batch = training.model_copy(update={"batch": min(training.batch, BATCH)})
    spec = case.spec.model_copy(update={"training": smaller_batch})
    smaller = replace(case, spec=spec, vertices=min(VERTICES, case.vertices))
    try:
        smaller.strategy()
    except UserError:
        return case
    return smaller


def _draw_epochs(strategy: Strategy, store: Blocks) -> Iterator[Epoch]:
    """Draw epoch after epoch with the strategy."""
    A = read_adjacency(select_adjacency(store, strategy.spec.model.kind))
    graph, targets = make_dense_graph(strategy, store), find_targets(store, strategy.spec.protocol)
    everyone, layers = np.ones(store.n, dtype=bool), range(strategy.spec.model.layers)

    def draw(step: int, group: int) -> DenseBatch:
        if strategy.mini_batches:
            return _to_dense(strategy.mini_batch(step, group, A, targets), store.n)
        matrices = [strategy.effective_adjacency(graph, layer, step) for layer in layers]
        return DenseBatch(
            [everyone] * (len(layers) + 1), [each.numpy() for each in matrices if each is not None]
        )

    first = 0
    while True:
        steps = range(first, first + strategy.steps)
        yield [[draw(step, group) for group in range(strategy.groups)] for step in steps]
        first = steps.stop


def _draw_reference(strategy: Strategy, store: Blocks) -> Iterator[Epoch]:
    """Draw epoch after epoch with the reference sampler."""
    assert strategy.reference_sampler
    targets = find_targets(store, strategy.spec.protocol).numpy()
    graph, rng = make_dense_graph(strategy, store), np.random.default_rng(1)
    reference = strategy.reference_sampler(strategy, graph, targets, rng)
    while True:
        yield reference.draw_epoch()


def _to_dense(batch: MiniBatch, n: int) -> DenseBatch:
    """Return a mini-batch on all vertices of the graph."""
    masks = [np.zeros(n, dtype=bool) for _ in batch.vertices]
    for mask, vertices in zip(masks, batch.vertices, strict=True):
        mask[vertices.numpy()] = True
    matrices = [np.zeros((n, n)) for _ in batch.A]
    for layer, (whole, A) in enumerate(zip(matrices, batch.A, strict=True)):
        cols, rows = (each.numpy() for each in batch.vertices[layer : layer + 2])
        whole[np.ix_(rows, cols)] = to_scipy(A).toarray()
    importance = None
    if batch.importance is not None:
        importance = np.zeros(n)
        importance[batch.vertices[-1].numpy()] = batch.importance.numpy()
    return DenseBatch(masks, matrices, importance)


class _Comparison(NamedTuple):
    """The means of the statistics of drawn epochs, and of expected ones."""

    names: Sequence[str]
    drawn: Array
    expected: Array
    deviations: Array
    """The differences of the means, in standard deviations."""
    allowed: float
    is_powerful: bool
    """Whether a bias of any layer's entries would have been found."""


def _compare(ours: Array, theirs: Array) -> _Comparison:
    """Compare the features of some epochs, (epochs, steps, groups, KINDS, layers + 1, HALVES)."""
    center = theirs.mean(axis=0)
    names, means, variances, usual = [], [], [], center.mean(axis=(0, 1))
    for sample in (ours - center, theirs - center):
        statistics = _list_statistics(sample)
        names = [name for name, values in statistics for name in _name_elements(name, values.shape[1:])]
        flat = [values.reshape(len(values), -1) for _, values in statistics]
        means.append(np.concatenate([values.mean(axis=0) for values in flat]))
        variances.append(np.concatenate([values.var(axis=0) for values in flat]))
    # Both samples have the same variance if they are alike: the mean of both varies less.
    weights = len(ours), len(theirs)
    variance = np.average(variances, axis=0, weights=weights) * sum(1 / each for each in weights)
    error, spread = abs(means[0] - means[1]), np.sqrt(variance)
    fixed = spread < 1e-12
    deviations = np.where(fixed, np.where(error < 1e-9, 0, np.inf), error / np.where(fixed, 1, spread))
    allowed = -NormalDist().inv_cdf(FALSE_ALARM / 2 / len(names))
    for each in means:  # the first statistics are the features themselves
        each[: usual.size] += usual.ravel()
    of_all = np.zeros(usual.shape, dtype=bool)
    of_all[[0, 2], :, 0] = True
    bias, spread = BIAS * abs(means[1][: usual.size]), spread[: usual.size]
    found = bias >= (allowed + NormalDist().inv_cdf(POWER)) * spread
    drawn, expected = means
    return _Comparison(names, drawn, expected, deviations, allowed, bool(found[of_all.ravel()].all()))


KINDS = (
    "entries of layer {} in half {}",
    "entries of layer {} outside half {}",
    "the sum of layer {}'s entries in half {}",
    "the sum of layer {}'s entries outside half {}",
    "vertices of input {} in half {}",
    "the weights of the loss in half {1}",
)
"""The features of a mini-batch: of its matrices by rows, of the vertices of layers, and of its loss."""


def _measure(epoch: Epoch) -> Array:
    """Return the features of the mini-batches of an epoch, (steps, groups, KINDS, layers + 1, HALVES)."""
    rows, cols = _draw_halves(len(epoch[0][0].vertices[0]))

    def measure(batch: DenseBatch) -> Array:
        A, features = np.stack(batch.A), np.zeros((len(KINDS), len(batch.A) + 1, HALVES))
        for kind, values in ((0, A != 0), (2, A)):
            columns = values @ cols.T
            features[kind, :-1] = np.einsum("nik,ki->nk", columns, rows)
            features[kind + 1, :-1] = columns.sum(axis=1) - features[kind, :-1]
        features[4] = np.stack(batch.vertices) @ rows.T
        features[5, -1] = rows @ (batch.vertices[-1] * (1 if batch.importance is None else batch.importance))
        return features

    return np.array([[measure(batch) for batch in step] for step in epoch])


@lru_cache
def _draw_halves(n: int) -> tuple[Array, Array]:
    """Return the halves of the rows and of the columns, (HALVES, n): 1 for what is in a half, and 0 for the others."""
    rows, cols = (np.random.default_rng(2).random((2, HALVES, n)) < 0.5).astype(float)
    rows[0] = cols[0] = 1
    cols[1] = np.arange(n) < n / 2  # where rows draw alike if they use the same random numbers
    return rows, cols


def _list_statistics(x: Array) -> list[tuple[str, Array]]:
    """Return the statistics of epochs, (epochs, ...), given the deviations of all features from their means."""
    signs = np.random.default_rng(3).choice([-1.0, 1.0], (*x.shape[1:3], 1, 1, 1))
    layers = x[:, :, :, :5]
    products = {
        "{}": x,
        "{}, in some steps and groups": x * signs,
        "the variance of {}": x * x,
        "the covariance of {} with the other rows": x[:, :, :, [0, 2]] * x[:, :, :, [1, 3]],
        "the covariance of {} with the next layer": layers[..., :-1, :] * layers[..., 1:, :],
        "the covariance of {} with other groups": _multiply_others(x, 2),
        "the covariance of {} with other steps": _multiply_others(x, 1),
        "the covariance of {} with the next epoch": x[:-1] * x[1:],
    }
    return [(name, each.mean(axis=(1, 2))) for name, each in products.items()]


def _multiply_others(x: Array, axis: int) -> Array:
    """Return the sum of all products of two different elements along an axis."""
    products: Array = (x.sum(axis=axis, keepdims=True) ** 2 - (x**2).sum(axis=axis, keepdims=True)) / 2
    return products


def _name_elements(name: str, shape: Sequence[int]) -> Iterator[str]:
    for kind, layer, half in np.ndindex(*shape):
        yield name.format(KINDS[kind if shape[0] > 2 else 2 * kind].format(layer, half))


def _report(case: Case, comparison: _Comparison, epochs: int) -> Finding:
    worst = int(comparison.deviations.argmax())
    largest, allowed = float(comparison.deviations[worst]), comparison.allowed
    power = (
        f"a bias of {BIAS:.0%} in a layer's entries would {'' if comparison.is_powerful else 'not '}be found"
    )
    margin = f"{largest:.1f} deviations in {len(comparison.names):,} statistics of {epochs} epochs; {power}"
    wrong = Mismatch(
        None,
        f"the mean of {epochs} epochs",
        comparison.names[worst],
        f"{comparison.expected[worst]:.6g}",
        f"{comparison.drawn[worst]:.6g} ({largest:.1f} deviations, allowed are {allowed:.1f})",
        SIDES,
    )
    broken = [wrong] if largest > allowed else []
    return report_finding(CHECK, case, broken, margin, largest, allowed, "deviations")
