"""Two constraints, counted; remote vertices after any moves, recounted by scipy; the effects of both forms."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.base.errors import UserError
from harness.graph.generators.rmat import Rmat
from harness.graph.generators.sbm import Sbm
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.partitions.metis import call_metis_kway, find_neighbours, partition_with_balanced_metis
from harness.graph.partitions.partition import compute_parts
from harness.graph.partitions.swap import GAMMA, SwapState, balance_by_swaps, compute_balance
from harness.graph.sources.source import generate_graph
from harness.kernels.csr import Csr

PARTS = 8


def graph_of(raw: RawGraph) -> Csr:
    return normalise_adjacency(raw, directed=False)[0]


@pytest.fixture(scope="module")
def communities() -> Csr:
    return graph_of(generate_graph(Sbm(3000, 2 * PARTS, 20, 0.8, seed=2)))


@pytest.fixture(scope="module")
def skewed() -> Csr:
    return graph_of(generate_graph(Rmat(scale=11, edge_factor=8, seed=1)))


def recounted(A: Csr, part: Any, parts: int) -> list[int]:
    """The number of vertices outside each part with a neighbour in the part, by a product of matrices."""
    M = find_neighbours(A).astype(np.int64)
    member = csr_array((np.ones(A.rows, np.int64), (np.arange(A.rows), part)), shape=(A.rows, parts))
    touches = (M @ member).toarray() > 0
    return [int((touches[:, p] & (part != p)).sum()) for p in range(parts)]


@pytest.mark.parametrize("which", ["communities", "skewed"])
def test_vertices_and_degrees_are_both_balanced(which: str, request: pytest.FixtureRequest) -> None:
    """METIS with one constraint balances vertices alone: on a graph with hubs, degrees are unbalanced."""
    A = request.getfixturevalue(which)
    degrees = np.diff(find_neighbours(A).indptr)
    part = partition_with_balanced_metis(A, PARTS, 0).numpy()
    for weight in (np.ones(A.rows), degrees):
        assert np.bincount(part, weights=weight).max() <= 1.1 * weight.sum() / PARTS
    if which == "skewed":
        alone = np.bincount(compute_parts(A, "metis", PARTS, 0).numpy(), weights=degrees)
        assert alone.max() > 1.2 * degrees.sum() / PARTS


def test_a_library_that_ignores_a_constraint_is_refused(communities: Csr, monkeypatch) -> None:
    def first_alone(metis: Any, starts: Any, ends: Any, weights: Any, parts: int, seed: int) -> Any:
        return call_metis_kway(metis, starts, ends, weights[:, :1], parts, seed)

    monkeypatch.setattr("harness.graph.partitions.metis.call_metis_kway", first_alone)
    with pytest.raises(UserError, match="metis or hypergraph"):
        partition_with_balanced_metis(communities, PARTS, 0)


@given(seed=st.integers(0, 2**31), parts=st.integers(1, 6))
def test_after_any_moves_the_state_is_what_a_recount_finds(seed: int, parts: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 40))
    ends = draw.integers(0, n, (2, int(draw.integers(0, 3 * n))))
    A = normalise_adjacency(RawGraph(n, ends[0], ends[1]), directed=True)[0]
    state = SwapState(A, torch.from_numpy(draw.integers(0, parts, n)), parts)
    for _ in range(30):
        state.move(int(draw.integers(n)), int(draw.integers(parts)))
        assert state.remote.tolist() == recounted(A, state.part, parts)
    degrees = np.diff(find_neighbours(A).indptr)
    assert state.load.tolist() == np.bincount(state.part, weights=degrees, minlength=parts).tolist()


@pytest.mark.parametrize("which", ["communities", "skewed"])
@pytest.mark.parametrize("guarded", [False, True], ids=["literal", "guarded"])
def test_the_most_remote_vertices_of_a_part_do_not_become_more(
    which: str, guarded: bool, request: pytest.FixtureRequest
) -> None:
    A = request.getfixturevalue(which)
    found = balance_by_swaps(A, partition_with_balanced_metis(A, PARTS, 0), PARTS, guarded=guarded)
    assert list(found.after) == recounted(A, found.part.numpy(), PARTS)
    assert max(found.after) <= max(found.before)
    assert found.stopped in ("gamma", "cycle", "no swap helps")
    if found.stopped == "gamma":
        assert 1 - compute_balance(found.after) < GAMMA
    if guarded:
        assert compute_balance(found.after) > max(compute_balance(found.before), 0.98)
        loads = np.bincount(found.part, weights=np.diff(find_neighbours(A).indptr))
        assert loads.max() <= 1.1 * loads.mean()
        assert sum(found.after) <= 1.02 * sum(found.before)


def test_swaps_keep_the_numbers_of_vertices(communities: Csr) -> None:
    start = partition_with_balanced_metis(communities, PARTS, 0)
    after = balance_by_swaps(communities, start, PARTS, guarded=True).part
    assert torch.equal(torch.bincount(after), torch.bincount(start))


def test_the_algorithm_as_printed_soon_comes_back_to_a_pair(communities: Csr) -> None:
    found = balance_by_swaps(
        communities, partition_with_balanced_metis(communities, PARTS, 0), PARTS, guarded=False
    )
    assert found.stopped == "cycle"
    assert found.swaps < 20
