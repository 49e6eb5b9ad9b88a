"""The store reads only what it needs, and refuses whatever is not what was written."""

import errno
import json
import os

import numpy as np
import pytest
import torch

from harness.base.errors import RunError, UserError
from harness.base.ranges import split_range
from harness.graph.model import Graph, RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.store.manifest import MANIFEST_FILE, SCHEMA, StoreFiles
from harness.graph.store.reader import Store
from harness.spec.dataset import DatasetChoice

PLAIN = DatasetChoice(name="toy")
DOUBLE = DatasetChoice(name="toy", permutation="double", seed=3)
DEGREES = 2
"""Files, of the rows and of the columns."""
AGAIN = "harness data build toy --permutation double --seed 3"


@pytest.fixture
def folder(tmp_path, make_graph, write_graph):
    write_graph(make_graph(directed=True), tmp_path / "toy-1", DOUBLE, grid=4)
    return tmp_path / "toy-1"


def overlapping(part, n, blocks):
    return sum(bool(set(part) & set(block)) for block in split_range(n, blocks))


@pytest.mark.parametrize(
    "rows", [range(53), range(14), range(13, 15), range(14, 28), range(52, 53), range(0)]
)
@pytest.mark.parametrize("cols", [range(53), range(40, 42), range(5, 5)])
def test_a_rectangle_opens_the_blocks_that_hold_a_part_of_it(folder, rows, cols):
    store = Store(folder)
    store.adjacency(rows, cols)
    blocks = overlapping(rows, 53, 4) * overlapping(cols, 53, 4)
    assert store.opened_files == 2 * blocks + DEGREES
    store.adjacency(rows, cols)
    assert store.opened_files == 2 * blocks + DEGREES


def test_features_are_cut_both_ways(tmp_path, make_graph, write_graph):
    wide = {"features": {"kind": "uniform", "width": 128}}
    write_graph(make_graph(**wide), tmp_path / "s", PLAIN, grid=4)
    store = Store(tmp_path / "s")
    store.feature_block(range(14), range(32))
    assert store.opened_files == 1
    store.feature_block(range(53), range(31, 33))
    assert store.opened_files == 8


@pytest.mark.parametrize(("directed", "versions"), [(False, 1), (True, 2)])
def test_a_symmetric_graph_is_stored_once(tmp_path, make_graph, write_graph, directed, versions):
    write_graph(make_graph(directed=directed), tmp_path / "s", DOUBLE, grid=2)
    assert len(list((tmp_path / "s" / "adjacency").iterdir())) == versions


BLOCK = "adjacency/0/1-2.col.npy"


def test_an_altered_block_is_refused_where_it_is_used(folder):
    path = folder / BLOCK
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    Store(folder).adjacency(range(14), range(53))
    for read in (lambda store: store.adjacency(range(53), range(53)), lambda store: store.files.verify()):
        with pytest.raises(UserError, match=f"{path}.*{AGAIN}"):
            read(Store(folder))


def test_without_checksums_a_size_is_still_held_against_the_manifest(folder):
    path = folder / BLOCK
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=str(path)):
        Store(folder, checksums=False).adjacency(range(53), range(53))


def test_a_missing_block_is_named(folder):
    (folder / BLOCK).unlink()
    with pytest.raises(UserError, match=f"{folder / BLOCK}.*{AGAIN}"):
        Store(folder).adjacency(range(53), range(53))


def test_too_many_open_files_are_not_the_fault_of_the_store(folder, monkeypatch):
    def refuse(path, _):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr("harness.graph.store.reader.map_array", refuse)
    with pytest.raises(RunError, match=r"\.npy: .*ulimit -n") as error:
        Store(folder).adjacency(range(53), range(53))
    assert AGAIN not in str(error.value)


def test_verify_passes_on_a_sound_store_and_finds_every_kind_of_file(folder):
    StoreFiles(folder).verify()
    for path in sorted(folder.rglob("*.npy")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(UserError, match=path.name):
            StoreFiles(folder).verify()
        path.write_bytes(content)
    StoreFiles(folder).verify()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ""),
        ("{", ""),
        ("[]", "None"),
        (f'{{"schema_version": {SCHEMA}}}', "name"),
        ('{"schema_version": 3}', f"version 3.*{SCHEMA}"),
    ],
)
def test_a_wrong_manifest_is_refused(folder, text, found):
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(UserError, match=rf"{MANIFEST_FILE}.*{found}.*harness data build toy"):
        Store(folder)


def test_another_schema_version_names_the_command_that_makes_it_right(folder):
    fields = json.loads((folder / MANIFEST_FILE).read_text()) | {"schema_version": SCHEMA + 1}
    (folder / MANIFEST_FILE).write_text(json.dumps(fields))
    with pytest.raises(UserError, match=AGAIN):
        Store(folder)


def test_a_folder_without_a_manifest_is_no_store(tmp_path):
    (tmp_path / "toy-1").mkdir()
    with pytest.raises(UserError, match=r"toy-1.*harness data build toy"):
        Store(tmp_path / "toy-1")


@pytest.mark.slow
def test_vertices_above_two_to_the_24_keep_their_names(tmp_path, write_graph):
    """There a float32 no longer tells neighbours apart, and one published loader held ids in one."""
    n = (1 << 24) + 1000
    ends = np.array([n - 1, n - 2, n - 3, n - 4, 5, (1 << 24) + 1])
    A, counts = normalise_adjacency(RawGraph(n, ends[:3].copy(), ends[3:].copy()), directed=False)
    nothing = torch.zeros(n, dtype=torch.int64)
    graph = Graph(A, torch.zeros(n, 1), nothing, (nothing + 1).to(torch.uint8), 1, False, counts)
    write_graph(graph, tmp_path / "wide", PLAIN, grid=3)
    far = Store(tmp_path / "wide").adjacency(range(1 << 24, n), range(n))
    entries = {
        (row + (1 << 24), int(col))
        for row in range(far.rows)
        for col in far.col[far.rowptr[row] : far.rowptr[row + 1]]
    }
    loops = {(v, v) for v in range(1 << 24, n)}
    edges = {(n - 1, n - 4), (n - 4, n - 1), (n - 2, 5), (n - 3, (1 << 24) + 1), ((1 << 24) + 1, n - 3)}
    assert entries == loops | edges
