"""Edge lists in all published formats are read, and errors name the wrong line."""

import gzip

import pytest

from harness.base.errors import UserError
from harness.graph.sources import ReadOptions
from harness.graph.sources.edge_list import EdgeList

EDGES = [(0, 1), (1, 2), (4, 0)]


def written(tmp_path, text, name="g.txt"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read_edge_list(path, **options):
    return EdgeList(kind="edges", path=path.name, **options).read_graph(ReadOptions(path.parent, 0, 1, 0))


def pairs(raw):
    return list(zip(raw.source.tolist(), raw.target.tolist(), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n1 2\n4 0\n",
        "0\t1\n1\t2\n4\t0",
        "0,1\n1,2\n4,0\n",
        "0, 1\n1, 2\n4, 0\n",
        "# FromNodeId ToNodeId\n# Nodes: 5\n0 1\n\n1 2 # two\n4 0\n",
        "% konect\n0 1\n1 2\n4 0\n",
        "0 1 0.5\n1 2 0.25\n4 0 1e-3\n",
        "  0   1\r\n  1   2\r\n  4   0\r\n",
        "0,1,7\n1,2,8\n4,0,9\n",
    ],
)
@pytest.mark.parametrize("name", ["g.txt", "g.txt.gz"])
def test_spellings(tmp_path, text, name):
    raw = read_edge_list(written(tmp_path, text, name))
    assert raw.n == 5
    assert pairs(raw) == EDGES


def test_n_counts_vertices_after_the_last_edge(tmp_path):
    path = written(tmp_path, "0 1\n")
    assert read_edge_list(path).n == 2
    assert read_edge_list(path, n=9).n == 9


def test_ids_from_one(tmp_path):
    raw = read_edge_list(written(tmp_path, "1 2\n2 3\n5 1\n"), base=1)
    assert (raw.n, pairs(raw)) == (5, EDGES)


def test_a_header_is_left_out(tmp_path):
    raw = read_edge_list(written(tmp_path, "# c\nid_1,id_2\n0,1\n1,2\n4,0\n"), header=True)
    assert pairs(raw) == EDGES


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_no_edges(tmp_path, text):
    path = written(tmp_path, text)
    assert pairs(read_edge_list(path, n=3)) == []
    with pytest.raises(UserError, match="has no edges"):
        read_edge_list(path)


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        ("0 1\n1 x\n", {}, "line 2: '1 x'"),
        ("0 1\n\n# c\n1\n", {}, "line 4: '1'"),
        ("0 1\n1 2.5\n", {}, "line 2"),
        ("from,to\n0,1\n", {}, "header: true"),
        ("alpha beta 1.0\n", {}, "line 1"),
        ("0 1\n1 7\n", {"n": 5}, "line 2: the id 7 is not in 0 .. 4"),
        ("0 1\n-1 2\n", {}, "line 2: the id -1"),
        ("1 2\n0 1\n", {"base": 1}, "line 2: the id 0"),
        ("0 1\n99999999999999999999 1\n", {}, "line 2"),
    ],
)
def test_wrong_lines_are_refused(tmp_path, text, options, found):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_edge_list(path, **options)
    assert str(path) in str(error.value)
    assert found in str(error.value)


def test_a_truncated_archive_is_refused(tmp_path):
    path = tmp_path / "g.txt.gz"
    path.write_bytes(gzip.compress(b"0 1\n" * 1000)[:-9])
    with pytest.raises(UserError, match=r"g\.txt\.gz"):
        read_edge_list(path)


def test_binary_files_are_refused(tmp_path):
    path = tmp_path / "g.txt"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match=r"g\.txt"):
        read_edge_list(path)
