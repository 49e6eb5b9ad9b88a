"""What the manifest says of a partition is what is counted in the whole matrix, however it is cut into blocks."""

import pytest
import torch

from harness.graph.partition import in_order, volumes
from harness.spec.dataset import DatasetChoice
from harness.store.reader import Store

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
    partition = in_order(part, count)
    choice = DatasetChoice(name="toy", partition="file:mine", parts=count)
    write_graph(graph, tmp_path / "store", choice, partition, grid=grid)
    store = Store(tmp_path / "store")
    A, cut = store.adjacency(range(graph.n), range(graph.n)), store.manifest.cut
    assert cut.bounds == partition.bounds == store.bounds
    assert list(cut.needed) == volumes(A, partition.bounds)
    assert list(cut.nonzeros) == A.rowptr[torch.tensor(partition.bounds)].diff().tolist()
