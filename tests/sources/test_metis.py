"""A graph file of METIS gives each edge from both ends, whatever weights stand between."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as draw

from harness.base.errors import UserError
from harness.graph.sources.metis import Metis
from harness.graph.sources.source import ReadOptions
from harness.graph.sources.stream import collect_graph
from tests.random_matrices import random_matrix


def symmetric(n, seed):
    matrix = random_matrix(n, 0.2, seed)
    return sp.csr_array(
        ((matrix + matrix.T) > 0).astype(int) - sp.diags_array(matrix.diagonal() > 0, dtype=int)
    )


def written(matrix, fmt="", ncon=1, comments=False):
    """As METIS' manual says: sizes and weights of a vertex first, then pairs of neighbour and weight."""
    digits = fmt.zfill(3)
    head = f"{matrix.shape[0]} {matrix.nnz // 2} {fmt}" + (f" {ncon}" if ncon > 1 else "")
    lines = ["% a comment", head] if comments else [head]
    for row in range(matrix.shape[0]):
        before = ["7"] * (digits[0] == "1") + ["5"] * (ncon * (digits[1] == "1"))
        after = [f"{v + 1} 3" if digits[2] == "1" else f"{v + 1}" for v in np.sort(matrix[[row]].indices)]
        lines += ["% between"] * comments + [" ".join(before + after)]
    return "\n".join(lines) + "\n"


def read(folder, text, name="g.graph"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return collect_graph(Metis(kind="metis", path=name).open_stream(ReadOptions(folder, 0, 2, 0)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("metis")


@given(
    n=draw.integers(1, 30),
    seed=draw.integers(0, 999),
    fmt=draw.sampled_from(["", "0", "1", "10", "11", "100", "111"]),
    ncon=draw.integers(1, 3),
    comments=draw.booleans(),
    name=draw.sampled_from(["g.graph", "g.graph.gz"]),
)
def test_the_graph_is_that_of_the_lines(folder, n, seed, fmt, ncon, comments, name):
    matrix = symmetric(n, seed)
    text = written(matrix, fmt, ncon if fmt.zfill(3)[1] == "1" else 1, comments)
    raw = read(folder, text.replace("\n", "\r\n" if comments else "\n"), name)
    found = sp.coo_array((np.ones(len(raw.source), int), (raw.source, raw.target)), (n, n))
    assert (raw.n, len(raw.source)) == (n, matrix.nnz)
    assert (found.toarray() == matrix.toarray()).all()


@pytest.mark.parametrize("at_once", [1, 3, 17])
def test_any_pieces_give_the_same(folder, at_once):
    matrix = symmetric(40, 5)
    (folder / "g.graph").write_text(written(matrix, comments=at_once == 3))
    stream = Metis(kind="metis", path="g.graph").open_stream(ReadOptions(folder, 0, 2, 0))
    parts = [pair for piece in reversed(stream.pieces(at_once)) for pair in piece()]
    assert len(stream.pieces(at_once)) > 1, "workers can share them"
    source, target = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    assert (
        sp.coo_array((np.ones(len(source)), (source, target)), (40, 40)).toarray() == matrix.toarray()
    ).all()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no size line"),
        ("% only this\n", "no size line"),
        ("3\n", "is not a size line"),
        ("0 0\n", "is not a size line"),
        ("a b\n", "is not a size line"),
        ("3 1\n2\n1\n", "lines for only 2 of its 3 vertices"),
        ("2 1\n2\nx\n", "line of vertex 2 is not a list"),
        ("2 1\n2 -1\n1\n", "line of vertex 1 is not a list"),
        ("2 1\n3\n1\n", "neighbours beyond its 2 vertices"),
        ("2 1\n0\n1\n", "neighbours beyond its 2 vertices"),
        ("3 1\n2\n1", "lines for only 2 of its 3 vertices"),
        ("2 1\n2\n1\n1\n", "lines beyond its 2 vertices"),
        ("2 2\n2\n1\n", "lists 2 neighbours"),
        ("2 1 1\n2 5\n1\n", "line of vertex 2 is not a list"),
    ],
)
def test_invalid_graph_is_refused(folder, text, told):
    with pytest.raises(UserError, match=told):
        read(folder, text)
