"""Training with PyG's loader; without its libraries, torch-sparse's function is replaced by one in Python."""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch_geometric.typing
from torch import Tensor

from harness.base.errors import UserError
from harness.conformance.case import Case, train_rank
from harness.conformance.checks import check_all_memory, check_memory, check_replay, check_serial
from harness.conformance.reference import train_densely
from harness.kernels import to_scipy
from harness.ledger import AxisName
from harness.strategies.sampling import pyg
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategy.counts import find_targets
from tests.cases import DOUBLE, SGD, make_case

pytestmark = pytest.mark.long

CALL = (
    "neighbor_sample(Tensor colptr, Tensor row, Tensor seeds, int[] sizes, bool replace, bool directed)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


def neighbor_sample(
    colptr: Tensor, row: Tensor, seeds: Tensor, sizes: list[int], _replace: bool, _directed: bool
) -> tuple[Tensor, ...]:
    """Sample without replacement; return vertices, the positions of both ends of every edge, and the edge numbers."""
    place = {vertex: number for number, vertex in enumerate(seeds.tolist())}
    found: list[tuple[int, int, int]] = []
    begin = 0
    for size in sizes:
        frontier = list(place)[begin:]
        begin = len(place)
        for vertex in frontier:
            first, last = colptr[vertex : vertex + 2].tolist()
            for edge in (torch.randperm(last - first)[:size] + first).tolist():
                neighbour = place.setdefault(int(row[edge]), len(place))
                found.append((neighbour, place[vertex], edge))
    ends = torch.tensor(found, dtype=torch.int64).view(-1, 3)
    return torch.tensor(list(place)), *ends.unbind(1)


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make PyG able to sample."""
    if any(map(find_spec, pyg.SAMPLING)):
        yield
        return
    library = torch.library.Library("torch_sparse", "FRAGMENT")
    library.define(CALL)
    library.impl("neighbor_sample", neighbor_sample, "CompositeExplicitAutograd")
    monkeypatch.setattr(torch_geometric.typing, "WITH_TORCH_SPARSE", True)
    monkeypatch.setattr(pyg, "find_spec", lambda _: True)
    yield
    library._destroy()


def make_pyg_case(kind: str = "gcn") -> Case:
    model, training = {"kind": kind, "layers": 3, "hidden": 10}, {**SGD, "batch": 25}
    return make_case("pyg", {AxisName.D: 1}, {"fanouts": [3, 2]}, model=model, training=training, **DOUBLE)


def test_strategy_without_sampling_library_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyg, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="pyg-lib or torch-sparse"):
        make_pyg_case().strategy()


@pytest.mark.usefixtures("sampling")
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_training_equals_dense_training_on_pygs_samples(kind: str) -> None:
    case = make_pyg_case(kind)
    ranks = [train_rank(case, 2)]
    findings = check_serial(case, ranks, train_densely(case.strategy(), case.store(), 2))
    assert [finding for finding in findings if not finding.holds] == []


@pytest.mark.usefixtures("sampling")
def test_pygs_copy_of_the_graph_is_counted() -> None:
    case = make_pyg_case()
    ranks = [train_rank(case, 1)]
    assert check_all_memory(case, ranks).holds
    assert check_memory(case, ranks).holds
    assert all(finding.holds for finding in check_replay(case, ranks, [0]))


@pytest.mark.usefixtures("sampling")
def test_rescaled_entries_have_the_precision_of_the_run() -> None:
    """In double precision, an entry equals A times the row's neighbours over its drawn neighbours."""
    case = make_pyg_case()
    strategy, store = case.strategy(), case.store()
    A, targets = store.adjacency(range(store.n), range(store.n)), find_targets(store, "corrected")
    batch = strategy.mini_batch(0, 0, A, targets)
    S, drawn = batch.vertices[0].numpy(), to_scipy(batch.A[0]).toarray()
    dense = to_scipy(A).toarray()
    neighbours, found = (dense != 0).sum(axis=1)[S] - 1, (drawn != 0).sum(axis=1) - 1
    scale = (neighbours / np.maximum(found, 1))[:, None] * np.ones(len(S))
    np.fill_diagonal(scale, 1)
    assert (scale > 1).any()
    np.testing.assert_allclose(drawn, np.where(drawn, dense[np.ix_(S, S)] * scale, 0), rtol=1e-14)


@pytest.mark.skipif(
    find_spec("torch_sparse") is not None and find_spec("pyg_lib") is None,
    reason="torch-sparse 0.6.18 prefers the first neighbours: docs/strategies/baselines.md",
)
@pytest.mark.usefixtures("sampling")
def test_sampled_rows_of_the_targets_are_unbiased() -> None:
    """Entries agree within five standard deviations."""
    case = make_pyg_case()
    strategy, store = case.strategy(), case.store()
    assert isinstance(strategy, pyg.Pyg)
    A, targets = store.adjacency(range(store.n), range(store.n)), find_targets(store, "corrected")
    dense, sums, squares = to_scipy(A).toarray(), np.zeros(A.shape), np.zeros(A.shape)
    graph, epochs = WholeGraph(A), 60
    loader = strategy.composed.sampler.prepare_for(graph)
    for step in range(epochs * strategy.steps):
        batch = loader.mini_batch(step, 0, graph, targets)
        S, B = (batch.vertices[place].numpy() for place in (0, -1))
        assert S[: len(B)].tolist() == B.tolist()
        rows = np.zeros((len(B), store.n))
        rows[:, S] = to_scipy(batch.A[-1]).toarray()
        sums[B] += rows
        squares[B] += rows**2
    mean = (sums / epochs)[targets]
    deviation = np.sqrt(np.maximum((squares / epochs)[targets] - mean**2, 0) / epochs)
    assert (np.abs(mean - dense[targets]) <= 5 * deviation + 1e-9).all()


@pytest.mark.usefixtures("sampling")
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_full_fanout_equals_serial_training(kind: str) -> None:
    """With all neighbours of all training vertices in one mini-batch, nothing is sampled."""
    model = {"kind": kind, "layers": 3, "hidden": 10}
    training = {**SGD, "batch": 211}
    settings = {"model": model, "training": training, **DOUBLE}
    sampled = train_rank(make_case("pyg", {AxisName.D: 1}, {"fanouts": [211] * 3}, **settings), 3)
    whole = train_rank(make_case("serial", {AxisName.P: 1}, model=model, training=SGD, **DOUBLE), 3)
    assert sampled.losses == pytest.approx(whole.losses, rel=1e-12)
    for ours, theirs in zip(sampled.parameters, whole.parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)
