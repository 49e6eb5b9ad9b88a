"""Small datasets for the tests of the stores."""

import numpy as np
import pytest
import yaml

from harness.graph.builders.writer import StorePlan, write_store
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.model import RawGraph
from harness.graph.sources.stream import stream_graph
from harness.graph.store.contents import DatasetContents, load_graph
from harness.kernels.csr import to_scipy

CARD = {
    "name": "toy",
    "source": {"kind": "sbm", "n": 53, "mean_degree": 6, "homophily": 0.7},
    "classes": 3,
    "features": {"kind": "gaussian", "width": 7},
    "labels": {"kind": "planted"},
    "split": {"kind": "random", "train": 0.4, "valid": 0.2},
}


@pytest.fixture(scope="session")
def make_card():
    """A card of a small graph, with changes."""
    return lambda **changes: DatasetCard.model_validate({**CARD, **changes})


@pytest.fixture
def make_graph(make_card, tmp_path):
    """Its graph."""
    return lambda **changes: load_graph(make_card(**changes), tmp_path)


@pytest.fixture(scope="session")
def write_graph(make_card):
    """Writes the store of a graph that is there already, as if files had brought it."""

    def put(graph, folder, choice, partition=None, grid=None):
        given = {key: {"kind": "file"} for key in ("features", "labels", "split")}
        source = {"kind": "edges", "path": "edges.txt"}
        card = make_card(source=source, classes=graph.classes, directed=graph.directed, **given)
        entries = to_scipy(graph.A).tocoo()
        edges = entries.row != entries.col
        raw = RawGraph(
            graph.n,
            entries.col[edges].astype(np.int64),
            entries.row[edges].astype(np.int64),
            graph.X.numpy(),
            graph.y.numpy(),
            graph.split.numpy(),
        )
        contents = DatasetContents(card, folder.parent, stream_graph(raw))
        write_store(StorePlan(contents, folder, choice, lambda: partition, side=grid))

    return put


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project root whose catalog holds the card `toy`, and a function that adds cards."""
    monkeypatch.delenv("HARNESS_DATASETS", raising=False)
    add_card(tmp_path, "toy")
    return tmp_path


@pytest.fixture
def write_card():
    return add_card


def add_card(root, name, **changes):
    catalog = root / "datasets" / "catalog"
    catalog.mkdir(parents=True, exist_ok=True)
    fields = {key: value for key, value in {**CARD, **changes}.items() if key != "name" and value is not None}
    (catalog / f"{name}.yaml").write_text(yaml.safe_dump(fields))
