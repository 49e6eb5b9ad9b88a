"""Tiny archives in the published formats are fetched and built by the same code as the real ones."""

import gzip
import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
import torch
import yaml
from scipy import sparse
from scipy.io import mmwrite

from harness.base.errors import UserError
from harness.cli import main
from harness.experiment.known_graph import look_up_graph
from harness.graph.sources.graphsaint import PUBLISHED
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.location import verify_store
from harness.graph.store.reader import Store
from harness.kernels.csr import to_scipy
from harness.spec.dataset import DatasetChoice

N, EDGES, WIDTH, CLASSES = 60, 240, 8, 5
RNG = np.random.default_rng(7)
SOURCE, TARGET = RNG.integers(0, N - 1, (2, EDGES))  # the last vertex has no edge
SOURCE[3], TARGET[3], SOURCE[5], TARGET[5] = 4, 4, SOURCE[6], TARGET[6]
X = RNG.normal(size=(N, WIDTH)).astype(np.float32)
Y = RNG.integers(0, CLASSES, N)
SETS = RNG.integers(0, 2, (N, CLASSES))
PARTS = {"train": np.arange(0, 20), "valid": np.arange(20, 30), "test": np.arange(30, N)}


def adjacency(directed=False):
    """With a loop at every vertex, without repetitions, divided by the roots of its row sums."""
    A = sparse.csr_array((np.ones(EDGES), (TARGET, SOURCE)), shape=(N, N))
    A = ((A if directed else A + A.T) + sparse.eye_array(N)).astype(bool).astype(float).tocsr()
    scale = sparse.diags_array(1 / np.sqrt(A.sum(axis=1)))
    return (scale @ A @ scale).toarray()


def archive_of_ogb():
    """As OGB packs it: a folder entry for `processed`, members compressed each by itself."""

    def text(rows):
        return gzip.compress("".join(",".join(map(repr, row)) + "\n" for row in rows).encode(), mtime=0)

    members = {
        "raw/edge.csv.gz": text(zip(SOURCE.tolist(), TARGET.tolist(), strict=True)),
        "raw/node-feat.csv.gz": text(X.tolist()),
        "raw/node-label.csv.gz": text([label] for label in Y.tolist()),
        "raw/num-node-list.csv.gz": text([[N]]),
        "raw/num-edge-list.csv.gz": text([[EDGES]]),
        **{f"split/time/{name}.csv.gz": text([v] for v in part.tolist()) for name, part in PARTS.items()},
        "mapping/README.md": b"none",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arxiv/processed/", b"")
        for name, data in members.items():
            archive.writestr(f"arxiv/{name}", data)
    return packed.getvalue()


def archive_of_suitesparse():
    """As the collection packs it, with a second matrix beside the one that is meant."""
    A = sparse.coo_array((np.ones(EDGES, dtype=np.int8), (SOURCE, TARGET)), shape=(N, N))
    A = (A + A.T).astype(bool).astype(np.int8).tocoo()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, matrix in (("roads_coord", sparse.eye_array(3).tocoo()), ("roads", A)):
            written = io.BytesIO()
            mmwrite(written, matrix, field="pattern", symmetry="symmetric")
            info = tarfile.TarInfo(f"roads/{name}.mtx")
            info.size = len(written.getvalue())
            archive.addfile(info, io.BytesIO(written.getvalue()))
    return packed.getvalue()


def archive_of_papers():
    """As OGB packs its largest: arrays in an .npz in the archive; most labels are no numbers."""
    labels = np.where(np.arange(N) % 3 == 0, Y, np.nan).astype(np.float32)[:, None]
    data, label = io.BytesIO(), io.BytesIO()
    ends = np.stack([SOURCE, TARGET])
    np.savez_compressed(
        data, edge_index=ends, node_feat=X, num_nodes_list=np.array([N]), num_edges_list=[EDGES]
    )
    np.savez_compressed(label, node_label=labels)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("papers100M-bin/raw/data.npz", data.getvalue())
        archive.writestr("papers100M-bin/raw/node-label.npz", label.getvalue())
        for name, part in PARTS.items():
            text = "".join(f"{v}\n" for v in part.tolist()).encode()
            archive.writestr(f"papers100M-bin/split/time/{name}.csv.gz", gzip.compress(text))
    return packed.getvalue()


def archive_of_reddit():
    """As DGL packs it: a symmetric matrix and the data of its vertices."""
    A = sparse.coo_array((np.ones(EDGES), (SOURCE, TARGET)), shape=(N, N))
    A = (A + A.T).tocoo()
    graph, data = io.BytesIO(), io.BytesIO()
    np.savez_compressed(graph, row=A.row, col=A.col, data=A.data, shape=A.shape, format=b"coo")
    kinds = np.select([np.isin(np.arange(N), part) for part in PARTS.values()], [1, 2, 3])
    np.savez_compressed(data, feature=X, label=Y, node_types=kinds)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("reddit_graph.npz", graph.getvalue())
        archive.writestr("reddit_data.npz", data.getvalue())
    return packed.getvalue()


def files_of_graphsaint():
    """As Google Drive serves them: each by a key."""
    matrix, features = io.BytesIO(), io.BytesIO()
    A = sparse.csr_array((np.ones(EDGES, dtype=bool), (SOURCE, TARGET)), shape=(N, N))
    sparse.save_npz(matrix, A)
    np.save(features, X)
    classes = json.dumps({str(vertex): SETS[vertex].tolist() for vertex in range(N)}).encode()
    roles = dict(zip(("tr", "va", "te"), (part.tolist() for part in PARTS.values()), strict=True))
    files = matrix.getvalue(), features.getvalue(), classes, json.dumps(roles).encode()
    drive = "/drive.usercontent.google.com/download?id={}&confirm=t"
    return {drive.format(key): file for key, file in zip(PUBLISHED["amazon"], files, strict=True)}


FILES = {"features": {"kind": "file"}, "labels": {"kind": "file"}, "split": {"kind": "file"}}
DRAWN = {"features": {"kind": "uniform", "width": 4}, "labels": {"kind": "degree"}, "split": {"kind": "all"}}
ARXIV = {"source": {"kind": "ogb", "name": "ogbn-arxiv"}, "classes": CLASSES, **FILES}
PAPERS = {
    "source": {"kind": "ogb", "name": "ogbn-papers100M"},
    "directed": True,
    "classes": CLASSES,
    **FILES,
}
AMAZON = {
    "source": {"kind": "graphsaint", "dataset": "amazon"},
    "task": "multi-label",
    "classes": CLASSES,
    **FILES,
}
REDDIT = {"source": {"kind": "reddit"}, "classes": CLASSES, **FILES}
ROADS = {"source": {"kind": "suitesparse", "group": "DIMACS10", "name": "roads"}, "classes": CLASSES, **DRAWN}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project with the cards."""
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    monkeypatch.setenv("HARNESS_ROOT", str(tmp_path))
    catalog = tmp_path / "datasets" / "catalog"
    catalog.mkdir(parents=True)
    for name, card in {
        "arxiv": ARXIV,
        "roads": ROADS,
        "papers": PAPERS,
        "reddit": REDDIT,
        "amazon": AMAZON,
    }.items():
        (catalog / f"{name}.yaml").write_text(yaml.safe_dump(card))
    return tmp_path


@pytest.fixture
def published(site):
    site.files["/snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"] = archive_of_ogb()
    site.files["/snap.stanford.edu/ogb/data/nodeproppred/papers100M-bin.zip"] = archive_of_papers()
    site.files["/data.dgl.ai/dataset/reddit.zip"] = archive_of_reddit()
    site.files["/sparse.tamu.edu/MM/DIMACS10/roads.tar.gz"] = archive_of_suitesparse()
    site.files |= files_of_graphsaint()
    return site


def opened(root, name):
    return Store(build_store(root, DatasetChoice(name=name)))


def test_a_benchmark_of_ogb(root, published, capsys):
    assert main(["data", "fetch", "arxiv"]) == 0
    assert capsys.readouterr().out.strip().endswith("datasets/raw/ogb/arxiv.zip")
    store, everyone = opened(root, "arxiv"), range(N)
    np.testing.assert_allclose(
        to_scipy(store.adjacency(everyone, everyone)).toarray(), adjacency(), rtol=1e-6
    )
    np.testing.assert_array_equal(store.feature_block(everyone, range(WIDTH)).numpy(), X)
    np.testing.assert_array_equal(store.labels(everyone).numpy(), Y)
    for value, part in enumerate(PARTS.values(), start=1):
        assert torch.nonzero(store.split(everyone) == value)[:, 0].tolist() == part.tolist()
    counts = store.manifest.counts
    assert counts.stored == EDGES
    assert counts.loops == np.count_nonzero(SOURCE == TARGET)
    assert counts.duplicates == EDGES - len(set(zip(SOURCE.tolist(), TARGET.tolist(), strict=True)))
    assert list((root / "datasets" / "raw").rglob("*.csv*")) == []


@pytest.mark.parametrize("permutation", ["none", "double"])
def test_a_benchmark_of_ogb_in_arrays(root, published, permutation):
    assert main(["data", "fetch", "papers"]) == 0
    store = Store(build_store(root, DatasetChoice(name="papers", permutation=permutation, seed=2)))
    everyone, (p, q) = range(N), (each.numpy() for each in store.orders)
    A = to_scipy(store.adjacency(everyone, everyone)).toarray()
    np.testing.assert_allclose(A, adjacency(directed=True)[p][:, q], rtol=1e-6)
    np.testing.assert_array_equal(store.feature_block(everyone, range(WIDTH)).numpy(), X[q])
    np.testing.assert_array_equal(store.labels(everyone).numpy(), np.where(np.arange(N) % 3 == 0, Y, -1)[p])
    assert not (store.split(everyone) > 0)[store.labels(everyone) < 0].any()


def test_reddit(root, published):
    assert main(["data", "fetch", "reddit"]) == 0
    store, everyone = opened(root, "reddit"), range(N)
    np.testing.assert_allclose(
        to_scipy(store.adjacency(everyone, everyone)).toarray(), adjacency(), rtol=1e-6
    )
    np.testing.assert_array_equal(store.feature_block(everyone, range(WIDTH)).numpy(), X)
    np.testing.assert_array_equal(store.labels(everyone).numpy(), Y)
    assert (store.split(everyone) == 2).sum() == len(PARTS["valid"])


@pytest.mark.parametrize("permutation", ["none", "double"])
def test_sets_of_classes_of_graphsaint(root, published, permutation):
    assert main(["data", "fetch", "amazon"]) == 0
    store = Store(build_store(root, DatasetChoice(name="amazon", permutation=permutation, seed=2)))
    everyone, (p, q) = range(N), (each.numpy() for each in store.orders)
    A = to_scipy(store.adjacency(everyone, everyone)).toarray()
    np.testing.assert_allclose(A, adjacency()[p][:, q], rtol=1e-6)
    np.testing.assert_array_equal(store.feature_block(everyone, range(WIDTH)).numpy(), X[q])
    np.testing.assert_array_equal(store.labels(everyone).numpy(), SETS[p])
    assert store.task == "multi-label"
    assert store.manifest.dtypes["labels"] == "int8"
    assert (store.split(everyone) == 2).sum() == len(PARTS["valid"])


def test_a_matrix_of_suitesparse(root, published):
    assert main(["data", "fetch", "roads"]) == 0
    store, everyone = opened(root, "roads"), range(N)
    np.testing.assert_allclose(
        to_scipy(store.adjacency(everyone, everyone)).toarray(), adjacency(), rtol=1e-6
    )
    degrees = store.adjacency(everyone, everyone).rowptr.diff()
    ranked = torch.argsort(degrees, stable=True)
    assert store.labels(everyone)[ranked].tolist() == sorted(store.labels(everyone).tolist())


@pytest.mark.parametrize("name", ["arxiv", "roads"])
def test_error_of_unfetched_dataset_names_fetch_then_build(root, name):
    steps = rf"harness data fetch {name}, then harness data build {name}"
    for fails in (build_store, open_dataset, verify_store, look_up_graph):
        with pytest.raises(UserError, match=rf"{steps}\b"):
            fails(root, DatasetChoice(name=name))


def test_error_of_fetched_or_generated_dataset_names_only_build(root, published):
    card = {**ROADS, "source": {"kind": "rmat", "scale": 30}}
    (root / "datasets" / "catalog" / "drawn.yaml").write_text(yaml.safe_dump(card))
    assert main(["data", "fetch", "arxiv"]) == 0
    for name in ("arxiv", "drawn"):
        choice = DatasetChoice(name=name, permutation="double")
        with pytest.raises(UserError, match=rf"harness data build {name} --permutation double$"):
            open_dataset(root, choice)


def test_a_drawn_graph_needs_nothing(root):
    card = {**ROADS, "source": {"kind": "rmat", "scale": 4}}
    (root / "datasets" / "catalog" / "drawn.yaml").write_text(yaml.safe_dump(card))
    assert main(["data", "fetch", "drawn"]) == 0


def test_another_archive_than_the_card_means_is_refused(root, published):
    published.files["/snap.stanford.edu/ogb/data/nodeproppred/products.zip"] = archive_of_ogb()
    card = {**ARXIV, "source": {"kind": "ogb", "name": "ogbn-products"}}
    (root / "datasets" / "catalog" / "arxiv.yaml").write_text(yaml.safe_dump(card))
    assert main(["data", "fetch", "arxiv"]) == 0
    with pytest.raises(UserError, match="products/raw/"):
        build_store(root, DatasetChoice(name="arxiv"))


def test_a_truncated_archive_is_refused_by_its_name(root, published, capsys):
    published.files["/snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"] = archive_of_ogb()[:-500]
    assert main(["data", "fetch", "arxiv"]) == 1
    assert "arxiv.zip" in capsys.readouterr().err
    with pytest.raises(UserError, match="harness data fetch arxiv"):
        build_store(root, DatasetChoice(name="arxiv"))


def test_a_published_matrix_is_imported_by_its_name(root, published, capsys):
    """Fetched, built and kept under the name; afterwards no network is needed."""
    assert main(["data", "import", "mine", "--from", "suitesparse:DIMACS10/roads", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert (counts["vertices"], counts["nnz_adj"]) == (N, np.count_nonzero(adjacency()))
    everyone = range(N)
    found = to_scipy(Store(build_store(root, DatasetChoice(name="mine"))).adjacency(everyone, everyone))
    np.testing.assert_allclose(found.toarray(), adjacency(), rtol=1e-6)
    published.files.clear()
    assert main(["data", "fetch", "mine"]) == 0
    assert main(["data", "verify", "mine"]) == 0


@pytest.mark.parametrize("fault", ["503 0", "short", "reset"])
def test_an_import_survives_a_server_that_fails_once(root, published, fault):
    published.faults["/sparse.tamu.edu/MM/DIMACS10/roads.tar.gz"] = [fault]
    assert main(["data", "import", "mine", "--from", "suitesparse:DIMACS10/roads"]) == 0


def test_a_matrix_with_weights_is_imported_with_them(root, site, capsys):
    A = sparse.coo_array((np.arange(1.0, EDGES + 1) / 7, (SOURCE, TARGET)), shape=(N, N))
    A = (A + A.T).tocoo()
    packed, written = io.BytesIO(), io.BytesIO()
    mmwrite(written, A, precision=17)
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("net/net.mtx")
        info.size = len(written.getvalue())
        archive.addfile(info, io.BytesIO(written.getvalue()))
    site.files["/sparse.tamu.edu/MM/Mine/net.tar.gz"] = packed.getvalue()
    options = ["--from", "suitesparse:Mine/net", "--weights", "raw"]
    assert main(["data", "import", "net", *options]) == 0
    store = Store(build_store(root, DatasetChoice(name="net")), dtype=torch.float64)
    found = to_scipy(store.adjacency(range(N), range(N))).toarray()
    np.testing.assert_allclose(found, A.toarray(), rtol=1e-15)


def archive_of_proteins():
    """As OGB packs its set without features: 0 or 1 for each of many tasks."""
    members = {
        "raw/edge.csv.gz": zip(SOURCE.tolist(), TARGET.tolist(), strict=True),
        "raw/node-label.csv.gz": np.tile(SETS, 23)[:, :112].tolist(),
        "raw/num-node-list.csv.gz": [[N]],
        "raw/num-edge-list.csv.gz": [[EDGES]],
        **{f"split/species/{name}.csv.gz": part[:, None].tolist() for name, part in PARTS.items()},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in members.items():
            text = "".join(",".join(map(repr, row)) + "\n" for row in rows)
            archive.writestr(f"proteins/{name}", gzip.compress(text.encode(), mtime=0))
    return packed.getvalue()


def test_sets_of_ogb_are_imported_by_their_names(root, published, capsys):
    published.files["/snap.stanford.edu/ogb/data/nodeproppred/proteins.zip"] = archive_of_proteins()
    assert main(["data", "import", "theirs", "--from", "ogb:ogbn-proteins", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["counts"]["classes"], told["counts"]["features"]) == (112, 128)
    assert "ROC-AUC" in told["accuracy"]
    store = Store(build_store(root, DatasetChoice(name="theirs")))
    np.testing.assert_array_equal(store.labels(range(N)).numpy(), np.tile(SETS, 23)[:, :112])
    assert (store.split(range(N)) == 2).sum() == len(PARTS["valid"])


def test_a_matrix_that_is_not_published_is_refused(root, site, capsys):
    assert main(["data", "import", "mine", "--from", "suitesparse:DIMACS10/nothing"]) != 0
    said = capsys.readouterr().err
    assert f"{site.url}/sparse.tamu.edu/MM/DIMACS10/nothing.tar.gz" in said and "404" in said
    assert not list((root / "datasets").glob("imported/*"))
