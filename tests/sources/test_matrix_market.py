"""Matrix Market files read as scipy writes them; wrong ones are refused by file and line."""

import gzip

import numpy as np
import pytest
from scipy import sparse
from scipy.io import mmwrite

from harness.base.errors import UserError
from harness.graph.sources import ReadOptions
from harness.graph.sources.matrix_market import MatrixMarket

HEADER = "%%MatrixMarket matrix coordinate"


def written(tmp_path, text, name="g.mtx"):
    path = tmp_path / name
    path.write_text(text)
    return path


def read_matrix_market(path):
    return MatrixMarket(kind="mtx", path=path.name).read_graph(ReadOptions(path.parent, 0, 1, 0))


def pairs(raw):
    return sorted(zip(raw.source.tolist(), raw.target.tolist(), strict=True))


KINDS = [(f, s) for f in ("real", "integer", "pattern") for s in ("general", "symmetric", "skew-symmetric")]
KINDS.remove(("pattern", "skew-symmetric"))  # a pattern has no signs


@pytest.mark.parametrize(("field", "symmetry"), KINDS)
def test_reads_what_scipy_writes(tmp_path, field, symmetry):
    M = np.triu(np.random.default_rng(0).integers(0, 3, (9, 9)), 1).astype(float)
    M = {"general": M, "symmetric": M + M.T + np.eye(9), "skew-symmetric": M - M.T}[symmetry]
    M = sparse.coo_array(M if field == "real" else M.astype(int))
    mmwrite(tmp_path / "g.mtx", M, field=field, symmetry=symmetry)
    raw = read_matrix_market(tmp_path / "g.mtx")
    assert raw.n == 9
    assert pairs(raw) == sorted(zip(*(ends.tolist() for ends in M.nonzero()), strict=True))


def test_symmetric_entries_are_expanded_and_the_diagonal_is_not(tmp_path):
    raw = read_matrix_market(
        written(tmp_path, f"{HEADER} pattern symmetric\n% comment\n4 4 3\n2 1\n3 3\n4 1\n")
    )
    assert raw.n == 4
    assert pairs(raw) == [(0, 1), (0, 3), (1, 0), (2, 2), (3, 0)]


def test_stored_zeros_and_duplicates_are_entries(tmp_path):
    raw = read_matrix_market(written(tmp_path, f"{HEADER} real general\n2 2 3\n1 2 0\n1 2 5\n2 1 1\n"))
    assert pairs(raw) == [(0, 1), (0, 1), (1, 0)]


def test_the_size_line_counts_vertices_without_entries(tmp_path):
    assert read_matrix_market(written(tmp_path, f"{HEADER} pattern general\n9 9 1\n1 2\n")).n == 9
    assert read_matrix_market(written(tmp_path, f"{HEADER} pattern general\n9 9 0\n")).n == 9


def test_gzipped(tmp_path):
    path = tmp_path / "g.mtx.gz"
    path.write_bytes(gzip.compress(f"{HEADER} pattern general\n3 3 1\n3 1\n".encode()))
    assert pairs(read_matrix_market(path)) == [(2, 0)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "line 1"),
        ("hello\n", "line 1"),
        (f"{HEADER} pattern general\n3 3 2\n1 2\n", "has 1 entries"),
        (f"{HEADER} pattern general\n3 3 1\n1 2\n2 1\n", "has 2 entries"),
        (f"{HEADER} pattern general\n3 3 2\n1 2\n4 1\n", "line 4"),
        (f"{HEADER} pattern general\n3 3 2\n1 2\n0 1\n", "line 4"),
        (f"{HEADER} pattern general\n3 3 2\n1 2\n1 x\n", "line 4"),
        (f"{HEADER} pattern general\n3 4 1\n1 2\n", "3 x 4"),
        (f"{HEADER} pattern general\n0 0 0\n", "0 x 0"),
        ("%%MatrixMarket matrix array real general\n1 1\n1\n", "'array'"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, found):
    path = written(tmp_path, text)
    with pytest.raises(UserError) as error:
        read_matrix_market(path)
    assert str(path) in str(error.value)
    assert found in str(error.value)
    assert "Expected" in str(error.value)


def test_a_truncated_archive_is_refused(tmp_path):
    path = tmp_path / "g.mtx.gz"
    path.write_bytes(gzip.compress(f"{HEADER} pattern general\n3 3 1\n3 1\n".encode())[:-9])
    with pytest.raises(UserError, match=r"g\.mtx\.gz cannot be read"):
        read_matrix_market(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.mtx does not exist"):
        read_matrix_market(tmp_path / "none.mtx")
