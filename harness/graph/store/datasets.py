"""Datasets by name: open one for training, build its store, verify it.

Stores, and the files that cards name, live under HARNESS_DATASETS, or in datasets/ under the project root. A store is
the folder store/NAME-HASH. The hash covers the card, the order of the vertices (a permutation, a partition, or the
user's partition file) and the versions of the code, so a changed card never opens an old store.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from harness.base.errors import UserError
from harness.graph.blocks import Blocks
from harness.graph.builders.job import BuildJob
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.staging import remove_store
from harness.graph.builders.store_build import MakePartition
from harness.graph.builders.writer import StorePlan, write_job_share, write_store
from harness.graph.cards.catalog import load_card
from harness.graph.cards.class_names import update_class_names
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.partitions.cache import CheckMemory
from harness.graph.partitions.file import get_partition_files
from harness.graph.partitions.of_dataset import (
    check_part_count,
    compute_missing_partitions,
    make_partition,
    make_partition_within_memory,
)
from harness.graph.store.contents import load_graph, open_contents
from harness.graph.store.location import (
    find_missing_file,
    find_sound_store,
    fits_in_memory,
    get_code_versions,
    is_sound,
    locate_store,
    make_file_record,
    make_not_built_error,
)
from harness.graph.store.manifest import hash_graph
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder


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


def _open(root: Path, choice: DatasetChoice, dtype: torch.dtype, check_memory: CheckMemory | None) -> Blocks:
    card = load_card(root, choice.name)
    folder = locate_store(root, card, choice)
    if folder.exists():
        return _open_store(folder, card, dtype)
    if not fits_in_memory(card):
        raise make_not_built_error(folder, root, card, choice)
    data = find_data_folder(root)
    graph = load_graph(card, data)
    partition = make_partition(choice, graph.n, data, lambda: graph.A, check_memory)
    files = {name: make_file_record(path) for name, path in card.list_source_files(data).items()}
    graph_hash = hash_graph(card.dump_data_fields(), get_code_versions(card), files)
    return MemoryStore(graph, choice.permutation, choice.seed, partition, graph_hash)


def build_store(
    root: Path,
    choice: DatasetChoice,
    *,
    side: int | None = None,
    resources: BuildResources | None = None,
    job: BuildJob | None = None,
    card: DatasetCard | None = None,
    make_partition: MakePartition | None = None,
) -> Path:
    """Build the store of a dataset, unless a sound store of the same files exists; return its folder.

    Args:
        side: the number of blocks along each side; chosen by the number of edges if None.
        resources: memory and workers. If several processes build one store, one builds and the others wait.
        job: do only this job's share of the build, alongside other jobs. If the store exists, nothing is left to do.
        card: the card of a dataset that is not in the catalog. Its files are checked before anything is built.
        make_partition: reads a partition that is computed already.
    """
    is_new = card is not None
    card, data = card or load_card(root, choice.name), find_data_folder(root)
    folder = locate_store(root, card, choice)
    sources = card.list_source_files(data) | get_partition_files(choice, data)
    if job and folder.exists():
        return folder
    if sound := find_sound_store(root, choice, side, card):
        return sound
    _check_fetched(root, card, choice)
    contents = open_contents(card, data)
    check_part_count(choice, contents.n)  # before any folder is made
    if is_new:
        contents.check_vertex_data()
    resources = resources or BuildResources()
    plan = StorePlan(
        contents,
        folder,
        choice,
        make_partition or partial(make_partition_within_memory, contents, choice, resources),
        resources,
        side,
        {name: make_file_record(path) for name, path in sources.items()},
    )
    if job:
        write_job_share(plan, job)
    else:
        write_store(plan, is_built=lambda: is_sound(folder, side, sources))
        update_class_names(root, card)
    return folder


def build_stores(root: Path, choices: Sequence[DatasetChoice], resources: BuildResources) -> list[Path]:
    """Build the stores of one dataset in several orders, its partitions first; return the folders."""
    card, folder = load_card(root, choices[0].name), find_data_folder(root)
    unbuilt = [choice for choice in choices if not locate_store(root, card, choice).exists()]
    partitions: dict[DatasetChoice, MakePartition] = {}
    if len({choice for choice in unbuilt if choice.is_computed_from_edges}) > 1:
        _check_fetched(root, card, choices[0])
        partitions = compute_missing_partitions(open_contents(card, folder), unbuilt, resources)
    return [
        build_store(root, choice, resources=resources, make_partition=partitions.get(choice))
        for choice in choices
    ]


@contextmanager
def remove_store_on_error(
    root: Path, card: DatasetCard, choice: DatasetChoice, *, may_be_older: bool
) -> Iterator[None]:
    """Remove the store if the block raises, unless the store may be older than the block."""
    folder = locate_store(root, card, choice)
    try:
        yield
    except BaseException:
        if not may_be_older:
            remove_store(folder)
        raise


def _check_fetched(root: Path, card: DatasetCard, choice: DatasetChoice) -> None:
    """Raise an error if published files of a dataset are missing."""
    if missing := find_missing_file(root, card):
        raise UserError(
            f"dataset {card.name} is not fetched: {missing} does not exist. On a machine with a network, fetch it: "
            f"harness data fetch {card.name}, then {choice.build_command}"
        )


def _open_store(folder: Path, card: DatasetCard, dtype: torch.dtype = torch.float32) -> Store:
    """Open a store and check the counts that the card expects now; the card may have changed since the build."""
    store = Store(folder, dtype=dtype)
    card.check_graph(store.n, store.features, store.manifest.counts)
    return store
