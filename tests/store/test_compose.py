"""A card's recipes are followed, and a graph that is not the promised one is refused."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy import sparse

from harness.base.errors import UserError
from harness.graph.model import TEST, TRAIN, VALID
from harness.graph.store.contents import load_graph
from harness.kernels.csr import to_scipy

ADJACENCY = sparse.csr_array(np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))
FROM_FILES = {
    "source": {"kind": "npz", "path": "raw/g.npz"},
    "features": {"kind": "file", "path": "raw/x.csv"},
    "labels": {"kind": "file", "path": "raw/y.txt"},
    "split": {"kind": "file", "path": "raw/s.npy"},
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "raw").mkdir()
    sparse.save_npz(tmp_path / "raw" / "g.npz", ADJACENCY)
    (tmp_path / "raw" / "x.csv").write_text("1,3\n0,0\n2,2\n")
    (tmp_path / "raw" / "y.txt").write_text("2\n-1\n0\n")
    np.save(tmp_path / "raw" / "s.npy", np.array([1, 2, 3]))
    return tmp_path


def refused(card, folder):
    with pytest.raises(UserError) as error:
        load_graph(card, folder)
    return str(error.value)


def test_everything_from_files(files, make_card):
    card = make_card(**FROM_FILES)
    graph = load_graph(card, files)
    assert graph.X.tolist() == [[1, 3], [0, 0], [2, 2]]
    assert graph.y.tolist() == [2, -1, 0]
    assert graph.split.tolist() == [TRAIN, 0, TEST]
    assert graph.X.dtype == torch.float32
    assert set(card.list_source_files(files)) == {"raw/g.npz", "raw/x.csv", "raw/y.txt", "raw/s.npy"}


def test_a_matrix_entry_is_an_edge_from_its_row_to_its_column(files, make_card):
    A = to_scipy(load_graph(make_card(**FROM_FILES, directed=True), files).A).toarray()
    assert A[1, 0] > 0
    assert A[0, 1] == 0


def test_features_can_be_normalised(files, make_card):
    card = make_card(**FROM_FILES | {"features": {"kind": "file", "path": "raw/x.csv", "normalise": True}})
    assert load_graph(card, files).X.tolist() == [[0.25, 0.75], [0, 0], [0.5, 0.5]]


def test_a_file_may_bring_everything(tmp_path, make_card):
    masks = np.eye(3, dtype=bool)[None]
    np.savez(
        tmp_path / "g.npz",
        edges=np.array([[0, 1], [1, 2]]),
        node_features=np.ones((3, 2)),
        node_labels=np.array([0, 1, 2]),
        train_masks=masks[:, 0],
        val_masks=masks[:, 1],
        test_masks=masks[:, 2],
    )
    kind = {"kind": "file"}
    graph = load_graph(
        make_card(source={"kind": "npz", "path": "g.npz"}, features=kind, labels=kind, split=kind), tmp_path
    )
    assert graph.split.tolist() == [TRAIN, VALID, TEST]
    assert graph.counts.nnz_adj == 7


@pytest.mark.parametrize(
    ("recipe", "change", "words"),
    [
        ("labels", {"kind": "file"}, ["labels", "npz"]),
        ("features", {"kind": "file"}, ["features", "npz"]),
        ("split", {"kind": "file"}, ["split", "npz"]),
        ("split", {"kind": "file", "path": "raw/y.txt"}, ["vertex 1", "0 none, 1 train"]),
        ("labels", {"kind": "file", "path": "raw/none.txt"}, ["none.txt"]),
        ("split", {"kind": "random", "train": 1e-9}, ["training vertex"]),
    ],
)
def test_data_that_a_source_lacks_is_refused(files, make_card, recipe, change, words):
    message = refused(make_card(**FROM_FILES | {recipe: change}), files)
    for word in words:
        assert word in message


def test_expected_counts_are_checked(make_card, tmp_path):
    graph = load_graph(make_card(), tmp_path)
    right = {"n": 53, "features": 7, **asdict(graph.counts)}
    load_graph(make_card(expected=right), tmp_path)
    for key, value in right.items():
        message = refused(make_card(expected=right | {key: value + 1000}), tmp_path)
        assert all(word in message for word in (key, f"{value:,}", f"{value + 1000:,}"))


def test_nonzeros_may_be_off_by_the_tolerance_and_nothing_else_may(make_card, tmp_path):
    counts = asdict(load_graph(make_card(), tmp_path).counts)
    for key in ("nnz_sym", "nnz_adj"):
        for sign in (-1, 1):
            near, far = (round(counts[key] * (1 + sign * off)) for off in (0.04, 0.06))
            load_graph(make_card(expected={key: near, "tolerance": 0.05}), tmp_path)
            message = refused(make_card(expected={key: far, "tolerance": 0.05}), tmp_path)
            assert all(word in message for word in (key, f"{counts[key]:,}", f"{far:,}", "5.000%"))
    assert " 54" in refused(make_card(expected={"n": 54, "tolerance": 0.05}), tmp_path)
    others = refused(make_card(expected={"labelled": 52, "training": 54, "n": 53}), tmp_path)
    assert "labelled" in others and "training" in others


@pytest.mark.parametrize("field", ["features", "labels", "split", "edges"])
def test_the_seed_of_the_card_decides_everything_drawn(make_card, tmp_path, field):
    drawn = {"labels": {"kind": "uniform"}, "features": {"kind": "uniform", "width": 4}}
    first, again, other = (load_graph(make_card(**drawn, seed=seed), tmp_path) for seed in (1, 1, 2))
    what = {"features": "X", "labels": "y", "split": "split"}
    part = (lambda graph: graph.A.col) if field == "edges" else (lambda graph: getattr(graph, what[field]))
    assert torch.equal(part(first), part(again))
    assert not torch.equal(part(first), part(other))


class TestManyClasses:
    """A card of the multi-label task."""

    CARD = FROM_FILES | {"task": "multi-label", "labels": {"kind": "file", "path": "raw/sets.csv"}}

    @pytest.mark.parametrize(
        ("sets", "found"),
        [
            ("1,0\n0,1\n1,1\n", "3 classes"),
            ("1,0,0\n0,1,2\n1,1,1\n", "0 or 1"),
            ("1,0,0\n-1,-1,1\n1,1,1\n", "0 or 1"),
        ],
    )
    def test_other_labels_are_refused(self, files, make_card, sets, found):
        (files / "raw" / "sets.csv").write_text(sets)
        assert found in refused(make_card(**self.CARD, classes=3), files)

    def test_a_row_without_labels_is_in_no_split(self, files, make_card):
        (files / "raw" / "sets.csv").write_text("1,0,0\n-1,-1,-1\n0,0,0\n")
        graph = load_graph(make_card(**self.CARD, classes=3), files)
        assert graph.y.tolist() == [[1, 0, 0], [-1, -1, -1], [0, 0, 0]]
        assert graph.split.tolist() == [TRAIN, 0, TEST]
        assert graph.task == "multi-label"

    def test_one_class_a_vertex_is_another_task(self, files, make_card):
        masks = {f"{part}_masks": np.ones((1, 3), bool) for part in ("train", "val", "test")}
        told = {"edges": np.array([[0, 1]]), "node_features": np.ones((3, 2)), "node_labels": np.arange(3)}
        np.savez(files / "raw" / "g.npz", **told, **masks)
        card = make_card(**FROM_FILES | {"labels": {"kind": "file"}}, task="multi-label", classes=3)
        assert "multi-label" in refused(card, files)
