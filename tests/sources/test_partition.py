"""Partitions that users bring, as METIS, PaToH and KaHyPar write them; whatever else a file holds is refused."""

import pytest

from harness.base.errors import UserError
from harness.graph.partitions.file import read_partition_file


@pytest.mark.parametrize("text", ["0\n2\n1\n", "0\n2\n1", "0\r\n2\r\n1\r\n", " 0\n 2\n 1\n"])
def test_a_part_number_a_line(tmp_path, text):
    (tmp_path / "p").write_bytes(text.encode())
    assert read_partition_file(tmp_path / "p", 3, 3).tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\n1\n", "holds 2 lines, but the graph has 3 vertices: it is a partition of another graph"),
        ("0\n1\n2\n0\n", "holds 4 lines, but the graph has 3 vertices"),
        ("", "holds 0 lines, but the graph has 3 vertices"),
        ("0\n3\n1\n", "line 2: 3 is not one of the parts 0 .. 2"),
        ("0\n1\n-1\n", "line 3: -1 is not one of the parts 0 .. 2"),
        ("0\none\n2\n", "line 2 is 'one'"),
        ("0\n1.5\n2\n", "line 2 is '1.5'"),
        ("0\n\n2\n", "line 2 is ''"),
        ("0 1\n1 1\n2 1\n", "line 1 is '0 1'"),
        ("0,1\n1,1\n2,1\n", "2 numbers per line"),
        ("0\n99999999999999999999\n2\n", "line 2 is '99999999999999999999'"),
    ],
)
def test_partition_of_another_graph_is_refused(tmp_path, text, said):
    (tmp_path / "mine.part.3").write_text(text)
    with pytest.raises(UserError) as refusal:
        read_partition_file(tmp_path / "mine.part.3", 3, 3)
    assert str(tmp_path / "mine.part.3") in str(refusal.value)
    assert said in str(refusal.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(UserError, match=f"{path} is not a file.*one part number per line"):
            read_partition_file(path, 3, 3)
