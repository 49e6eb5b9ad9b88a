"""A refused import names the file, the line or the vertex, the value and the option, and leaves nothing behind."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow.parquet import write_table
from torch_geometric.data import Data

from tests.untrusted.command import EDGES, N, array, bring

FEATURES = np.ones((N, 2))
LABELS = np.arange(N) % 3
PEOPLE = ("people.csv", b"ann,bob\nbob,cid\ncid,ann\n")
ENDS = {"edge_index": torch.tensor([[0], [1]]), "num_nodes": 2}


def changed(sound: np.ndarray, place: Any, value: Any) -> tuple[str, bytes]:
    """The .npy file of an array with another value at one place."""
    copied = sound.copy()
    copied[place] = value
    return "wrong.npy", array(copied)


def parquet(**columns: list[Any]) -> tuple[str, bytes]:
    """The parquet file of an edge list."""
    file = io.BytesIO()
    write_table(pa.table(columns), file)
    return "edges.parquet", file.getvalue()


def saved(data: Data) -> tuple[str, bytes]:
    """The file of a graph of PyTorch Geometric."""
    file = io.BytesIO()
    torch.save(data, file)
    return "edges.pt", file.getvalue()


def text(lines: bytes, name: str = "edges.txt") -> dict[str, tuple[str, bytes]]:
    return {"edges": (name, lines)}


LYING = b"%%MatrixMarket matrix coordinate pattern general\n1000000000000 1000000000000 1\n1 2\n"
"""A header of more vertices than any memory has room for."""
NUMBERS, NULLS = parquet(a=[0, 5], b=[1, 2]), parquet(a=[1, None], b=[2, 3])
OF_FILES = [
    ({"features": changed(FEATURES, (4, 1), np.nan)}, "", ["--features", "row 5", "column 2", "nan"]),
    ({"features": changed(FEATURES, (0, 0), -np.inf)}, "", ["row 1", "vertex 0", "column 1", "-inf"]),
    ({"features": changed(FEATURES, (5, 0), 1e39)}, "", ["row 6", "vertex 5", "column 1", "float32"]),
    ({"labels": changed(LABELS, 3, 1 << 40)}, "", ["--labels", "vertex 3", "1099511627776"]),
    ({"labels": changed(LABELS, 2, -2)}, "", ["--labels", "vertex 2", "-2"]),
    ({"labels": changed(LABELS, 2, 2)}, "--classes 2", ["vertex 2", "label 2", "0 .. 1"]),
    ({"labels": ("wrong.npy", array(LABELS + 0.5))}, "", ["vertex 0", "0.5"]),
    ({"labels": ("pairs.txt", b"3 1\n3 2\n0 4\n")}, "", ["--labels", "node,label"]),
    ({"labels": ("few.csv", b"a\nb\n")}, "", ["--labels", "2 rows", "6 vertices"]),
    ({"labels": ("empty.csv", b"")}, "", ["empty.csv"]),
    ({"split": ("wrong.npy", array(np.eye(N, 3) + [[1, 0, 0]] > 0))}, "", ["--split", "vertex 1", "masks"]),
    ({"split": changed(LABELS, 1, 4)}, "", ["--split", "vertex 1", "4 is out of range"]),
    ({}, "--labels no.npy", ["no.npy", "one vertex per line"]),
    ({}, "--classes 0", ["--classes 0"]),
    ({}, "--memory 1e-9", ["--memory 1e-9", "0.015625"]),
    ({}, "--memory nan", ["--memory nan"]),
    ({}, "--vertices 0", ["--vertices 0"]),
    ({}, "--vertices 3", ["line 3", "0 .. 2", "--vertices"]),
    (text(b"", "edges.xls"), "", [".mtx", ".parquet"]),
    ({"edges": ("lying.mtx", LYING)}, "", ["1,000,000,000,000 vertices", "memory"]),
    ({"edges": parquet(a=["x"], b=["y"])}, "", ["integer columns"]),
    ({"edges": ("torn.parquet", NUMBERS[1][:-60])}, "", ["torn.parquet"]),
    ({"edges": NULLS}, "", ["null"]),
    ({"edges": NUMBERS}, "--vertices 3", ["0 .. 5", "0 .. 2", "--vertices"]),
]
OF_NAMES = [
    ({"edges": PEOPLE, "labels": ("y.csv", b"ann,2\nnobody,1\n")}, "", ["nobody"]),
    ({"edges": PEOPLE, "labels": ("y.csv", b"ann,2\nann,1\n")}, "", ["2 lines", "ann"]),
    ({"edges": PEOPLE, "labels": ("y.csv", b"ann\n")}, "", ["no number"]),
    ({"edges": PEOPLE, "labels": ("y.csv", b"ann,2\nbob,old\n")}, "", ["'2'"]),
    ({"edges": PEOPLE, "labels": ("y.csv", b"bob,1\nann,0.5\n")}, "", ["ann", "0.5"]),
    ({"edges": PEOPLE, "labels": ("y.csv", b"bob,1\nann,-3\n")}, "", ["ann", "-3"]),
    ({"edges": PEOPLE, "split": ("y.csv", b"bob,1\nann,7\n")}, "", ["ann", "7"]),
    ({"edges": PEOPLE, "features": ("x.csv", b"ann,0.5\n")}, "", ["bob"]),
    ({"edges": PEOPLE, "features": ("x.csv", b"ann,old\n")}, "", ["numbers"]),
    ({"edges": PEOPLE}, "--vertices 9", ["names"]),
    ({"edges": ("edges.mtx", EDGES["edges.mtx"])}, "", ["--names"]),
    ({"edges": NUMBERS}, "", ["text columns"]),
    (text(b"# nothing\n"), "", ["edges.txt"]),
    (text(b"a,b\n# nothing\nc\n", "edges.csv"), "", ["line 3", "'c'", "'a,b'"]),
    (text(b"from,to,calls\nann,bob,2\n", "edges.csv"), "", ["line 1", "from,to,calls", "--header"]),
    (text(b"a,b,calls\na,b,2\n", "edges.csv"), "--weights raw", ["line 1", "a,b,calls", "--header"]),
    (text(b"a,b,n\na,b,2\nc,d,x\n", "edges.csv"), "--weights raw --header", ["line 3", "c,d,x"]),
    (text(b"a,b\nc,d\n", "edges.csv"), "--weights raw", ["line 1", "a,b"]),
    (text(b"zoe,99,1\n99,zoe,2\n", "edges.csv"), "--weights raw", ["zoe", "99", "--directed"]),
]
OF_WEIGHTS = [
    (text(b"0 1 2\n1 2 nan\n"), "normalised", ["edge 2", "from 1 to 2", "nan"]),
    (text(b"0 1 2\n1 2 inf\n"), "raw", ["inf"]),
    (text(b"0 1 1e39\n"), "raw", ["1e+39", "3.4e38"]),
    (text(b"0 1 1e-320\n"), "normalised", ["2.3e-308"]),
    (text(b"0 1 -1\n"), "normalised", ["-1", "--weights raw"]),
    (text(b"0 1 1\n1 2\n"), "normalised", ["line 2", "'1 2'"]),
    (text(b"0 1 heavy\n"), "normalised", ["line 1", "'0 1 heavy'"]),
    (text(b"0 1 1\n1 0 2\n"), "normalised", ["vertex 1 to vertex 0", "weight 2", "--directed"]),
    (text(b"0 1 3e38\n0 1 3e38\n"), "raw", ["3.4e+38"]),
    (text(EDGES["edges.mtx"], "edges.mtx"), "raw", ["weights", "pattern"]),
    (text(EDGES["edges.graph"], "edges.graph"), "raw", ["weights"]),
    ({"edges": saved(Data(**ENDS))}, "raw", ["edge_weight", "edge_attr"]),
    ({"edges": saved(Data(**ENDS, edge_attr=torch.ones(1, 3)))}, "raw", ["(1, 3)"]),
]
ROWS = [
    *OF_FILES,
    *((files, f"--names {more}", said) for files, more, said in OF_NAMES),
    *((files, f"--weights {more}", said) for files, more, said in OF_WEIGHTS),
]


@pytest.mark.parametrize(("files", "more", "said"), ROWS)
def test_a_refused_import_names_what_was_typed_and_where_it_is_wrong(
    project: Path, files: dict[str, tuple[str, bytes]], more: str, said: list[str]
) -> None:
    got = bring(project, text(EDGES["edges.txt"]) | files, *more.split())
    assert got.code == 2
    assert all(word in got.err for word in said), got.err
