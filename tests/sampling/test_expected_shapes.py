"""Without its edges, a sampler's mini-batches have the sizes that are expected of neighbours that lie anywhere."""

import numpy as np
import pytest
import torch

from harness.graph.generators.twin import PowerLawTwin
from harness.graph.model import TRAIN, Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.memory_store import MemoryStore
from harness.kernels import Csr
from harness.kernels.csr import make_meta_csr
from harness.ledger import Op
from harness.prediction.replay import replay
from harness.strategies.sampling.graph_placement import WholeGraph
from harness.strategies.sampling.sampler import Neighbours
from harness.strategy import admit, facts_of
from tests.cases import make_case

DEGREE = 20


def draw_anywhere(vertices: int) -> RawGraph:
    """Return a graph in which every vertex has about DEGREE neighbours, all vertices equally likely."""
    source = np.random.default_rng(5).integers(vertices, size=vertices * DEGREE)
    return RawGraph(vertices, source, np.arange(vertices).repeat(DEGREE))


def draw_twin(vertices: int, edges: int, *, directed: bool) -> RawGraph:
    """Return a twin with a power law of degrees."""
    twin = PowerLawTwin(vertices, edges, seed=1, directed=directed)
    source, target = twin.edges(range(twin.draws))
    return RawGraph(vertices, source.numpy(), target.numpy())


def adjacency_of(raw: RawGraph, *, directed: bool) -> Csr:
    A, _ = normalise_adjacency(raw, directed)
    return A._replace(val=A.val.float())


@pytest.mark.parametrize("fanouts", [(6, 4), (6, 5, 4, 3), (100, 100)])
def test_expected_frontiers_of_a_uniform_graph_are_within_four_percent(fanouts: tuple[int, ...]) -> None:
    """A vertex draws anew for every layer, and some of its neighbours are already in the frontier: up to 3 % here."""
    check_frontiers(adjacency_of(draw_anywhere(20_000), directed=True), fanouts, 0.99, 1.04)


@pytest.mark.parametrize(
    ("directed", "edges", "most"),
    [(False, 1_000_000, 1.15), (True, 580_000, 1.45)],
    ids=["both ways", "directed"],
)
def test_expected_frontiers_of_a_power_check_are_upper_bounds(
    directed: bool, edges: int, most: float
) -> None:
    """The degrees of ogbn-products, and of the directed ogbn-papers100M; G3's fan-outs."""
    A = adjacency_of(draw_twin(40_000, edges, directed=directed), directed=directed)
    check_frontiers(A, (25, 10), 1.0, most)


def check_frontiers(A: Csr, fanouts: tuple[int, ...], least: float, most: float) -> None:
    """Compare the frontier of every layer with that of a real mini-batch of 400 targets."""
    sampler = Neighbours(seed=0, size=400, fanouts=fanouts, layers=len(fanouts), groups=4)
    shapes = make_meta_csr(A.rows, A.cols, A.nnz, torch.float32)
    drawn = sampler.mini_batch(1, 0, WholeGraph(A), torch.arange(A.rows))
    targets = torch.empty(A.rows, dtype=torch.int64, device="meta")
    expected = sampler.mini_batch(1, 0, WholeGraph(shapes), targets)
    for mine, theirs in zip(expected.vertices, drawn.vertices, strict=True):
        assert least <= len(mine) / len(theirs) <= most
        assert len(mine) <= A.rows


def make_uniform_store(vertices: int) -> MemoryStore:
    """Return a store of the uniform graph, on which all vertices train."""
    graph = make_case("distdgl", {"p": 1}, vertices=vertices).graph()
    A, counts = normalise_adjacency(draw_anywhere(vertices), directed=True)
    labels, split = graph.y.clamp(min=0), torch.full_like(graph.split, TRAIN)
    return MemoryStore(Graph(A, graph.X, labels, split, graph.classes, True, counts))


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_replay_without_edges_moves_the_same_words_on_a_uniform_graph(kind: str) -> None:
    case = make_case(
        "distdgl",
        {"p": 4},
        {"fanouts": [6, 4], "targets": "any"},
        model={"layers": 2, "hidden": 8, "kind": kind},
        training={"batch": 25},
    )
    store = make_uniform_store(4000)
    strategy = admit(type(case.strategy()), case.spec, facts_of(store))
    drawn, expected = replay(strategy, 1, store), replay(strategy, 1)
    assert drawn.entries.keys() == expected.entries.keys()
    for key, amounts in drawn.entries.items():
        if key.op is Op.ALL_TO_ALL:
            assert expected.entries[key].elements_received == pytest.approx(
                amounts.elements_received, rel=0.05
            )
            assert expected.entries[key].calls == amounts.calls
    assert 1 <= expected.peak_bytes / drawn.peak_bytes < 1.3  # without edges, the device draws


def test_evaluation_without_edges_multiplies_and_broadcasts_all_rows() -> None:
    case = make_case("distdgl", {"p": 4}, {"fanouts": [6, 4]}, model={"layers": 2}, training={"batch": 25})
    store = make_uniform_store(4000)
    strategy = admit(type(case.strategy()), case.spec, facts_of(store))
    drawn, expected = (replay(strategy, 1, blocks, evaluation=True) for blocks in (store, None))
    for op in (Op.BROADCAST, Op.SPMM):
        mine, theirs = (
            sum(
                amounts.elements_received + amounts.flops
                for key, amounts in each.entries.items()
                if key.op is op
            )
            for each in (expected, drawn)
        )
        assert mine == pytest.approx(theirs, rel=0.02) and theirs


def test_run_without_a_cache_is_replayed_from_facts_only() -> None:
    without = make_case("salient", {"p": 4}, {"fanouts": [6, 4], "share": 0.0}, training={"batch": 25})
    assert replay(without.strategy(), 1).events
