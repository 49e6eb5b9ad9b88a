"""Labels and splits from files: as numbers or words, in the order of the vertices or with their ids."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.graph.sources import label_files
from harness.graph.sources.label_files import (
    infer_classes,
    read_class_names,
    read_label_sets,
    read_labels,
    read_split,
)

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write_file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("y.csv", "dog\ncat\nNaN\nÜnit 7\ncat\n"),
        ("y.csv", "label\n dog\ncat \n-1\nÜnit 7\ncat\n"),
        ("y.tsv", "# made by hand\ndog\ncat\nnan\nÜnit 7\ncat\n"),
        ("y.csv", "node,label\n4,cat\n1,cat\n3,Ünit 7\n0,dog\n"),
        ("y.csv", "0,dog\n3,Ünit 7\n1,cat\n2,\n4,cat\n"),
        ("y.tsv.gz", "Vertex_ID\tClass\n3\tÜnit 7\n0\tdog\n1\tcat\n4\tcat\n"),
    ],
)
def test_words_are_classes_in_sorted_order(write: Write, name: str, text: str) -> None:
    path = write(name, text)
    assert read_labels(path, 5).tolist() == [1, 0, -1, 2, 0]
    assert infer_classes(path) == ("single-label", 3)
    assert read_class_names(path) == ["cat", "dog", "Ünit 7"]


def test_words_may_be_an_array_of_text(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([["dog"], ["cat"], [""], ["dog"]]))
    assert read_labels(tmp_path / "y.npy", 4).tolist() == [1, 0, -1, 1]
    assert read_class_names(tmp_path / "y.npy") == ["cat", "dog"]


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("node,label\n3,0\n0,1\n", 0),
        ("id,y\n4,0\n1,1\n", 1),
        ("3,0\n0,1\n", 0),
        ("user,club\n3,0\n0,1\n", 0),
    ],
)
def test_pairs_are_labels_of_the_vertices_they_name(write: Write, text: str, base: int) -> None:
    path = write("y.csv", text)
    assert read_labels(path, 5, base=base).tolist() == [1, -1, -1, 0, -1]
    assert infer_classes(path) == ("single-label", 2)


@pytest.mark.parametrize(
    "text", ["0,1\n1,0\n1,1\n", "sports,politics\n0,1\n1,0\n1,1\n", "node,a,b\n2,1,1\n0,0,1\n1,1,0\n"]
)
def test_columns_of_flags_are_sets_of_classes(write: Write, text: str) -> None:
    path = write("y.csv", text)
    assert read_label_sets(path, 3).tolist() == [[0, 1], [1, 0], [1, 1]]
    assert infer_classes(path) == ("multi-label", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1\n1,0\n", r"could be pairs or sets of classes\. Name the columns in the first line: node,label"),
        ("3,5\n3,6\n4,1\n", r"hold neither ids with labels nor only 0 and 1\. Name the columns"),
        ("cat\n7\ndog\n", "has both words and numbers: '7' is a number"),
        ("node,label\n0,cat\n1,7\n", "has both words and numbers: '7' is a number"),
        ("node,label\nzoe,cat\n", "row 1: the first of the columns is not an integer"),
        ("node,label\n0.5,3\n", "row 1: the first of the columns is not an integer"),
        ("node,label\n1,cat\n1,dog\n", "has 2 lines for the vertex 1"),
        ("node,label\n9,cat\n", r"has rows with ids 9 \.\. 9, but its vertices are 0 \.\. 4"),
        ("node,label\n-1,2\n", r"has rows with ids -1 \.\. -1"),
        ("cat\ndog\n", "has 2 rows, but there are 5 vertices"),
        (
            "kind\ncat\ndog\ncat\ndog\ncat\n",
            r"has 6 rows.* If the first line names the column, call it 'label'",
        ),
        ("c\0at\ndog\n" * 3, r"the word .c.x00at. has a control character"),
        ("node,label,when\n0,cat,3\n", r"y\.csv, row 1: 'cat' is not a number"),
        ("1\n" * 1200 + "cat\n", "has both words and numbers: '1' is a number"),
        ("", "cannot be read"),
        ("node,label\n0,0.5\n", "vertex 0: 0.5 is not an integer"),
    ],
)
def test_file_that_is_not_labels_is_refused(write: Write, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_labels(write("y.csv", text), 5)


def test_tabs_separate_the_columns_of_tsv(write: Write) -> None:
    assert read_labels(write("z.tsv", "node\tlabel\n1\t5\n"), 2).tolist() == [-1, 5]
    assert read_label_sets(write("y.txt", "a b c\n1 0 1\n0 1 0\n"), 2).tolist() == [[1, 0, 1], [0, 1, 0]]
    with pytest.raises(UserError, match=r"'0 1 0' is a number.* tabs between those of \.tsv"):
        read_labels(write("y.tsv", "1 0 1\n0 1 0\n"), 2)


def test_first_line_may_precede_a_missing_label(write: Write) -> None:
    assert read_labels(write("y.csv", "dog\nNA\n-1\ncat\n"), 4).tolist() == [1, -1, -1, 0]


def test_more_words_than_classes_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_files, "CLASSES", 3)
    with pytest.raises(UserError, match="more than 3 different labels"):
        read_labels(write("y.csv", "a\nb\nc\nd\n"), 4)


@pytest.mark.parametrize(
    "text",
    [
        "train\nnone\nTest\nvalidation\n",
        "split\ntrain\nNaN\ntest\nval\n",
        "node,split\n3,valid\n0,train\n2,test\n",
        "node,split\n3,2\n0,1\n2,3\n",
        "id,train,valid,test\n3,0,1,0\n0,1,0,0\n2,0,0,1\n",
    ],
)
def test_split_may_have_words_and_ids(write: Write, text: str) -> None:
    assert read_split(write("split.csv", text), 4).tolist() == [1, 0, 3, 2]


def test_unknown_part_of_a_split_is_refused(write: Write) -> None:
    with pytest.raises(UserError, match=r"'dev' is not a part of a split\. Expected train, valid, test"):
        read_split(write("split.csv", "train\ndev\n"), 2)
