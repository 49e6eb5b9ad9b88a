"""Planetoid's files, pickled here as Python 2 did; a pickle that does anything else is refused by name."""

import codecs
import io
import os
import pickle
import struct
from collections import defaultdict

import numpy as np
import pytest
from scipy import sparse

from harness.base.errors import UserError
from harness.graph.model import NO_LABEL, TEST, TRAIN, VALID
from harness.graph.sources.planetoid import read_pickle, read_planetoid

NEIGHBOURS = {0: [1], 1: [0, 2, 2], 2: [1], 3: [3], 4: [6], 5: [], 6: [4], 7: []}
"""Eight vertices; 5 is in the test range (4 .. 7) and has no row, as happens in Citeseer."""
TEST_INDEX = [7, 4, 6]
KNOWN = sparse.csr_matrix(np.diag([1.0, 2, 3, 4]).astype(np.float32))
TESTED = sparse.csr_matrix(np.array([[7, 0, 0, 7], [4, 0, 0, 4], [6, 0, 0, 6]], dtype=np.float32))


class Python2(pickle._Pickler):
    """Writes bytes as the strings that Python 2 knew, and scipy's and numpy's classes under their old modules."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content):
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)

    dispatch[bytes] = save_bytes


def as_python_2(content):
    buffer = io.BytesIO()
    Python2(buffer, protocol=2).dump(content)
    data = buffer.getvalue()
    for new, old in (
        (b"cnumpy._core.multiarray", b"cnumpy.core.multiarray"),
        (b"scipy.sparse._csr", b"scipy.sparse.csr"),
    ):
        data = data.replace(new, old)
    return data


def as_python_3(content):
    return pickle.dumps(content, protocol=2)


@pytest.fixture(params=[as_python_2, as_python_3])
def folder(tmp_path, request):
    one_hot = np.eye(3, dtype=np.int32)
    graph = defaultdict(list)
    graph.update(NEIGHBOURS)
    parts = {
        "x": KNOWN[:2],
        "y": one_hot[[0, 1]],
        "allx": KNOWN,
        "ally": one_hot[[0, 1, 2, 0]],
        "tx": TESTED,
        "ty": one_hot[[1, 2, 0]],
        "graph": graph,
    }
    for part, content in parts.items():
        (tmp_path / f"ind.toy.{part}").write_bytes(request.param(content))
    (tmp_path / "ind.toy.test.index").write_text("\n".join(map(str, TEST_INDEX)))
    return tmp_path


def test_rows_go_where_test_index_says(folder):
    raw = read_planetoid(folder, "toy")
    assert raw.n == 8
    assert raw.y.tolist() == [0, 1, 2, 0, 2, NO_LABEL, 0, 1]
    assert raw.X[:4].tolist() == KNOWN.toarray().tolist()
    assert raw.X[4:, 0].tolist() == [4, 0, 6, 7]
    assert raw.split.tolist() == [TRAIN, TRAIN, VALID, VALID, TEST, 0, TEST, TEST]


def test_every_neighbour_is_an_edge(folder):
    raw = read_planetoid(folder, "toy")
    expected = [(u, v) for u, neighbours in NEIGHBOURS.items() for v in neighbours]
    assert list(zip(raw.source.tolist(), raw.target.tolist(), strict=True)) == expected


@pytest.mark.parametrize("part", ["allx", "graph", "test.index"])
def test_a_missing_or_truncated_file_is_named(folder, part):
    path = folder / f"ind.toy.{part}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if part != "test.index" else b"7\nfour\n")
    with pytest.raises(UserError, match=part):
        read_planetoid(folder, "toy")
    path.unlink()
    with pytest.raises(UserError, match="does not exist"):
        read_planetoid(folder, "toy")


@pytest.mark.parametrize("ids", [[7, 4], [7, 4, 8], [3, 4, 6], []])
def test_files_that_do_not_belong_together_are_refused(folder, ids):
    (folder / "ind.toy.test.index").write_text("\n".join(map(str, ids)))
    with pytest.raises(UserError, match=r"test\.index"):
        read_planetoid(folder, "toy")


def test_a_neighbour_outside_the_graph_is_refused(folder):
    (folder / "ind.toy.graph").write_bytes(as_python_2({**NEIGHBOURS, 7: [99]}))
    with pytest.raises(UserError, match=r"0 \.\. 99"):
        read_planetoid(folder, "toy")


class Attack:
    def __init__(self, function, *arguments):
        self.how = (function, arguments)

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (Attack(os.system, "touch PROOF"), "system"),
        (Attack(eval, "open('PROOF', 'w')"), "eval"),
        (Attack(getattr, list, "__class__"), "getattr"),
        (defaultdict(os.getcwd), "getcwd"),
        ([Attack(open, "PROOF", "w")], "open"),
        (np.array([Attack(eval, "open('PROOF', 'w')")], dtype=object), "eval"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_anything_but_data_is_refused_by_name(tmp_path, monkeypatch, content, name, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil").write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(UserError, match=f"evil was refused: the pickle refers to .*{name}"):
        read_pickle(tmp_path / "evil")
    assert not (tmp_path / "PROOF").exists()


def test_matrix_with_indices_out_of_range_is_refused(tmp_path):
    matrix = KNOWN.copy()
    matrix.indices[0] = 1 << 20
    (tmp_path / "wild").write_bytes(as_python_2(matrix))
    with pytest.raises(UserError, match="indices"):
        read_pickle(tmp_path / "wild")


@pytest.mark.parametrize(
    "content", [b"", b"not a pickle", b"\x80\x02K\x01K\x02\x85R.", b"\x80\x02cnumpy\ndtype\nK\x01\x85R."]
)
def test_other_bytes_are_refused(tmp_path, content):
    (tmp_path / "odd").write_bytes(content)
    with pytest.raises(UserError, match="odd"):
        read_pickle(tmp_path / "odd")


def test_the_only_encoding_is_latin1(tmp_path):
    (tmp_path / "odd").write_bytes(pickle.dumps(Attack(codecs.encode, "x", "rot13"), protocol=2))
    with pytest.raises(UserError, match="rot13"):
        read_pickle(tmp_path / "odd")
