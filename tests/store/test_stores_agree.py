"""Both stores serve what numpy cuts out of the dense matrix in another order, for any rectangle of it.

The orders are every permutation, and a partition in three parts of which one is empty.
"""

import numpy as np
import pytest
import torch

from harness.graph.order import make_orders
from harness.graph.partitions.partition import order_by_part
from harness.graph.store.contents import load_graph
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.kernels.csr import to_scipy
from harness.spec.dataset import DatasetChoice

PARTS = "three parts"
ORDERS = ["none", "single", "double", PARTS]
SEED = 5
GRAPHS = {
    "undirected, prime n": {},
    "directed": {"directed": True},
    "one vertex": {
        "source": {"kind": "lattice", "height": 1, "width": 1},
        "classes": 1,
        "labels": {"kind": "uniform"},
        "split": {"kind": "all"},
    },
    "fewer vertices than blocks": {
        "source": {"kind": "lattice", "height": 5, "width": 1, "keep": 1.0},
        "labels": {"kind": "uniform"},
        "split": {"kind": "all"},
    },
    "empty blocks": {
        "source": {"kind": "lattice", "height": 31, "width": 1, "connected": False},
        "labels": {"kind": "uniform"},
    },
    "wide features": {"features": {"kind": "uniform", "width": 101}},
}


@pytest.fixture(scope="module", params=GRAPHS, ids=lambda name: name.replace(" ", "-"))
def graph(request, make_card, tmp_path_factory):
    return load_graph(make_card(**GRAPHS[request.param]), tmp_path_factory.mktemp("sources"))


@pytest.fixture(
    scope="module",
    params=["memory", 1, pytest.param(3, marks=pytest.mark.slow), 7],
    ids=lambda kind: f"grid-{kind}" if kind != "memory" else kind,
)
def store_of(request, tmp_path_factory, write_graph):
    """A function from a graph and an order to its store, in memory or in a folder of that many blocks.

    Tests only read stores, so each store is made once.
    """
    stores = {}

    def make_store(graph, order):
        partition = partition_of(graph) if order == PARTS else None
        how = {"partition": "random", "parts": 3} if order == PARTS else {"permutation": order}
        choice = DatasetChoice(name="toy", seed=SEED, **how)
        if request.param == "memory":
            return MemoryStore(graph, choice.permutation, SEED, partition)
        folder = tmp_path_factory.mktemp("store") / "store"
        write_graph(graph, folder, choice, partition, grid=request.param)
        return Store(folder)

    def find_or_make_store(graph, order):
        key = id(graph), order
        if key not in stores:
            stores[key] = graph, make_store(graph, order)  # the graph is kept, so no other gets its id
        return stores[key][1]

    return find_or_make_store


def partition_of(graph):
    """Every third vertex in part 2, the others in part 0."""
    return order_by_part(2 * (torch.arange(graph.n) % 3 == 0), 3)


def maps_of(graph, order):
    """The index maps p and q that the store must follow."""
    if order != PARTS:
        return make_orders(order, graph.n, SEED)
    third = torch.arange(graph.n) % 3 == 0
    p = torch.cat([torch.nonzero(~third)[:, 0], torch.nonzero(third)[:, 0]])
    return p, p


def ranges(n, rng):
    """The whole, nothing, and a few parts."""
    yield from (range(n), range(0), range(n, n))
    for _ in range(6):
        start, stop = sorted(rng.integers(0, n + 1, 2).tolist())
        yield range(start, stop)


@pytest.mark.parametrize("name", ORDERS)
def test_any_rectangle(graph, store_of, name):
    store, rng = store_of(graph, name), np.random.default_rng(0)
    p, q = (each.numpy() for each in maps_of(graph, name))
    dense = to_scipy(graph.A).toarray()
    for order, expected in enumerate((dense[p][:, q], dense[q][:, p])):
        for rows, cols in zip(ranges(graph.n, rng), reversed(list(ranges(graph.n, rng))), strict=True):
            A = store.adjacency(rows, cols, order)
            here = expected[rows.start : rows.stop, cols.start : cols.stop].astype(A.val.numpy().dtype)
            assert A.shape == here.shape
            assert (A.rowptr.dtype, A.col.dtype) == (torch.int64, torch.int32)
            np.testing.assert_array_equal(to_scipy(A).toarray(), here)
            assert A.nnz == np.count_nonzero(here)


@pytest.mark.parametrize("name", ORDERS)
def test_features_labels_and_split_follow_their_orders(graph, store_of, name):
    store, rng = store_of(graph, name), np.random.default_rng(1)
    p, q = maps_of(graph, name)
    columns = list(ranges(graph.X.shape[1], rng))
    for rows, cols in zip(ranges(graph.n, rng), columns, strict=True):
        part = slice(rows.start, rows.stop)
        X = store.feature_block(rows, cols)
        assert X.dtype == torch.float32
        assert X.is_contiguous()
        assert torch.equal(X, graph.X[q][part, cols.start : cols.stop])
        for order, rows_map in enumerate((p, q)):
            assert torch.equal(store.labels(rows, order), graph.y[rows_map][part])
            assert torch.equal(store.split(rows, order), graph.split[rows_map][part])
    assert torch.equal(torch.stack([*store.orders]), torch.stack([p, q]))


def test_the_stores_say_the_same_of_the_graph(graph, store_of):
    store = store_of(graph, "double")
    assert (store.n, store.nnz) == (graph.n, graph.counts.nnz_adj)
    assert (store.features, store.classes) == (graph.X.shape[1], graph.classes)
    assert (store.directed, store.permutation) == (graph.directed, "double")
    assert len(store.manifest_hash) == 64
    assert store.bounds is None


def test_the_bounds_of_a_partition_are_kept(graph, store_of):
    store = store_of(graph, PARTS)
    others = graph.n - len(range(0, graph.n, 3))
    assert store.bounds == (0, others, others, graph.n)
    assert store.permutation == "none"


def test_two_partitions_of_one_order_are_two_datasets(make_graph):
    graph = make_graph()
    partitions = [order_by_part(torch.arange(graph.n) // size, 6) for size in (9, 10)]
    one, two = (MemoryStore(graph, partition=partition) for partition in partitions)
    assert torch.equal(one.orders.p, two.orders.p)
    assert one.manifest_hash != two.manifest_hash


def test_served_value_belongs_to_the_caller(graph, store_of):
    store, everything = store_of(graph, "single"), range(graph.n)
    for serve in (
        lambda: store.adjacency(everything, everything).val,
        lambda: store.adjacency(everything, everything).col,
        lambda: store.feature_block(everything, range(graph.X.shape[1])),
        lambda: store.labels(everything),
    ):
        first = serve()
        before = first.clone()
        first.zero_()
        assert torch.equal(serve(), before)


@pytest.mark.parametrize("part", [range(-1, 3), range(0, 9999), range(3, 2), range(0, 4, 2)])
def test_a_rectangle_that_leaves_the_matrix_is_a_defect(make_graph, store_of, part):
    store, inside = store_of(make_graph(), "none"), range(3)
    for ask in (
        lambda: store.adjacency(part, inside),
        lambda: store.adjacency(inside, part),
        lambda: store.feature_block(part, inside),
        lambda: store.feature_block(inside, part),
        lambda: store.labels(part),
        lambda: store.split(part),
    ):
        with pytest.raises(AssertionError):
            ask()
