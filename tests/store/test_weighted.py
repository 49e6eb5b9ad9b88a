"""Weighted edges: every file brings them, a store serves scipy's matrix of them, and bad ones are refused."""

import json

import numpy as np
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from pyarrow.parquet import write_table
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from harness.cli import main
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.writer import StorePlan, write_store
from harness.graph.model import RawGraph
from harness.graph.normalise import normalise_adjacency
from harness.graph.order import make_orders
from harness.graph.sources.stream import stream_graph
from harness.graph.store.contents import DatasetContents
from harness.graph.store.datasets import open_dataset
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.spec.dataset import DatasetChoice
from tests.dense import to_dense

N, M = 40, 170


def edges_of(seed=3, negative=False):
    """Different pairs in one direction, with loops, an isolated last vertex, and weights of three digits, some 0."""
    draw = np.random.default_rng(seed)
    pairs = np.unique(np.sort(draw.integers(0, N - 1, (M, 2)), axis=1), axis=0)
    pairs = np.where(draw.random(len(pairs))[:, None] < 0.5, pairs, pairs[:, ::-1])
    weight = np.round(draw.uniform(-2 if negative else 0, 5, len(pairs)), 3)
    weight[::11] = 0
    return pairs, weight


def expected(pairs, weight, kind, directed, n=N):
    """What scipy and PyG make of the edges."""
    source, target = pairs.T
    matrix = sp.coo_array((weight, (target, source)), (n, n)).toarray()
    if not directed:
        matrix = matrix + np.where(np.eye(n, dtype=bool), 0, matrix.T)
    if kind == "raw":
        return matrix
    row, col = (matrix != 0).nonzero()
    ends, value = torch.from_numpy(np.stack([col, row])), torch.from_numpy(matrix[row, col])
    # gcn_norm keeps the weight of a loop; one of weight 0 is a loop, too
    zero = sorted({int(u) for u, v in pairs[weight == 0] if u == v})
    loops = torch.tensor([zero, zero], dtype=torch.int64)
    ends, value = (
        torch.cat([ends, loops], dim=1),
        torch.cat([value, torch.zeros(len(zero), dtype=torch.float64)]),
    )
    (source, target), value = gcn_norm(ends, value, num_nodes=n, dtype=torch.float64)
    dense = torch.zeros(n, n, dtype=torch.float64)
    return dense.index_put((target, source), value, accumulate=True).numpy()


@pytest.mark.parametrize("kind", ["normalised", "raw"])
@pytest.mark.parametrize("directed", [False, True])
def test_a_graph_in_memory_is_that_of_scipy_and_pyg(kind, directed):
    pairs, weight = edges_of(negative=kind == "raw")
    A, counts = normalise_adjacency(RawGraph(N, *pairs.T, weight=weight), directed, kind)
    np.testing.assert_allclose(to_dense(A), expected(pairs, weight, kind, directed), rtol=1e-14, atol=1e-300)
    assert A.nnz == counts.nnz_adj
    assert counts.stored == len(pairs)


@pytest.mark.parametrize("kind", ["normalised", "raw"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("permutation", ["none", "single", "double"])
@pytest.mark.parametrize("memory", [1 << 30, 1])
def test_a_store_serves_it_in_every_order(tmp_path, make_card, kind, directed, permutation, memory):
    """A byte of memory settles blocks in stripes, which changes nothing."""
    pairs, weight = edges_of(negative=kind == "raw")
    twice = np.concatenate([pairs, pairs[::2]]), np.concatenate([weight, weight[::2]])
    raw = RawGraph(N, *twice[0].T, weight=twice[1])
    card = make_card(
        source={"kind": "edges", "path": "e.txt"}, labels={"kind": "degree"}, directed=directed, weights=kind
    )
    choice = DatasetChoice(name="toy", permutation=permutation, seed=5)
    contents = DatasetContents(card, tmp_path, stream_graph(raw))
    write_store(StorePlan(contents, tmp_path / "store", choice, resources=BuildResources(memory), side=3))
    store = Store(tmp_path / "store", dtype=torch.float64)
    store.files.verify()
    p, q = make_orders(permutation, N, 5)
    whole = expected(*twice, kind, directed)
    everyone = range(N)
    for order, (rows, cols) in enumerate([(p, q), (q, p)]):
        found = store.adjacency(everyone, everyone, order)
        np.testing.assert_allclose(to_dense(found), whole[rows][:, cols], rtol=1e-14, atol=1e-300)
        part = store.adjacency(range(7, 31), range(2, 29), order)
        np.testing.assert_array_equal(to_dense(part), to_dense(found)[7:31, 2:29])
        assert store.nnz == found.nnz == store.manifest.counts.nnz_adj
    assert store.weights == kind
    assert store.manifest.counts.duplicates == len(pairs[::2])
    graph = MemoryStore(compose_of(raw, directed, kind), permutation, 5)
    np.testing.assert_allclose(
        to_dense(graph.adjacency(everyone, everyone)), to_dense(store.adjacency(everyone, everyone))
    )


def compose_of(raw, directed, kind):
    from harness.graph.model import Graph

    A, counts = normalise_adjacency(raw, directed, kind)
    nothing = torch.zeros(N, dtype=torch.int64)
    return Graph(A, torch.zeros(N, 1), nothing, nothing.to(torch.uint8), 1, directed, counts, kind)


@pytest.mark.parametrize("bound", [1 << 30, 1])
def test_a_convolution_is_that_of_gcnconv(tmp_path, make_card, bound):
    pairs, weight = edges_of()
    both = np.concatenate([pairs, pairs[pairs[:, 0] != pairs[:, 1]][:, ::-1]])
    weights = np.concatenate([weight, weight[pairs[:, 0] != pairs[:, 1]]])
    card = make_card(source={"kind": "edges", "path": "e"}, labels={"kind": "degree"}, weights="normalised")
    contents = DatasetContents(card, tmp_path, stream_graph(RawGraph(N, *both.T, weight=weights)))
    choice, resources = DatasetChoice(name="toy"), BuildResources(bound)
    write_store(StorePlan(contents, tmp_path / "store", choice, resources=resources))
    A = to_dense(Store(tmp_path / "store", dtype=torch.float64).adjacency(range(N), range(N)))
    conv = GCNConv(6, 4, bias=False).double()
    X = torch.randn(N, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = A @ X @ conv.lin.weight.T
    theirs = conv(X, torch.from_numpy(both.T.copy()), torch.from_numpy(weights))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.fixture
def files(tmp_path):
    """The same weighted graph in every kind of file that has weights."""
    (pairs, weight), folder = edges_of(), tmp_path
    weight = np.where(weight == 0, 0.5, weight)
    source, target = pairs.T
    lines = [
        f"{u} {v} {w!r}" for u, v, w in zip(source.tolist(), target.tolist(), weight.tolist(), strict=True)
    ]
    (folder / "e.txt").write_text("# from to weight\n" + "\n".join(lines) + "\n")
    (folder / "e.csv").write_text(
        "from,to,w,when\n" + "".join(f"{each},7\n".replace(" ", ",") for each in lines)
    )
    matrix = sp.coo_array((weight, (source, target)), (N, N))
    scipy.io.mmwrite(folder / "e.mtx", matrix)
    sp.save_npz(folder / "e.npz", matrix.tocsr())
    columns = {
        "kind": pa.array(["a"] * len(pairs)),
        "from": source,
        "to": target,
        "n": target * 0,
        "weight": weight,
    }
    write_table(pa.table(columns), folder / "e.parquet", row_group_size=37)
    ends, given = torch.from_numpy(pairs.T.copy()), torch.from_numpy(weight)
    torch.save(Data(edge_index=ends, edge_weight=given, num_nodes=N), folder / "e.pt")
    torch.save(Data(edge_index=ends, edge_attr=given[:, None].float(), num_nodes=N), folder / "attr.pt")
    return folder, pairs, weight


@pytest.fixture
def imported(root, capsys):
    def call(*options):
        code = main(["data", "import", "mine", "--root", str(root), "--json", *map(str, options)])
        return code, capsys.readouterr().out

    return call


@pytest.mark.parametrize("name", ["e.txt", "e.csv", "e.mtx", "e.npz", "e.parquet", "e.pt", "attr.pt"])
def test_every_kind_of_file_brings_weights(root, files, imported, name):
    folder, pairs, weight = files
    header = ["--header"] if name == "e.csv" else []
    vertices = ["--vertices", N] if name in ("e.txt", "e.csv", "e.parquet") else []
    code, told = imported("--edges", folder / name, "--weights", "normalised", *header, *vertices)
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"), torch.float64)
    found = to_dense(store.adjacency(range(N), range(N)))
    rtol = 1e-6 if name == "attr.pt" else 1e-14
    np.testing.assert_allclose(found, expected(pairs, weight, "normalised", False), rtol=rtol)


def test_metis_brings_weights_of_edges(root, imported, tmp_path):
    """Three vertices with weights of their own; the edge of 1 and 2 weighs 7, that of 2 and 3 weighs 9."""
    (tmp_path / "e.graph").write_text("3 2 011 1\n5 2 7\n6 1 7 3 9\n4 2 9\n")
    assert imported("--edges", tmp_path / "e.graph", "--weights", "raw")[0] == 0
    store = open_dataset(root, DatasetChoice(name="mine"))
    np.testing.assert_array_equal(
        to_dense(store.adjacency(range(3), range(3))), [[0, 7, 0], [7, 0, 9], [0, 9, 0]]
    )


def test_a_skew_symmetric_matrix_has_negative_images(root, imported, tmp_path):
    head = "%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n"
    (tmp_path / "e.mtx").write_text(head + "2 1 0.5\n3 1 -2\n")
    assert imported("--edges", tmp_path / "e.mtx", "--weights", "raw", "--directed")[0] == 0
    store = open_dataset(root, DatasetChoice(name="mine"))
    expected = [[0, 0.5, -2], [-0.5, 0, 0], [2, 0, 0]]
    np.testing.assert_array_equal(to_dense(store.adjacency(range(3), range(3))), expected)
    (root / "datasets" / "imported" / "mine.yaml").unlink()
    code, told = imported("--edges", tmp_path / "e.mtx", "--weights", "raw")
    assert code == 2
    assert "set --directed" in told


def test_the_card_tells_of_the_weights(root, files, imported, capsys):
    folder, *_ = files
    assert imported("--edges", folder / "e.mtx", "--weights", "normalised")[0] == 0
    capsys.readouterr()
    assert main(["data", "info", "mine", "--root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == "normalised"
