"""Features, labels and splits are functions of (seed, vertex), drawn in any parts, and follow their recipes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as draw

from harness.graph.model import NO_LABEL, TEST, TRAIN, VALID, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.vertex_data import (
    CHUNK_FEATURES,
    CHUNK_LABELS,
    draw_gaussian_features,
    draw_label_sets,
    draw_random_split,
    draw_uniform_features,
    draw_uniform_labels,
    label_by_degree,
    make_train_split,
    normalise_rows,
)

Y = torch.arange(5003) % 5


class TestFeatures:
    def test_uniform_rows_are_drawn_alone(self):
        whole = draw_uniform_features(range(100), 7, seed=1)
        assert torch.equal(whole[13:57], draw_uniform_features(range(13, 57), 7, seed=1))
        assert whole.dtype == torch.float32

    def test_uniform_is_uniform(self):
        X = draw_uniform_features(range(5000), 4, seed=1)
        assert X.min() >= 0
        assert X.max() < 1
        assert X.mean().item() == pytest.approx(0.5, abs=0.01)
        assert X.var().item() == pytest.approx(1 / 12, abs=0.003)

    def test_gaussian_rows_are_drawn_alone(self):
        whole = draw_gaussian_features(Y, range(5003), 5, 6, 1.0, seed=1)
        assert torch.equal(whole[900:2000], draw_gaussian_features(Y, range(900, 2000), 5, 6, 1.0, seed=1))

    def test_more_than_one_chunk_is_the_same(self):
        width = CHUNK_FEATURES // 2
        assert torch.equal(
            draw_uniform_features(range(3), width, 0)[2:], draw_uniform_features(range(2, 3), width, 0)
        )

    def test_gaussian_is_a_unit_vector_per_class_and_noise(self):
        X = draw_gaussian_features(Y, range(5003), 5, 6, 4.0, seed=1)
        for label in range(5):
            mine = X[label == Y]
            assert mine.mean(0).norm().item() == pytest.approx(4.0, abs=0.2)
            assert mine.var(0).mean().item() == pytest.approx(1.0, abs=0.08)

    def test_without_a_label_there_is_noise_alone(self):
        unlabelled = torch.full((5003,), NO_LABEL)
        X = draw_gaussian_features(unlabelled, range(5003), 5, 6, 9.0, seed=1)
        assert X.mean(0).abs().max() < 0.08

    def test_rows_sum_to_one_and_zeros_stay(self):
        X = normalise_rows(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        assert X.tolist() == [[0.25, 0.75], [0.0, 0.0]]

    def test_a_set_of_classes_is_the_unit_vector_of_their_sum(self):
        sets = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0], [-1, -1, -1]], dtype=torch.int8)
        X = draw_gaussian_features(sets.repeat(2000, 1), range(10_000), 3, 8, 4.0, seed=1)
        one, two, both, none, unknown = (X[kind::5].mean(0) for kind in range(5))
        expected = 4 * torch.nn.functional.normalize(one + two, dim=0)
        assert (both - expected).norm() < 0.2
        assert max(none.norm(), unknown.norm()) < 0.2


class TestLabels:
    def test_sets_are_even_and_drawn_alone(self):
        sets = draw_label_sets(range(1000), 9, seed=3)
        assert sets.dtype == torch.int8
        assert sets.double().mean(0).sub(0.5).abs().max() < 0.06
        assert torch.equal(sets[70:900], draw_label_sets(range(70, 900), 9, seed=3))
        width = CHUNK_LABELS // 2
        assert torch.equal(draw_label_sets(range(3), width, 0)[2:], draw_label_sets(range(2, 3), width, 0))

    def test_degrees_are_ranked_and_cut(self):
        """A star of 1 and 6 rays, and three vertices alone: ranks by degree, ties by vertex."""
        A, _ = normalise_adjacency(RawGraph(10, np.zeros(6, dtype=np.int64), np.arange(1, 7)), directed=False)
        assert label_by_degree(A.rowptr.diff(), 3).tolist() == [2, 0, 1, 1, 1, 2, 2, 0, 0, 0]

    @pytest.mark.parametrize("classes", [1, 3, 7, 20])
    def test_classes_are_equal(self, classes):
        A, _ = normalise_adjacency(RawGraph(10, np.zeros(6, dtype=np.int64), np.arange(1, 7)), directed=False)
        sizes = torch.bincount(label_by_degree(A.rowptr.diff(), classes), minlength=classes)
        assert sizes.max() - sizes.min() <= 1

    @given(degrees=draw.lists(draw.integers(1, 9), min_size=1, max_size=40), classes=draw.integers(1, 50))
    def test_classes_are_those_of_a_stable_sort(self, degrees, classes):
        ranked = np.argsort(degrees, kind="stable")
        y = label_by_degree(torch.tensor(degrees, dtype=torch.int32), classes)
        for label, members in enumerate(np.array_split(ranked, classes)):
            assert (y[members] == label).all()

    def test_uniform_labels_reach_every_class(self):
        y = draw_uniform_labels(range(7000), 7, seed=0)
        np.testing.assert_allclose(torch.bincount(y, minlength=7) / 7000, 1 / 7, atol=0.02)
        assert torch.equal(y[40:60], draw_uniform_labels(range(40, 60), 7, seed=0))


class TestSplit:
    def test_shares(self):
        shares = torch.bincount(draw_random_split(Y, 0, 0.1, 0.3, seed=0), minlength=4) / len(Y)
        np.testing.assert_allclose(shares, [0, 0.1, 0.3, 0.6], atol=0.02)

    def test_drawn_alone(self):
        whole = draw_random_split(Y, 0, 0.1, 0.3, seed=0)
        assert torch.equal(whole[77:99], draw_random_split(Y[77:99], 77, 0.1, 0.3, seed=0))

    def test_all_of_one_kind(self):
        assert set(draw_random_split(Y, 0, 1.0, 0.0, seed=0).tolist()) == {TRAIN}
        assert set(draw_random_split(Y, 0, 0.5, 0.5, seed=0).tolist()) == {TRAIN, VALID}

    def test_without_a_label_there_is_no_part(self):
        y = torch.tensor([0, NO_LABEL, 2])
        assert make_train_split(y).tolist() == [TRAIN, 0, TRAIN]
        assert draw_random_split(y, 0, 0.0, 0.0, seed=0).tolist() == [TEST, 0, TEST]
        assert make_train_split(y).dtype == torch.uint8
