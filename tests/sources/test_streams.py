"""A source read piece by piece gives the edges that it gives at once, however small the pieces are."""

import gzip
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmread, mmwrite

from harness.base.errors import UserError
from harness.graph.generators.rmat import Rmat
from harness.graph.generators.shapes import CommunityLaw
from harness.graph.sources import ReadOptions
from harness.graph.sources.archive import FileRef
from harness.graph.sources.edge_list import EdgeList
from harness.graph.sources.generated import CommunitiesSource, LatticeSource, RmatSource, SbmSource
from harness.graph.sources.matrix_market import MatrixMarket
from harness.graph.sources.npz import Npz
from harness.graph.sources.stream import count_edges
from harness.graph.sources.text import START, cut_into_pairs
from harness.kernels.random import NUMBA_THRESHOLD
from tests.random_matrices import random_matrix

AT_ONCE = (1, 3, 100)
TEXTS = {
    "tabs": "0\t1\n1\t2\n0\t1\n",
    "commas, no last newline": "0,1\n4,2",
    "weights": "0 1 0.5\n2 3 -1e9\n",
    "comments and blanks": "# a b\n\n0 1\n  # more\n3 2 # why\n\n\n",
    "windows": "0 1\r\n5 2\r\n",
    "percent": "% c\n1 2\n",
    "nothing": "# nothing\n",
}


def edges_of(stream, at_once):
    chunks = [chunk for piece in stream.pieces(at_once) for chunk in piece()]
    return Counter(
        edge for source, target in chunks for edge in zip(source.tolist(), target.tolist(), strict=True)
    )


def by_python(text):
    """The pairs of the lines, as Python splits them."""
    lines = (line.split("#")[0].split("%")[0].replace(",", " ").split() for line in text.splitlines())
    return Counter((int(words[0]), int(words[1])) for words in lines if words)


def check(source, folder, at_once, expected=None):
    """Pieces of any size give the expected edges, which are else those of the whole graph."""
    rest = ReadOptions(folder, seed=3, classes=4, split=0)
    raw, stream = source.read_graph(rest), source.open_stream(rest)
    if expected is None:
        expected = Counter(zip(raw.source.tolist(), raw.target.tolist(), strict=True))
    assert (stream.n, edges_of(stream, at_once)) == (raw.n, expected)
    assert stream.entries >= sum(expected.values())


@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("name", ["g.txt", "g.txt.gz"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_edges_in_text(tmp_path, text, name, at_once):
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    check(EdgeList(kind="edges", path=name, n=9), tmp_path, at_once, by_python(text))


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_a_header_and_a_base(tmp_path, at_once):
    (tmp_path / "g.csv").write_text("# c\nfrom,to\n1,2\n3,1\n")
    check(
        EdgeList(kind="edges", path="g.csv", base=1, header=True),
        tmp_path,
        at_once,
        Counter([(0, 1), (2, 0)]),
    )


@pytest.mark.parametrize(
    "text",
    ["0 1\n2\n", "0 1\nx 2\n", "0 1\n1.5 2\n", "0 1\n-1 2\n", "0 9\n", "0 1\n12345678901234567890 1\n"],
)
def test_a_wrong_line_is_named(tmp_path, text):
    (tmp_path / "g.txt").write_text(text)
    with pytest.raises(UserError, match=rf"g\.txt, line {text.count(chr(10))}: "):
        EdgeList(kind="edges", path="g.txt", n=9).open_stream(ReadOptions(tmp_path, 0, 1, 0))


@given(
    st.lists(
        st.tuples(st.integers(0, 10**17), st.integers(0, 10**17), st.sampled_from([" ", "\t", ",", " , "])),
        max_size=40,
    ),
    st.integers(1, 20),
)
def test_pairs_are_those_of_the_lines(tmp_path_factory, pairs, at_once):
    path = tmp_path_factory.mktemp("text") / "pairs"
    path.write_text("".join(f"{a}{separator}{b}\n" for a, b, separator in pairs))
    pieces = cut_into_pairs(FileRef(path), at_once, START, ValueError)
    found = [
        pair for piece in pieces for first, second in piece() for pair in zip(first, second, strict=True)
    ]
    assert found == [(a, b) for a, b, _ in pairs]
    assert count_edges(pieces).edges == len(pairs)


@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("name", ["g.mtx", "g.mtx.gz"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["pattern", "real"])
def test_matrices_in_text(tmp_path, name, symmetry, field, at_once):
    M = random_matrix(23, 0.1, 1)
    M = {"general": M, "symmetric": M + M.T, "skew-symmetric": M - M.T}[symmetry].tocoo()
    if field == "pattern":
        symmetry = symmetry.removeprefix("skew-")
    plain = tmp_path / "plain.mtx"
    mmwrite(plain, abs(M) if field == "pattern" else M, field=field, symmetry=symmetry)
    (tmp_path / name).write_bytes(
        gzip.compress(plain.read_bytes()) if name.endswith(".gz") else plain.read_bytes()
    )
    row, col = mmread(plain).nonzero()
    expected = Counter(zip(row.tolist(), col.tolist(), strict=True))
    check(MatrixMarket(kind="mtx", path=name), tmp_path, at_once, expected)


@pytest.mark.parametrize("at_once", [5, 1000])
@pytest.mark.parametrize(
    "source",
    [
        RmatSource(kind="rmat", scale=7, edge_factor=4),
        SbmSource(kind="sbm", n=90, mean_degree=5, homophily=0.5),
        CommunitiesSource(kind="communities", n=500, edges=2000, law=CommunityLaw(across=0.1, growth=1)),
        LatticeSource(kind="lattice", height=9, width=7),
        LatticeSource(kind="lattice", height=9, width=7, connected=False),
    ],
    ids=lambda source: source.kind,
)
def test_drawn_edges_are_the_same_in_blocks_and_at_once(tmp_path, source, at_once):
    check(source, tmp_path, at_once)


def test_arrays(tmp_path):
    sparse.save_npz(tmp_path / "g.npz", random_matrix(9, 0.3, 1))
    check(Npz(kind="npz", path="g.npz"), tmp_path, at_once=4)


def test_the_compiled_descent_draws_what_tensors_draw():
    rmat = Rmat(11, 300, seed=5, a=0.45, b=0.25, c=0.15)
    draws = range(17, 17 + NUMBA_THRESHOLD // rmat.scale + 1)
    for mine, theirs in zip(rmat.edges_by_loop(draws), rmat.edges_by_tensors(draws), strict=True):
        assert mine.tolist() == theirs.tolist()
