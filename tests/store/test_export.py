"""Exported graphs, read back by PyTorch Geometric, are the graphs that were imported."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from harness.base.errors import UserError
from harness.graph.builders.resources import BuildResources
from harness.graph.store import graph_export
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.graph_export import export_graph
from harness.graph.store.graph_import import ImportRequest, import_graph
from harness.spec.dataset import DatasetChoice

N, WIDTH = 41, 5
GRAPHS = {
    "plain": {},
    "directed": {"directed": True},
    "normalised": {"weights": "normalised"},
    "raw": {"weights": "raw", "directed": True},
    "sets": {"sets": True},
}
CHOICES = [
    DatasetChoice(name="mine"),
    DatasetChoice(name="mine", permutation="double", seed=2),
    DatasetChoice(name="mine", partition="random", parts=3),
]


@pytest.fixture(params=GRAPHS)
def graph(request, root, tmp_path):
    """An imported graph with loops and isolated vertices, and what must come out of an export of it."""
    options = dict(GRAPHS[request.param])
    generator = np.random.default_rng(4)
    directed, sets = options.get("directed", False), options.pop("sets", False)
    pairs = [pair for pair in itertools.combinations(range(N - 3), 2) if generator.random() < 0.15]
    pairs = [pair if generator.random() < 0.5 else pair[::-1] for pair in pairs]
    weights = generator.uniform(0.1, 3, len(pairs))
    loops = {3: 2.5, 11: 0.75}
    lines = [f"{a},{b},{w!r}\n" for (a, b), w in zip(pairs, weights.tolist(), strict=True)]
    (tmp_path / "edges.csv").write_text("".join(lines + [f"{v},{v},{w}\n" for v, w in loops.items()]))
    scale = 10.0 ** generator.integers(-30, 30, (N, 1))
    X = (generator.normal(size=(N, WIDTH)) * scale).astype(np.float32)
    X[:, 0] = np.arange(N)  # integers stay floats
    y = generator.integers(0, 2, (N, 4)) if sets else generator.integers(0, 6, N)
    y[5] = -1
    split = np.arange(N) % 4
    for name, array in (("x", X), ("y", y), ("split", split)):
        np.save(tmp_path / f"{name}.npy", array)
    files = {"features": "x.npy", "labels": "y.npy", "split": "split.npy", "edges": "edges.csv"}
    request_ = ImportRequest(
        name="mine", vertices=N, **options, **{key: tmp_path / file for key, file in files.items()}
    )
    import_graph(root, request_, CHOICES[0], BuildResources())
    edges = dict(zip(pairs, weights.tolist(), strict=True))
    if not directed:
        edges |= {(b, a): weight for (a, b), weight in edges.items()}
    if options.get("weights"):
        edges |= {(v, v): weight for v, weight in loops.items()}
    else:
        edges = dict.fromkeys(edges, 1.0)
    return {
        "edges": edges,
        "X": X,
        "y": y,
        "split": np.where(np.arange(N) == 5, 0, split),
        "options": options,
    }


def collect_edges(ends, weights):
    values = [1.0] * len(ends[0]) if weights is None else np.asarray(weights).reshape(-1).tolist()
    edges = dict(zip(zip(*np.asarray(ends).tolist(), strict=True), values, strict=True))
    assert len(edges) == len(values), "every edge is written once"
    return edges


@pytest.mark.parametrize("choice", CHOICES, ids=["plain", "permuted", "partitioned"])
def test_pyg_reads_the_same_graph(root, tmp_path, graph, choice, monkeypatch):
    monkeypatch.setattr(graph_export, "FEATURES", 64)
    build_store(root, choice)
    out = tmp_path / "mine.pt"
    assert export_graph(root, choice, out) == out
    data = Data.from_dict(torch.load(out, weights_only=True))
    assert data.validate()
    assert data.num_nodes == N
    assert collect_edges(data.edge_index, data.edge_attr) == graph["edges"]
    np.testing.assert_array_equal(data.x, graph["X"])
    np.testing.assert_array_equal(data.y, graph["y"])
    for value, name in enumerate(("train_mask", "val_mask", "test_mask"), start=1):
        np.testing.assert_array_equal(data[name], graph["split"] == value)


def test_import_of_an_export_is_the_same_store(root, tmp_path, graph):
    choice, out = CHOICES[0], tmp_path / "mine.pt"
    export_graph(root, choice, out)
    again = ImportRequest(name="again", edges=out, **graph["options"])
    import_graph(root, again, DatasetChoice(name="again"), BuildResources())
    first, second = open_dataset(root, choice), open_dataset(root, DatasetChoice(name="again"))
    everyone = range(N)
    for one, other in zip(
        first.adjacency(everyone, everyone), second.adjacency(everyone, everyone), strict=True
    ):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    for read in ("labels", "split"):
        assert torch.equal(getattr(first, read)(everyone), getattr(second, read)(everyone))
    columns = range(WIDTH)
    assert torch.equal(first.feature_block(everyone, columns), second.feature_block(everyone, columns))


NAMES = ["ape, small", "cat", 'dog "big"', "Äffchen"]


@pytest.fixture
def animals(root, tmp_path):
    """A graph whose labels are words."""
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n2,3\n3,4\n")
    words = pd.DataFrame({"label": ["cat", "Äffchen", 'dog "big"', "ape, small", "cat"]})
    words.to_csv(tmp_path / "words.csv", index=False)
    files = {"edges": tmp_path / "edges.csv", "labels": tmp_path / "words.csv"}
    choice = DatasetChoice(name="animals")
    import_graph(root, ImportRequest(name="animals", **files), choice, BuildResources())
    return choice


def test_pyg_keeps_the_names_of_classes(root, tmp_path, animals):
    out = export_graph(root, animals, tmp_path / "animals.pt")
    data = Data.from_dict(torch.load(out, weights_only=True))
    assert data.class_names == NAMES
    assert [data.class_names[label] for label in data.y] == [NAMES[at] for at in (1, 3, 2, 0, 1)]
    import_graph(root, ImportRequest(name="again", edges=out), DatasetChoice(name="again"), BuildResources())


def test_graph_whose_classes_are_numbers_is_exported_without_names(root, tmp_path):
    toy = DatasetChoice(name="toy")
    assert "class_names" not in torch.load(export_graph(root, toy, tmp_path / "toy.pt"))


def test_generated_graph_is_exported_without_a_store(root, tmp_path):
    out = export_graph(root, DatasetChoice(name="toy"), tmp_path / "toy.pt")
    data, blocks = Data.from_dict(torch.load(out)), open_dataset(root, DatasetChoice(name="toy"))
    assert data.num_edges == blocks.nnz - blocks.n
    np.testing.assert_array_equal(data.y, blocks.labels(range(blocks.n)))


def test_export_is_refused_before_anything_is_written(root, tmp_path, write_card):
    toy = DatasetChoice(name="toy")
    (tmp_path / "there.pt").touch()
    with pytest.raises(UserError, match=r"there.pt exists. Choose another path"):
        export_graph(root, toy, tmp_path / "there.pt")
    with pytest.raises(UserError, match="There is no folder"):
        export_graph(root, toy, tmp_path / "nowhere" / "toy.pt")
    write_card(root, "large", source={"kind": "rmat", "scale": 30}, labels={"kind": "degree"})
    with pytest.raises(UserError, match="Build it: harness data build large"):
        export_graph(root, DatasetChoice(name="large"), tmp_path / "large.pt")
    assert not [
        path for path in tmp_path.iterdir() if path.name.startswith((".toy", "toy", ".large", "large"))
    ]
