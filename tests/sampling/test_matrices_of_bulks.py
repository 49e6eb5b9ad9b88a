"""Bulk samples do not depend on the bulk, have the probabilities of the formula, and are unbiased if promised."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from harness.conformance.case import make_check_graph
from harness.kernels import Csr, from_coo, to_scipy
from harness.kernels.parts import select_rows
from harness.strategies.sampling.bulk import Algorithm1, BulkGraph, SampledLayer
from harness.strategies.sampling.matrices import PositionMap, matrix_of_batch, stack_batches

N = 97
SAMPLERS = ["graphsage", "ladies", "fastgcn"]


def graph(n: int = N) -> BulkGraph:
    return BulkGraph(make_check_graph(n).A)


def batches_of(n: int, size: int) -> list[torch.Tensor]:
    return list(torch.randperm(n, generator=torch.Generator().manual_seed(1)).split(size))


def told(layers: list[SampledLayer], batch: int) -> list[list[object]]:
    """Return all numbers of a batch."""
    return [
        [part.tolist() for part in matrix_of_batch(layer.A, layer.outputs, layer.inputs, batch)[:3]]
        + [layer.outputs.batch_vertices(batch).tolist(), layer.inputs.batch_vertices(batch).tolist()]
        for layer in layers
    ]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("sizes", [(4,), (3, 2, 2), (50, 3, 200, 1)])
def test_sample_of_a_batch_does_not_depend_on_its_bulk(
    sampler, replacement: bool, sizes: tuple[int, ...]
) -> None:
    """This includes short last bulks and consecutive layers."""
    whole, batches = graph(), batches_of(N, 10)
    bulk = Algorithm1(5, sampler, sizes, replacement=replacement)
    alone = [bulk.draw(whole, PositionMap(N), 2, [number], [batch]) for number, batch in enumerate(batches)]
    for layers in alone:
        assert len(layers) == len(sizes)
        for before, after in pairwise(layers):
            assert torch.equal(before.outputs.vertices, after.inputs.vertices)
    for k in (3, len(batches)):
        for first in range(0, len(batches), k):
            numbers = range(first, min(first + k, len(batches)))
            layers = bulk.draw(whole, PositionMap(N), 2, numbers, [batches[number] for number in numbers])
            for place, number in enumerate(numbers):
                assert told(layers, place) == told(alone[number], 0)
    other = bulk.draw(whole, PositionMap(N), 3, [0], [batches[0]])
    assert other[0].A.nnz == 0 or told(other, 0) != told(alone[0], 0) or min(sizes) >= N


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_edge_cases_keep_all_entries_of_short_rows(sampler) -> None:
    """Vertices without neighbours, all vertices, an empty batch, a repeated vertex, a fan-out above the degrees."""
    row, col = torch.tensor([0, 0, 1, 4]), torch.tensor([1, 2, 0, 4])
    A = from_coo(row, col, torch.ones(4), (6, 6))
    nobody = torch.empty(0, dtype=torch.int64)
    batches = [torch.tensor([3, 5]), torch.arange(6), nobody, torch.tensor([0, 0])]
    layers = Algorithm1(0, sampler, (9, 9), replacement=False).draw(
        BulkGraph(A), PositionMap(6), 0, range(4), batches
    )
    for batch in range(4):
        for layer in layers:
            mine = matrix_of_batch(layer.A, layer.outputs, layer.inputs, batch)
            inputs = layer.inputs.batch_vertices(batch).numpy()
            dense = to_scipy(A).toarray()[layer.outputs.batch_vertices(batch).numpy()]
            back = np.zeros_like(dense)
            np.add.at(back.T, inputs, to_scipy(mine).toarray().T)
            assert np.array_equal(back, dense)


def test_ladies_probabilities_equal_the_formula() -> None:
    """e^2 over the sum of e^2 for vertices with e neighbours in the batch, and the norms of Zou et al."""
    A, batch = make_check_graph(N).A, torch.arange(5, 35)
    dense = to_scipy(A).toarray()[5:35]
    for distribution, sums in (
        ("counts", (dense != 0).sum(axis=0) ** 2.0),
        ("norms", (dense**2).sum(axis=0)),
    ):
        bulk, stack = Algorithm1(0, "ladies", (4,), distribution), stack_batches([batch])
        P = to_scipy(bulk.compute_masses(BulkGraph(A), select_rows(A, batch), stack)).toarray()[0]
        np.testing.assert_allclose(P / P.sum(), sums / sums.sum(), rtol=1e-9)
        everyone = to_scipy(
            Algorithm1(0, "fastgcn", (4,), distribution).compute_masses(
                BulkGraph(A), select_rows(A, batch), stack
            )
        )
        whole = to_scipy(A).toarray()
        of_all = (whole != 0).sum(axis=0) ** 2.0 if distribution == "counts" else (whole**2).sum(axis=0)
        np.testing.assert_allclose(everyone.toarray()[0] / everyone.sum(), of_all / of_all.sum(), rtol=1e-9)


def estimates(bulk: Algorithm1, A: Csr, times: int) -> np.ndarray:
    """Return estimates of A H for a batch, each from a different sample; H has two columns."""
    batch = torch.arange(20, 50)
    H = torch.linspace(-1, 2, 2 * N, dtype=torch.float64).view(N, 2).cos().numpy()
    (layer,) = bulk.draw(BulkGraph(A), PositionMap(N), 0, range(times), [batch] * times)
    one = partial(matrix_of_batch, layer.A, layer.outputs, layer.inputs)
    return np.stack([to_scipy(one(b)) @ H[layer.inputs.batch_vertices(b).numpy()] for b in range(times)])


@pytest.mark.parametrize(
    ("sampler", "size", "replacement", "unbiased"),
    [
        ("graphsage", 2, False, True),
        ("ladies", 12, True, True),
        ("fastgcn", 12, True, True),
        ("ladies", 12, False, False),
        ("fastgcn", 60, False, False),
    ],
)
@pytest.mark.parametrize("distribution", ["counts", "norms"])
def test_sampled_products_are_unbiased_exactly_if_promised(
    sampler, size: int, replacement: bool, unbiased: bool, distribution
) -> None:
    """The biased sampler misses the mean, so the test can fail."""
    A, times = make_check_graph(N).A, 4000
    H = torch.linspace(-1, 2, 2 * N, dtype=torch.float64).view(N, 2).cos().numpy()
    found = estimates(Algorithm1(1, sampler, (size,), distribution, replacement), A, times)
    spread = found.std(axis=0) / times**0.5
    off = np.abs(found.mean(axis=0) - (to_scipy(A) @ H)[20:50])
    assert (off <= 5 * spread + 1e-12).all() == unbiased
