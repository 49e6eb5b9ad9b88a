"""GraphSAINT's folders give what PyTorch Geometric reads from them, and what does not fit is refused by name."""

import json

import numpy as np
import pytest
from scipy import sparse
from torch_geometric.datasets import AmazonProducts, Flickr

from harness.base.errors import UserError
from harness.graph.model import TEST, TRAIN, VALID
from harness.graph.sources import ReadOptions, graphsaint
from harness.graph.sources.graphsaint import FILES, GraphSaint

N, CLASSES = 41, 7
RNG = np.random.default_rng(5)
SETS = RNG.integers(0, 2, (N, CLASSES))
X = RNG.normal(size=(N, 3))


def written(folder, *, labels=SETS, compressed=True):
    """The four files; some rows of the matrix are empty."""
    folder.mkdir(parents=True, exist_ok=True)
    dense = RNG.random((N, N)) < 0.08
    dense[::4] = False
    A = sparse.csr_array(dense)
    sparse.save_npz(folder / "adj_full.npz", A, compressed=compressed)
    np.save(folder / "feats.npy", X)
    said = {str(vertex): label for vertex, label in enumerate(labels.tolist())}
    (folder / "class_map.json").write_text(json.dumps(said))
    roles = {"tr": list(range(20)), "va": [25, 22], "te": list(range(30, N))}
    (folder / "role.json").write_text(json.dumps(roles))
    return folder


def read(folder):
    return GraphSaint(kind="graphsaint", path=folder.name).open_stream(
        ReadOptions(folder.parent, 0, CLASSES, 0)
    )


def edges(stream, at_once):
    chunks = [chunk for piece in stream.pieces(at_once) for chunk in piece()]
    assert all(len(source) <= at_once for source, _ in chunks)
    return np.concatenate([np.stack(chunk) for chunk in chunks], axis=1)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
@pytest.mark.parametrize(
    ("reader", "labels", "compressed"),
    [(AmazonProducts, SETS, True), (Flickr, np.arange(N) % CLASSES, False)],
)
def test_it_is_what_pyg_reads(tmp_path, monkeypatch, reader, labels, compressed, at_once):
    monkeypatch.setattr(graphsaint, "BLOCK", 64)
    stream = read(written(tmp_path / "raw", labels=labels, compressed=compressed))
    theirs = reader(str(tmp_path))[0]
    np.testing.assert_array_equal(edges(stream, at_once), theirs.edge_index)
    assert (stream.n, stream.entries) == (theirs.num_nodes, theirs.num_edges)
    np.testing.assert_array_equal(stream.y, theirs.y)
    assert stream.y.dtype == (np.int8 if labels.ndim == 2 else np.int64)
    np.testing.assert_allclose(stream.X(), theirs.x, rtol=1e-6)
    masks = (theirs.train_mask, theirs.val_mask, theirs.test_mask)
    for part, mask in zip((TRAIN, VALID, TEST), masks, strict=True):
        np.testing.assert_array_equal(stream.split == part, mask)


def test_a_vertex_may_have_no_labels(tmp_path):
    folder = written(tmp_path / "saint")
    (folder / "class_map.json").write_text(' {"3": [0, 1, 1],\n "7" : [1,0,0] }\n')
    y = read(folder).y
    assert y[[3, 7]].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert (np.delete(y, [3, 7], axis=0) == -1).all()


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("class_map.json", '{"0": [0, 1], "1": [1]}', "vertex 1: .* not of the same kind"),
        ("class_map.json", '{"0": [0, 1], "1": 1}', "vertex 1: .* not of the same kind"),
        ("class_map.json", '{"0": [0, 0.5]}', "does not consist of integers"),
        ("class_map.json", '{"0": [0, 1], "41": [1, 0]}', "has vertex 41"),
        ("class_map.json", '{"0": [0, 1], "1": [1,', "is not a vertex with its classes"),
        ("class_map.json", "<html>quota</html>", "is not a vertex with its classes"),
        ("role.json", '{"tr": [0], "va": []}', "role.json"),
        (
            "role.json",
            '{"tr": [0], "va": [], "te": [41]}',
            "has a test split with ids 41 .. 41, but its vertices are 0 .. 40",
        ),
        ("adj_full.npz", "no archive", "adj_full.npz"),
    ],
)
def test_malformed_graphsaint_file_is_refused(tmp_path, file, text, told):
    folder = written(tmp_path / "saint")
    (folder / file).write_text(text)
    with pytest.raises(UserError, match=told):
        read(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shape": np.array([N, N + 1])}, "Expected n x n"),
        ({"indptr": np.zeros(N + 1, np.int32)}, "do not match"),
        (
            {"indices": np.full(3, N), "indptr": np.array([0, 3, *[3] * (N - 1)])},
            r"edges with ids \d+ .. 41, but its vertices are 0 .. 40",
        ),
    ],
)
def test_invalid_matrix_is_refused(tmp_path, changes, told):
    folder = written(tmp_path / "saint")
    with np.load(folder / "adj_full.npz") as arrays:
        parts = {**arrays, **changes}
    np.savez(folder / "adj_full.npz", **parts)
    with pytest.raises(UserError, match=told):
        read(folder)


def test_features_of_other_vertices_are_refused(tmp_path):
    folder = written(tmp_path / "saint")
    np.save(folder / "feats.npy", X[1:])
    with pytest.raises(UserError, match=r"has the shape \(40, 3\)"):
        read(folder).X()


def test_the_published_ones_are_four_files():
    remotes = GraphSaint(kind="graphsaint", dataset="amazon").list_remote_files()
    assert [remote.file for remote in remotes] == [f"raw/graphsaint/amazon/{file}" for file in FILES]
    assert len({remote.url for remote in remotes}) == 4
