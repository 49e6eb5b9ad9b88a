"""What the manifest says of a partition is what is counted in the whole matrix, however it is cut into blocks."""

import numpy as np
import pytest
import torch

from harness.graph.partitions.partition import count_needed_rows, order_by_part, partition_graph
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.info import describe_dataset
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.kernels.csr import to_scipy
from harness.spec.dataset import DatasetChoice

PARTS = {
    "uneven": lambda n: torch.arange(n) % 7 // 3,
    "one is empty": lambda n: 2 * (torch.arange(n) % 5 == 0),
    "one has all": lambda n: torch.ones(n, dtype=torch.int64),
    "one vertex each": torch.arange,
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("grid", [1, 4, 9])
@pytest.mark.parametrize("directed", [False, True])
def test_nonzeros_and_rows_needed(make_graph, write_graph, tmp_path, parts, grid, directed):
    graph = make_graph(directed=directed)
    part = PARTS[parts](graph.n)
    count = int(part.max()) + 1
    partition = order_by_part(part, count)
    choice = DatasetChoice(name="toy", partition="file:mine", parts=count)
    write_graph(graph, tmp_path / "store", choice, partition, grid=grid)
    store = Store(tmp_path / "store")
    A, cut = store.adjacency(range(graph.n), range(graph.n)), store.manifest.cut
    assert cut.bounds == partition.bounds == store.bounds
    assert list(cut.needed) == count_needed_rows(A, partition.bounds)
    assert list(cut.nonzeros) == A.rowptr[torch.tensor(partition.bounds)].diff().tolist()


@pytest.mark.parametrize("grid", [1, 4])
@pytest.mark.parametrize("directed", [False, True])
def test_the_parts_of_entries_are_those_of_the_vertex_cut(
    make_graph, write_graph, tmp_path, grid, directed
) -> None:
    """In any rows, on disk and in memory; and the manifest counts what scipy counts."""
    graph = make_graph(directed=directed)
    partition = partition_graph(graph.A, "libra", 4, seed=2)
    write_graph(
        graph,
        tmp_path / "store",
        DatasetChoice(name="toy", partition="libra", parts=4, seed=2),
        partition,
        grid=grid,
    )
    store, memory, order = Store(tmp_path / "store"), MemoryStore(graph, partition=partition), partition.order
    own = to_scipy(graph.A._replace(val=partition.edges + 1)).toarray()
    expected = own[order][:, order]
    for rows in (range(graph.n), range(5, 23), range(7, 7), range(graph.n - 1, graph.n)):
        A = store.adjacency(rows, range(graph.n))
        for blocks in (store, memory):
            found = to_scipy(A._replace(val=blocks.edge_parts(rows) + 1)).toarray()
            np.testing.assert_array_equal(found, expected[rows.start : rows.stop])
    cut = store.manifest.cut
    assert cut.entries == tuple(int((expected == part + 1).sum()) for part in range(4))
    filled = [(expected == part + 1).any(axis=0) | (expected == part + 1).any(axis=1) for part in range(4)]
    assert cut.copies == tuple(int(each.sum()) for each in filled)
    for part, rows in enumerate(partition.ranges):
        assert filled[part][rows.start : rows.stop].all(), "a part has copies of the vertices it is master of"


def test_info_reports_the_copies_of_a_vertex(root) -> None:
    choice = DatasetChoice(name="toy", partition="libra", parts=3)
    build_store(root, choice)
    reported, store = describe_dataset(root, choice).cut["vertex_cut"], open_dataset(root, choice)
    assert reported["replication_factor"] == sum(store.manifest.cut.copies) / store.n
    assert 1 < reported["replication_factor"] <= 3
    metis = DatasetChoice(name="toy", partition="metis", parts=3)
    build_store(root, metis)
    assert (
        "vertex_cut" not in describe_dataset(root, metis).cut
        and open_dataset(root, metis).edge_parts(range(3)) is None
    )
