"""Datasets by name: open one for training. `building` builds stores.

Stores, and the files that cards name, live under HARNESS_DATASETS, or in datasets/ under the project root. A store is
the folder store/NAME-HASH. The hash covers the card, the order of the vertices (a permutation, a partition, or the
user's partition file) and the versions of the code, so a changed card never opens an old store.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from harness.graph.blocks import Blocks
from harness.graph.cards.catalog import load_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.store.contents import load_graph
from harness.graph.store.location import (
    fits_in_memory,
    get_code_versions,
    locate_store,
    make_file_record,
    make_not_built_error,
)
from harness.graph.store.manifest import hash_graph
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder

if TYPE_CHECKING:
    from harness.graph.partitions.cache import CheckMemory


def open_dataset(root: Path, choice: DatasetChoice, dtype: torch.dtype = torch.float32) -> Blocks:
    """Open a dataset: its store, or in memory if the graph is generated and small.

    Adjacency values have the given `dtype` if they come from a store, and float64 in memory. The partition of a graph
    in memory is computed and cached if no process has done so.
    """
    return _open(root, choice, dtype, lambda _: None)


def open_prepared_dataset(root: Path, choice: DatasetChoice, dtype: torch.dtype = torch.float32) -> Blocks:
    """Open a dataset in a rank. Like `open_dataset`, but a partition must have been computed (`prepare_dataset`)."""
    return _open(root, choice, dtype, None)


def prepare_dataset(root: Path, choice: DatasetChoice) -> None:
    """Compute and cache whatever ranks must not compute: the partition of a graph that is made in memory.

    Called once before the ranks of a run start. A store has its partition already.
    """
    if choice.is_computed_from_edges:
        card = load_card(root, choice.name)
        if fits_in_memory(card) and not locate_store(root, card, choice).exists():
            open_dataset(root, choice)


def _open(
    root: Path, choice: DatasetChoice, dtype: torch.dtype, check_memory: "CheckMemory | None"
) -> Blocks:
    card = load_card(root, choice.name)
    folder = locate_store(root, card, choice)
    if folder.exists():
        return _open_store(folder, card, dtype)
    if not fits_in_memory(card):
        raise make_not_built_error(folder, root, card, choice)
    data = find_data_folder(root)
    graph = load_graph(card, data)
    partition = None
    if choice.partitioned:
        from harness.graph.partitions.of_dataset import make_partition

        partition = make_partition(choice, graph.n, data, lambda: graph.A, check_memory)
    files = {name: make_file_record(path) for name, path in card.list_source_files(data).items()}
    graph_hash = hash_graph(card.dump_data_fields(), get_code_versions(card), files)
    return MemoryStore(graph, choice.permutation, choice.seed, partition, graph_hash)


def _open_store(folder: Path, card: DatasetCard, dtype: torch.dtype = torch.float32) -> Store:
    """Open a store and check the counts that the card expects now; the card may have changed since the build."""
    store = Store(folder, dtype=dtype)
    card.check_graph(store.n, store.features, store.manifest.counts)
    return store
