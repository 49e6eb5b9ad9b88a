"""Numbers per vertex, from .npy and from text."""

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.graph.sources.label_files import read_label_sets, read_labels
from harness.graph.sources.vertex_files import read_table

TABLE = np.array([[1.0, 2.5], [3.0, 4.0], [5.0, -1.0]])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "1,2.5\n3,4\n5,-1\n"),
        ("t.txt", "# c\n1 2.5\n3 4\n5 -1\n"),
        ("t.csv", "height,weight\n1,2.5\n3,4\n5,-1\n"),
        ("t.tsv", "# c\nx\ty\n1\t2.5\n3\t4\n5\t-1\n"),
    ],
)
def test_text(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    np.testing.assert_array_equal(read_table(tmp_path / name, 3), TABLE)


def test_npy(tmp_path):
    np.save(tmp_path / "t.npy", TABLE)
    np.testing.assert_array_equal(read_table(tmp_path / "t.npy", 3), TABLE)


def test_a_column_of_floats_may_be_labels_with_gaps(tmp_path):
    np.save(tmp_path / "y.npy", np.array([[2.0], [np.nan], [0.0]]))
    assert read_labels(tmp_path / "y.npy", 3).tolist() == [2, -1, 0]


@pytest.mark.parametrize(
    ("array", "n", "found"),
    [
        (np.zeros(4), 3, "there are 3 vertices"),
        (np.zeros((3, 2)), 3, "2 columns"),
        (np.array([0.0, 0.5, 1.0]), 3, "vertex 1: 0.5 is not an integer"),
        (np.zeros((3, 1, 1)), 3, "shape"),
    ],
)
def test_wrong_columns_are_refused(tmp_path, array, n, found):
    np.save(tmp_path / "y.npy", array)
    with pytest.raises(UserError) as error:
        read_labels(tmp_path / "y.npy", n)
    assert "y.npy" in str(error.value)
    assert found in str(error.value)


@pytest.mark.parametrize("text", ["true false\n" * 3, "NA nan\n1 0\n0 1\n"])
def test_a_line_of_flags_or_of_gaps_names_no_column(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    assert len(read_table(tmp_path / "t.txt", 3)) == 3


@pytest.mark.parametrize("text", ["", "1 2\n3\n4 5 6\n", "a b\nc d\n1 2\n", "a\n1 2\n3 4\n5 6\n", "a b\n"])
def test_wrong_text_is_refused(tmp_path, text):
    (tmp_path / "t.txt").write_text(text)
    with pytest.raises(UserError, match=r"t\.txt"):
        read_table(tmp_path / "t.txt", 3)


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "y.npy", np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"y\.npy"):
        read_table(tmp_path / "y.npy", 1)


def test_sets_of_classes_may_have_gaps(tmp_path):
    np.save(tmp_path / "y.npy", np.array([[1.0, 0.0], [np.nan, np.nan]]))
    found = read_label_sets(tmp_path / "y.npy", 2)
    assert found.tolist() == [[1, 0], [-1, -1]]
    assert found.dtype == np.int8


def test_half_a_class_is_refused(tmp_path):
    np.save(tmp_path / "y.npy", np.array([[1.0, 0.0], [0.0, 0.5]]))
    with pytest.raises(UserError, match="vertex 1: multi-label rows hold 0 and 1, or -1"):
        read_label_sets(tmp_path / "y.npy", 2)
