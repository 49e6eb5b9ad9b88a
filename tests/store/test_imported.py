"""A graph of one's own becomes a dataset like any other, whatever file it comes in."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse as sp
import torch
from pyarrow.parquet import write_table
from torch_geometric.data import Data

from harness.base.errors import UserError
from harness.cli import main
from harness.graph.cards.catalog import list_cards, load_card
from harness.graph.cards.class_names import list_class_names
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.kernels.csr import to_scipy
from harness.spec.dataset import DatasetChoice

N, M = 40, 150


@pytest.fixture
def edges():
    """Pairs with repetitions and loops, of which the last vertex has one."""
    drawn = np.random.default_rng(3).integers(0, N, (M, 2))
    return np.concatenate([drawn, [[N - 1, 0]]])


@pytest.fixture
def files(edges, tmp_path):
    """The same graph in every kind of file."""
    text = "".join(f"{a}\t{b}\n" for a, b in edges)
    (tmp_path / "edges.tsv").write_text(text)
    (tmp_path / "edges.csv").write_text("from,to\n" + "".join(f"{a + 1},{b + 1}\n" for a, b in edges))
    with gzip.open(tmp_path / "edges.txt.gz", "wt") as packed:
        packed.write(text)
    source, target = edges.T
    scipy.io.mmwrite(tmp_path / "edges.mtx", sp.coo_matrix((np.ones(len(edges)), (target, source)), (N, N)))
    lists = sp.csr_array(undirected(edges) > 0)
    lists.setdiag(0)
    lists.eliminate_zeros()
    lines = [
        f"{N} {lists.nnz // 2}",
        *(" ".join(str(v + 1) for v in lists[[row]].indices) for row in range(N)),
    ]
    (tmp_path / "edges.graph").write_text("\n".join(lines) + "\n")
    columns = {"weight": pa.array(np.ones(len(edges))), "from": source, "to": target.astype(np.uint16)}
    write_table(pa.table(columns), tmp_path / "edges.parquet", row_group_size=37)
    return tmp_path


@pytest.fixture
def proteins(edges, tmp_path):
    """The same graph between names."""
    lines = (f"p{a:02}\tp{b:02}\t0.5\n" for a, b in np.concatenate([edges, [[v, v] for v in range(N)]]))
    (tmp_path / "proteins.triples").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def harness(root, monkeypatch, capsys):
    """`harness data import mine ...` in an empty project; its exit status and what it says."""

    def call(*options, name="mine"):
        code = main(["data", "import", name, "--root", str(root), "--json", *map(str, options)])
        told = capsys.readouterr()
        return code, told.out + told.err

    return call


def undirected(edges):
    """What scipy makes of the pairs: normalised, with one loop a vertex."""
    source, target = edges.T
    matrix = sp.coo_matrix((np.ones(len(edges)), (target, source)), (N, N)).tocsr()
    matrix = ((matrix + matrix.T + sp.eye(N)) > 0).astype(np.float64)
    scale = sp.diags(1 / np.sqrt(np.asarray(matrix.sum(1)).ravel()))
    return (scale @ matrix @ scale).toarray()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("edges.tsv", []),
        ("edges.csv", ["--header", "--base", "1"]),
        ("edges.txt.gz", []),
        ("edges.mtx", []),
        ("edges.parquet", []),
        ("edges.graph", []),
    ],
)
def test_every_kind_of_file_gives_the_graph(root, files, edges, harness, name, options):
    code, told = harness("--edges", files / name, *options)
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    assert json.loads(told)["store"] == str(store.folder)
    found = to_scipy(store.adjacency(range(N), range(N))).toarray()
    np.testing.assert_allclose(found, undirected(edges), rtol=1e-6)


def test_vertex_data_is_read(root, files, harness):
    draw = np.random.default_rng(4)
    features = draw.standard_normal((N, 5)).astype(np.float32)
    labels, split = draw.integers(-1, 4, N), draw.integers(1, 4, N)
    labels[0] = 3
    np.save(files / "x.npy", features)
    np.savetxt(files / "y.csv", labels, fmt="%d")
    np.save(files / "split.npy", split)
    brought = ("--features", files / "x.npy", "--labels", files / "y.csv", "--split", files / "split.npy")
    code, told = harness("--edges", files / "edges.tsv", *brought)
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    assert (store.classes, store.features) == (4, 5)
    np.testing.assert_array_equal(store.feature_block(range(N), range(5)), features)
    np.testing.assert_array_equal(store.labels(range(N)), labels)
    np.testing.assert_array_equal(store.split(range(N)), np.where(labels < 0, 0, split))


def test_data_given_in_files_is_not_generated(root, edges, tmp_path, harness):
    y, X = torch.arange(N) % 3, torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
    graph = Data(x=X, y=y, edge_index=torch.from_numpy(edges.T.copy()), train_mask=y == 0)
    torch.save(graph, tmp_path / "graph.pt")
    code, told = harness("--edges", tmp_path / "graph.pt")
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    assert (store.classes, store.features) == (3, 6)
    np.testing.assert_array_equal(store.feature_block(range(N), range(6)), X)
    np.testing.assert_array_equal(store.split(range(N)), (y == 0).to(torch.uint8))


def test_a_directed_graph_and_vertices_without_edges(root, files, harness):
    code, told = harness("--edges", files / "edges.parquet", "--directed", "--vertices", N + 9)
    assert code == 0, told
    card, store = load_card(root, "mine"), open_dataset(root, DatasetChoice(name="mine"))
    assert card.directed
    assert store.n == N + 9


def test_triples_of_hipmcl_are_text_with_names(root, edges, proteins, harness):
    code, told = harness("--edges", proteins / "proteins.triples")
    assert code == 2
    assert "if vertices have names, set --names" in told
    code, told = harness("--edges", proteins / "proteins.triples", "--names")
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    np.testing.assert_allclose(
        to_scipy(store.adjacency(range(N), range(N))).toarray(), undirected(edges), rtol=1e-6
    )


def test_a_column_for_each_class_is_another_task(root, files, harness):
    sets = np.random.default_rng(1).integers(0, 2, (N, 6))
    np.save(files / "sets.npy", sets)
    code, told = harness("--edges", files / "edges.tsv", "--labels", files / "sets.npy")
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    assert (store.task, store.classes) == ("multi-label", 6)
    np.testing.assert_array_equal(store.labels(range(N)), sets)


def test_a_name_is_given_once(root, files, harness):
    assert harness("--edges", files / "edges.tsv")[0] == 0
    assert harness("--edges", files / "edges.tsv")[0] == 0
    code, told = harness("--edges", files / "edges.mtx")
    assert code == 2
    assert f"remove {root}/datasets/imported/mine.yaml" in told


def test_an_import_says_what_it_found(root, files, edges, harness):
    code, told = harness("--edges", files / "edges.tsv")
    assert code == 0
    loops = int((edges[:, 0] == edges[:, 1]).sum())
    symmetric = int(np.count_nonzero(undirected(edges))) - N
    assert json.loads(told)["counts"] == {
        "vertices": N,
        "stored": len(edges),
        "loops": loops,
        "duplicates": len(edges) - len(np.unique(edges, axis=0)),
        "nnz_sym": symmetric,
        "nnz_adj": symmetric + N,
        "features": 128,
        "classes": 32,
    }


def test_cards_are_kept_with_the_data(root, files, harness, monkeypatch, capsys):
    elsewhere = files / "data"
    monkeypatch.setenv("HARNESS_DATASETS", str(elsewhere))
    code, told = harness("--edges", files / "edges.tsv")
    assert code == 0, told
    assert json.loads(told)["card"] == str(elsewhere / "imported" / "mine.yaml")
    assert [path.name for path in (root / "datasets" / "catalog").iterdir()] == ["toy.yaml"]
    assert list_cards(root) == ["mine", "toy"]
    assert load_card(root, "mine").source.path == str(files / "edges.tsv")
    for verb in (["list", "datasets"], ["data", "info", "mine"], ["data", "verify", "mine"]):
        assert main([*verb, "--root", str(root)]) == 0
        assert "mine" in capsys.readouterr().out
    monkeypatch.delenv("HARNESS_DATASETS")
    with pytest.raises(UserError, match="'mine'"):
        load_card(root, "mine")


def test_two_cards_of_a_name_are_refused(root, files, harness):
    assert harness("--edges", files / "edges.tsv")[0] == 0
    imported, catalog = (root / "datasets" / folder / "mine.yaml" for folder in ("imported", "catalog"))
    catalog.write_text(imported.read_text())
    with pytest.raises(UserError) as refused:
        load_card(root, "mine")
    assert str(imported) in str(refused.value) and str(catalog) in str(refused.value)
    assert load_card(root, "toy").name == "toy"
    assert list_cards(root) == ["mine", "toy"]
    imported.unlink()
    code, told = harness("--edges", files / "edges.mtx")
    assert code == 2
    assert f"remove {catalog}" in told


NAMES = [f"person {number:02}" if number % 3 else f"Ünal-{number}" for number in range(N)]
SORTED = sorted(NAMES, key=str.encode)


@pytest.fixture
def named(edges, tmp_path):
    """The same graph between names, of which every vertex has an edge."""
    pairs = np.concatenate([edges, [[v, v] for v in range(N)]])
    lines = [f"{NAMES[a]},{NAMES[b]},{1 + number % 7}\n" for number, (a, b) in enumerate(pairs)]
    (tmp_path / "people.csv").write_text("from,to,calls\n# a comment\n" + "".join(lines))
    with gzip.open(tmp_path / "people.tsv.gz", "wt") as packed:
        packed.write("".join(lines).replace(",", "\t"))
    (tmp_path / "people.txt").write_text("".join(lines).replace(" ", "_").replace(",", " "))
    source, target = ([NAMES[v] for v in column] for column in pairs.T)
    columns = {"n": pairs[:, 0], "from": source, "to": pa.array(target).dictionary_encode()}
    write_table(pa.table(columns), tmp_path / "people.parquet", row_group_size=23)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "options"),
    [("people.csv", ["--header"]), ("people.tsv.gz", []), ("people.txt", []), ("people.parquet", [])],
)
def test_vertices_may_have_names(root, named, edges, harness, name, options):
    code, told = harness("--edges", named / name, "--names", *options)
    assert code == 0, told
    names = Path(json.loads(told)["names"]).read_text().splitlines()
    assert names == (SORTED if name != "people.txt" else sorted(n.replace(" ", "_") for n in NAMES))
    order = [NAMES.index(each.replace("_", " ")) for each in names]
    store = open_dataset(root, DatasetChoice(name="mine"))
    found = to_scipy(store.adjacency(range(N), range(N))).toarray()
    np.testing.assert_allclose(found, undirected(edges)[order][:, order], rtol=1e-6)


def test_vertex_data_is_matched_by_name(root, named, harness):
    """Lines in any order; a vertex that is not named has no label and no part in the split."""
    labelled = [f"{NAMES[v]},{v % 5}\n" for v in range(N - 1, 0, -1)]
    (named / "y.csv").write_text("".join(["person,club\n", *labelled]))
    (named / "x.csv").write_text("".join(f"{name},{number},0.5\n" for number, name in enumerate(NAMES)))
    (named / "split.tsv").write_text("".join(f"{NAMES[v]}\t{1 + v % 3}\n" for v in range(1, 31)))
    brought = [f"--{option}={named / file}" for option, file in (("labels", "y.csv"), ("features", "x.csv"))]
    options = [
        "--edges",
        named / "people.csv",
        "--names",
        "--header",
        *brought,
        "--split",
        named / "split.tsv",
    ]
    code, told = harness(*options)
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    numbers = np.array([NAMES.index(name) for name in SORTED])
    labels = np.where(numbers == 0, -1, numbers % 5)
    np.testing.assert_array_equal(store.labels(range(N)), labels)
    np.testing.assert_array_equal(store.feature_block(range(N), range(2))[:, 0], numbers)
    split = np.where((numbers >= 1) & (numbers < 31), 1 + numbers % 3, 0)
    np.testing.assert_array_equal(store.split(range(N)), split)


def test_names_and_weights_go_together(root, named, harness):
    code, told = harness(
        "--edges", named / "people.csv", "--names", "--header", "--weights", "raw", "--directed"
    )
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    lines = [line.split(",") for line in (named / "people.csv").read_text().splitlines()[2:]]
    expected = np.zeros((N, N))
    for source, target, weight in lines:
        expected[SORTED.index(target), SORTED.index(source)] += float(weight)
    np.testing.assert_array_equal(to_scipy(store.adjacency(range(N), range(N))).toarray(), expected)


def test_words_as_labels_name_the_classes(root, files, harness):
    """The names are kept beside the card, and follow the label file when the graph is built again."""
    words = ["dog", "ape", "cat"]
    lines = [f"{v},{words[v % 3]}\n" for v in range(N - 1, 0, -1)]
    (files / "y.csv").write_text("node,label\n" + "".join(lines))
    (files / "split.csv").write_text("".join(["train\n", "test\n"] * (N // 2)))
    given = ["--edges", files / "edges.tsv", "--labels", files / "y.csv", "--split", files / "split.csv"]
    code, told = harness(*given)
    assert code == 0, told
    store, card = open_dataset(root, DatasetChoice(name="mine")), load_card(root, "mine")
    assert (store.task, store.classes) == ("single-label", 3)
    expected = np.array([-1, *(["ape", "cat", "dog"].index(words[v % 3]) for v in range(1, N))])
    np.testing.assert_array_equal(store.labels(range(N)), expected)
    np.testing.assert_array_equal(store.split(range(N)), np.where(expected < 0, 0, np.arange(N) % 2 * 2 + 1))
    assert list_class_names(root, card) == ["ape", "cat", "dog"]
    (files / "y.csv").write_text("node,label\n" + "".join(lines).replace("ape", "eel"))
    build_store(root, DatasetChoice(name="mine"))
    assert list_class_names(root, card) == ["cat", "dog", "eel"]


def test_class_names_of_a_removed_card_are_removed(root, files, harness):
    (files / "y.csv").write_text("".join(f"{'ab'[v % 2]}\n" for v in range(N)))
    assert harness("--edges", files / "edges.tsv", "--labels", files / "y.csv")[0] == 0
    (root / "datasets" / "imported" / "mine.yaml").unlink()
    assert harness("--edges", files / "edges.tsv")[0] == 0
    assert list_class_names(root, load_card(root, "mine")) is None


def test_named_vertices_may_have_named_classes(root, named, harness):
    (named / "y.csv").write_text("person,label\n" + "".join(f"{name},{name[0]} club\n" for name in NAMES))
    code, told = harness("--edges", named / "people.csv", "--names", "--header", "--labels", named / "y.csv")
    assert code == 0, told
    store = open_dataset(root, DatasetChoice(name="mine"))
    assert list_class_names(root, load_card(root, "mine")) == ["p club", "Ü club"]
    np.testing.assert_array_equal(store.labels(range(N)), [int(name[0] == "Ü") for name in SORTED])
