"""The three layouts of .npz graphs, written here as their publishers write them."""

import numpy as np
import pytest
from scipy import sparse

from harness.base.errors import UserError
from harness.graph.model import TEST, TRAIN, VALID
from harness.graph.sources.npz import read_npz

ADJACENCY = sparse.csr_array(np.array([[0, 1, 0], [0, 0, 1], [1, 0, 1]]))
FEATURES = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]], dtype=np.float32)
PAIRS = [(0, 1), (1, 2), (2, 0), (2, 2)]


def pairs(raw):
    return sorted(zip(raw.source.tolist(), raw.target.tolist(), strict=True))


def csr_keys(name, matrix):
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
        f"{name}_shape": np.array(matrix.shape),
    }


def heterophilous(**changes):
    masks = np.eye(3, dtype=bool)
    arrays = {
        "edges": np.array(PAIRS),
        "node_features": FEATURES,
        "node_labels": np.array([1, 0, 1]),
        "train_masks": masks,
        "val_masks": masks[[1, 2, 0]],
        "test_masks": masks[[2, 0, 1]],
    }
    return {**arrays, **changes}


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_scipys_layout(tmp_path, layout):
    sparse.save_npz(tmp_path / "g.npz", ADJACENCY.asformat(layout))
    raw = read_npz(tmp_path / "g.npz")
    assert (raw.n, pairs(raw)) == (3, PAIRS)
    assert raw.X is raw.y is raw.split is None


@pytest.mark.parametrize("dense", [False, True])
def test_gnn_benchmarks_layout(tmp_path, dense):
    attributes = {"attr_matrix": FEATURES} if dense else csr_keys("attr", sparse.csr_array(FEATURES))
    np.savez(tmp_path / "g.npz", **csr_keys("adj", ADJACENCY), **attributes, labels=np.array([2, 0, 1]))
    raw = read_npz(tmp_path / "g.npz")
    assert (raw.n, pairs(raw)) == (3, PAIRS)
    np.testing.assert_array_equal(raw.X, FEATURES)
    assert raw.y.tolist() == [2, 0, 1]
    assert raw.split is None


@pytest.mark.parametrize(("index", "split"), [(0, [TRAIN, VALID, TEST]), (1, [TEST, TRAIN, VALID])])
def test_the_heterophilous_layout(tmp_path, index, split):
    np.savez(tmp_path / "g.npz", **heterophilous())
    raw = read_npz(tmp_path / "g.npz", split=index)
    assert (raw.n, pairs(raw)) == (3, PAIRS)
    assert raw.y.tolist() == [1, 0, 1]
    assert raw.split.tolist() == split


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({"x": np.zeros(3)}, "has the keys x"),
        ({}, "has the keys (none)"),
        (heterophilous(edges=np.array([[0, 3]])), "0 .. 3"),
        ({k: v for k, v in heterophilous().items() if k != "node_labels"}, "node_labels"),
        ({**csr_keys("adj", ADJACENCY), "labels": np.zeros(3)}, "attr_matrix"),
        (csr_keys("adj", ADJACENCY) | {"adj_indices": np.array([0, 1, 2, 9]), "attr_matrix": FEATURES}, ""),
        ({"edges": np.array([[None, 1]], dtype=object)}, "allow_pickle"),
    ],
)
def test_wrong_files_are_refused(tmp_path, arrays, found):
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(UserError) as error:
        read_npz(tmp_path / "g.npz")
    assert "g.npz" in str(error.value)
    assert found in str(error.value)


def test_a_split_that_is_not_there_is_refused(tmp_path):
    np.savez(tmp_path / "g.npz", **heterophilous())
    with pytest.raises(UserError, match=r"splits 0 \.\. 2"):
        read_npz(tmp_path / "g.npz", split=3)


def test_indices_outside_the_matrix_are_refused(tmp_path):
    """scipy would read beyond its arrays."""
    keys = csr_keys("adj", ADJACENCY) | {"adj_indices": np.array([0, 1, 2, 1 << 20])}
    np.savez(tmp_path / "g.npz", **keys, attr_matrix=FEATURES, labels=np.zeros(3))
    with pytest.raises(UserError, match="indices"):
        read_npz(tmp_path / "g.npz")


def test_a_matrix_that_is_not_square_is_refused(tmp_path):
    sparse.save_npz(tmp_path / "g.npz", ADJACENCY[:2])
    with pytest.raises(UserError, match="2 x 3"):
        read_npz(tmp_path / "g.npz")


@pytest.mark.parametrize("keep", [0, 100, -30])
def test_truncated_archives_are_refused(tmp_path, keep):
    sparse.save_npz(tmp_path / "g.npz", ADJACENCY)
    (tmp_path / "g.npz").write_bytes((tmp_path / "g.npz").read_bytes()[:keep])
    with pytest.raises(UserError, match=r"g\.npz"):
        read_npz(tmp_path / "g.npz")
