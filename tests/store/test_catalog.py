"""Every card of the catalog is right, and the tiny ones are what the smoke test needs."""

from pathlib import Path

import pytest

from harness.graph.cards.catalog import list_cards, load_card
from harness.graph.model import TRAIN
from harness.graph.store.building import build_store
from harness.graph.store.datasets import open_dataset
from harness.graph.store.reader import Store
from harness.graph.store.shard_balance import measure_shard_balance
from harness.kernels.csr import to_scipy
from harness.spec.dataset import DatasetChoice

ROOT = Path(__file__).parents[2]
DRAWN_IN_MEMORY = ["directed-toy", "sbm-4096", "tiny-lattice", "tiny-rmat", "tiny-sbm"]


@pytest.fixture(autouse=True)
def no_stores(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_DATASETS", str(tmp_path))


@pytest.mark.parametrize("name", list_cards(ROOT))
def test_every_card_is_accepted_and_described(name):
    card = load_card(ROOT, name)
    assert card.description
    assert bool(card.licence) == bool(card.source.list_remote_files())


@pytest.mark.parametrize("name", DRAWN_IN_MEMORY)
def test_small_datasets_are_made_where_they_are_needed(name):
    blocks = open_dataset(ROOT, DatasetChoice(name=name, permutation="double"))
    everyone = range(blocks.n)
    assert blocks.nnz == blocks.adjacency(everyone, everyone).nnz
    assert (blocks.split(everyone) == TRAIN).any()
    assert set(blocks.labels(everyone).tolist()) == set(range(blocks.classes))


def test_the_timed_block_model_has_the_size_it_is_quoted_with():
    blocks = open_dataset(ROOT, DatasetChoice(name="sbm-4096"))
    assert (blocks.n, blocks.features, blocks.classes) == (4096, 64, 8)
    assert (blocks.nnz - blocks.n) / blocks.n == pytest.approx(15, abs=0.2)


def test_the_directed_toy_is_not_its_own_transpose():
    blocks = open_dataset(ROOT, DatasetChoice(name="directed-toy"))
    A = to_scipy(blocks.adjacency(range(blocks.n), range(blocks.n)))
    assert blocks.directed
    assert (A != A.T).nnz > blocks.nnz / 2


@pytest.mark.slow
def test_the_large_graph_has_the_counts_of_its_card(tmp_path):
    store = Store(build_store(ROOT, DatasetChoice(name="rmat-17")))
    assert store.nnz == load_card(ROOT, "rmat-17").expected.nnz_adj
    assert dict(measure_shard_balance(store, shards=8))["double"] < 1.25
