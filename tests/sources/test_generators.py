"""Generators draw the same graph in any chunks, with the statistics that their modules state."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from harness.graph.generators.lattice import Lattice, keep_largest_component, subdivide_edges
from harness.graph.generators.rmat import Rmat
from harness.graph.generators.sbm import Sbm
from harness.graph.generators.shapes import SLOTS
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.sources.source import generate_graph

GENERATORS = [Rmat(8, 6.5, 1), Sbm(211, 4, 9, 0.7, 1), Lattice(13, 17, 1)]


def distances(raw):
    """Edges on the shortest path between every two vertices."""
    matrix = sparse.coo_array((np.ones(len(raw.source)), (raw.source, raw.target)), shape=(raw.n, raw.n))
    return sparse.csgraph.shortest_path(matrix, directed=False, unweighted=True)


def components(raw):
    matrix = sparse.coo_array((np.ones(len(raw.source)), (raw.source, raw.target)), shape=(raw.n, raw.n))
    return sparse.csgraph.connected_components(matrix, directed=False)[0]


def degrees(raw):
    return (normalise_adjacency(raw, directed=False)[0].rowptr.diff() - 1).numpy()


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda g: type(g).__name__)
class TestEveryGenerator:
    @pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
    def test_any_chunking_gives_the_same_edges(self, generator, chunk):
        whole, again = generate_graph(generator), generate_graph(generator, chunk)
        np.testing.assert_array_equal(whole.source, again.source)
        np.testing.assert_array_equal(whole.target, again.target)

    def test_any_rank_draws_its_part_alone(self, generator):
        middle = range(generator.draws // 3, generator.draws // 2)
        everything = set(zip(*(end.tolist() for end in generator.edges(range(generator.draws))), strict=True))
        part = set(zip(*(end.tolist() for end in generator.edges(middle)), strict=True))
        assert part
        assert part <= everything

    def test_ends_are_vertices(self, generator):
        raw = generate_graph(generator)
        assert raw.n == generator.n
        for ends in (raw.source, raw.target):
            assert ends.dtype == np.int64
            assert ends.min() >= 0
            assert ends.max() < raw.n

    def test_the_seed_decides(self, generator):
        assert not np.array_equal(
            generate_graph(generator).target[:50], generate_graph(replace(generator, seed=2)).target[:50]
        )

    def test_no_draws_no_edges(self, generator):
        source, target = generator.edges(range(0))
        assert source.numel() == target.numel() == 0


class TestRmat:
    def test_stated_statistics(self):
        raw = generate_graph(Rmat(14, 16, seed=0))
        degree = degrees(raw)
        assert len(raw.source) == 16 << 14
        assert 25.5 < degree.mean() < 27.5
        assert 3000 < degree.max() < 6000
        assert 0.21 < (degree == 0).mean() < 0.27

    def test_quadrants_have_their_chances(self):
        """At scale 1 the quadrants are the four entries; the names may swap both vertices."""
        raw = generate_graph(Rmat(1, 50_000, seed=0))
        shares = np.bincount(2 * raw.source + raw.target, minlength=4) / len(raw.source)
        np.testing.assert_allclose(sorted(shares), [0.05, 0.19, 0.19, 0.57], atol=0.005)

    def test_names_are_shuffled(self):
        """Without it vertex 0 is the hub, and low names have high degrees."""
        hubs = [int(degrees(generate_graph(Rmat(10, 16, seed))).argmax()) for seed in range(4)]
        assert len(set(hubs)) > 1


class TestSbm:
    GENERATOR = Sbm(4099, 8, 15, 0.6, seed=0)

    def test_classes_are_equal(self):
        sizes = torch.bincount(self.GENERATOR.labels(range(4099)))
        assert sizes.max() - sizes.min() == 1

    def test_homophily_and_degree(self):
        raw, y = generate_graph(self.GENERATOR), self.GENERATOR.labels(range(4099)).numpy()
        assert (y[raw.source] == y[raw.target]).mean() == pytest.approx(0.6, abs=0.01)
        assert 14.7 < degrees(raw).mean() < 15
        assert (degrees(raw) == 0).mean() < 1e-3

    def test_strangers_come_from_all_other_classes(self):
        raw, y = generate_graph(self.GENERATOR), self.GENERATOR.labels(range(4099)).numpy()
        strange = y[raw.source] != y[raw.target]
        step = np.bincount((y[raw.target] - y[raw.source])[strange] % 8, minlength=8)
        assert step[0] == 0
        np.testing.assert_allclose(step[1:] / strange.sum(), 1 / 7, atol=0.01)

    def test_there_are_no_loops(self):
        raw = generate_graph(Sbm(16, 8, 400, 1.0, seed=0))
        assert not (raw.source == raw.target).any()

    def test_duplicates_are_as_few_as_stated(self):
        raw = generate_graph(self.GENERATOR)
        dropped = len(raw.source) - normalise_adjacency(raw, directed=False)[1].nnz_sym / 2
        assert dropped == pytest.approx(8 * (15 * 0.6) ** 2 / 4, rel=0.4)


class TestLattice:
    def test_stated_statistics(self):
        raw = keep_largest_component(generate_graph(Lattice(400, 400, seed=0)))
        degree = degrees(raw)
        assert raw.n / 160_000 == pytest.approx(0.89, abs=0.02)
        assert degree.mean() == pytest.approx(2.37, abs=0.02)
        assert degree.max() <= 7
        shares = np.bincount(degree)[1:5] / raw.n
        np.testing.assert_allclose(shares, [0.18, 0.39, 0.33, 0.11], atol=0.01)

    def test_neighbours_are_near_in_the_order(self):
        raw = generate_graph(Lattice(50, 30, seed=0))
        assert set((raw.target - raw.source).tolist()) <= {1, 30, 31}

    def test_edges_stay_on_the_grid(self):
        raw = generate_graph(Lattice(3, 4, seed=0, keep=1, diagonal=1))
        right = sum((v % 4 < 3) for v in range(12))
        assert len(raw.source) == right + 2 * 4 + 2 * 3
        assert ((raw.target % 4 - raw.source % 4) >= 0).all()

    def test_largest_component_is_scipys(self):
        raw = RawGraph(7, np.array([0, 5, 3, 2]), np.array([1, 3, 2, 5]))
        kept = keep_largest_component(raw)
        assert kept.n == 3
        assert sorted(zip(kept.source.tolist(), kept.target.tolist(), strict=True)) == [
            (0, 2),
            (1, 0),
            (2, 1),
        ]

    def test_two_vertices_on_every_edge_triple_the_distances(self):
        whole = generate_graph(Lattice(9, 11, seed=1))
        raw = subdivide_edges(whole, 2.0, seed=1, number=SLOTS * 99)
        assert raw.n == whole.n + 2 * len(whole.source)
        edges_before = np.searchsorted(whole.source, np.arange(whole.n))
        kept = np.arange(whole.n) + 2 * edges_before
        np.testing.assert_array_equal(distances(raw)[np.ix_(kept, kept)], 3 * distances(whole))

    def test_any_number_of_vertices_on_an_edge_adds_degrees_of_two(self):
        whole = generate_graph(Lattice(40, 30, seed=1))
        raw = subdivide_edges(whole, 1.73, seed=1, number=SLOTS * 1200)
        added = raw.n - whole.n
        assert added / len(whole.source) == pytest.approx(1.73, abs=0.05)
        assert len(raw.source) == len(whole.source) + added
        assert sorted(degrees(raw)) == sorted([*degrees(whole), *[2] * added])
        assert components(raw) == components(whole)

    def test_subdivision_reaches_the_degree_of_a_road_map(self):
        whole = keep_largest_component(generate_graph(Lattice(300, 300, seed=0)))
        assert degrees(subdivide_edges(whole, 1.73, 0, SLOTS * 90_000)).mean() == pytest.approx(
            2.12, abs=0.01
        )
