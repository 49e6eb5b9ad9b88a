"""Small datasets for the tests of the stores."""

import pytest
import yaml

from harness.store.card import DatasetCard
from harness.store.compose import compose

CARD = {
    "name": "toy",
    "source": {"kind": "sbm", "n": 53, "mean_degree": 6, "homophily": 0.7},
    "classes": 3,
    "features": {"kind": "gaussian", "width": 7},
    "labels": {"kind": "planted"},
    "split": {"kind": "random", "train": 0.4, "valid": 0.2},
}


@pytest.fixture
def make_card():
    """A card of a small graph, with changes."""
    return lambda **changes: DatasetCard.model_validate({**CARD, **changes})


@pytest.fixture
def make_graph(make_card, tmp_path):
    """Its graph."""
    return lambda **changes: compose(make_card(**changes), tmp_path)


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
