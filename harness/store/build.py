"""Datasets by name: open one for training, build its store, verify it.

Stores, and the files that cards name, live under HARNESS_DATASETS, or datasets/ under the project root. A store
is the folder store/NAME-HASH: the hash stands for the card, the order of the vertices (permuted, or partitioned, by
the user's file if so chosen) and the versions of the code, so that a changed card never meets an old store.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import cast

import torch

from harness.errors import UserError
from harness.files import hash_file
from harness.graph.blocks import Blocks
from harness.graph.model import Graph
from harness.graph.partition import Method, Partition, memory_of
from harness.graph.partitioners import COMPUTED_FROM_EDGES
from harness.kernels.csr import Csr
from harness.progress import OnStep, ignore_step
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder
from harness.store.catalog import load_card
from harness.store.compose import Contents, check_counts, compose, contents, generator_of, source_files
from harness.store.dataset_card import DatasetCard
from harness.store.manifest import SCHEMA, FileRecord
from harness.store.memory_store import MemoryStore
from harness.store.partitions import (
    bytes_of_structure,
    check_parts,
    compute_side_by_side,
    partition_files,
    partition_of,
    structure,
)
from harness.store.reader import Store
from harness.store.shard import Order, code_versions, write, write_share
from harness.store.task import GIB, BuildShare, MakePartition, Means
from harness.store.work import discard_if_idle, remove_store

SMALL = 1 << 20
"""A drawn graph with at most this many draws and features is made in memory and needs no store."""


def store_folder(root: Path, card: DatasetCard, choice: DatasetChoice) -> Path:
    """The folder of a store, built or not."""
    files = partition_files(choice, find_data_folder(root))
    inputs = {
        "schema": SCHEMA,
        "versions": code_versions(card, choice),
        "card": card.content(),
        "choice": {**choice.model_dump(), "seed": choice.drawn_by},
        "brought": {name: _record(path).sha256 for name, path in files.items()},
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return find_data_folder(root) / "store" / f"{card.name}-{digest[:10]}"


def open_dataset(root: Path, choice: DatasetChoice, dtype: torch.dtype = torch.float32) -> Blocks:
    """The blocks of a dataset: from its store, or else in memory if the graph is drawn and small.

    The weights of a store have the `dtype` of the run; those in memory have double precision.
    """
    card = load_card(root, choice.name)
    folder = store_folder(root, card, choice)
    if folder.exists():
        return _opened(folder, card, dtype)
    if _is_small(card):
        graph, partition = _composed(root, card, choice)
        return MemoryStore(graph, choice.permutation, choice.seed, partition)
    raise _not_built(folder, choice)


def is_built(root: Path, choice: DatasetChoice) -> bool:
    """True if `open_dataset` finds the dataset, in its store or in memory."""
    card = load_card(root, choice.name)
    return store_folder(root, card, choice).exists() or _is_small(card)


def build(
    root: Path,
    choice: DatasetChoice,
    *,
    grid: int | None = None,
    means: Means | None = None,
    share: BuildShare | None = None,
    card: DatasetCard | None = None,
    make_partition: MakePartition | None = None,
) -> Path:
    """Builds the store of a dataset, unless a whole store of the same files exists; returns its folder.

    `grid` sets the number of blocks along each side. Of several builders at once, one builds and the others wait. With
    a `share`, the job does that share alone, beside other jobs, or nothing if the store exists. A `card` describes a
    dataset that the catalog lacks: its files are checked before anything is made. `make_partition` reads a partition
    that is computed already.
    """
    is_new, card = card is not None, card or load_card(root, choice.name)
    folder = store_folder(root, card, choice)
    sources = source_files(card, find_data_folder(root)) | partition_files(choice, find_data_folder(root))
    if share and folder.exists():
        return folder
    if _is_sound(folder, grid, sources):
        discard_if_idle(folder)  # left by a builder that was killed after the store was whole
        return _opened(folder, card).folder
    _require(card, sources)
    records = {name: _record(path) for name, path in sources.items()}
    graph = contents(card, find_data_folder(root))
    check_parts(choice, graph.n)  # before its folder is made
    if is_new:
        graph.check()
    means = means or Means()
    order = Order(choice, make_partition or partial(dataset_partition, graph, choice, means))
    if share:
        write_share(graph, folder, order, means, share, grid=grid, sources=records)
    else:
        write(
            graph,
            folder,
            order,
            means,
            grid=grid,
            sources=records,
            unless=lambda: _is_sound(folder, grid, sources),
        )
    return folder


def build_all(root: Path, choices: Sequence[DatasetChoice], means: Means) -> list[Path]:
    """Builds the stores of one dataset in several orders, its partitions first; returns the folders."""
    made = _partitions(root, choices, means)
    return [build(root, choice, means=means, make_partition=made.get(choice)) for choice in choices]


@contextmanager
def removed_on_error(root: Path, card: DatasetCard, choice: DatasetChoice, *, unless: bool) -> Iterator[None]:
    """Removes a store that was made in vain, `unless` the store or a part of it may be older than this block."""
    folder = store_folder(root, card, choice)
    try:
        yield
    except BaseException:
        if not unless:
            remove_store(folder)
        raise


def _require(card: DatasetCard, sources: dict[str, Path]) -> None:
    """Refuses a dataset whose published files are not fetched, and says how to fetch these files."""
    lacking = [remote.file for remote in card.source.remotes() if not sources[remote.file].exists()]
    if lacking:
        raise UserError(
            f"dataset {card.name} is not fetched: {sources[lacking[0]]} does not exist. On a machine with a network, "
            f"fetch it: harness data fetch {card.name}"
        )


def verify(root: Path, choice: DatasetChoice, on_step: OnStep = ignore_step) -> Path:
    """Compares every file of a store with its checksum; returns the folder of the store."""
    folder = store_folder(root, load_card(root, choice.name), choice)
    if not folder.exists():
        raise _not_built(folder, choice)
    Store(folder).verify(on_step)
    return folder


def _composed(root: Path, card: DatasetCard, choice: DatasetChoice) -> tuple[Graph, Partition | None]:
    graph = compose(card, find_data_folder(root))
    return graph, partition_of(choice, graph.n, find_data_folder(root), lambda: graph.A)


def _opened(folder: Path, card: DatasetCard, dtype: torch.dtype = torch.float32) -> Store:
    """Opens a store and checks the counts that the card expects today: the card may have changed since the build."""
    store = Store(folder, dtype=dtype)
    check_counts(card, store.n, store.features, store.manifest.counts)
    return store


def _is_small(card: DatasetCard) -> bool:
    generator = generator_of(card)
    if generator is None:
        return False
    width = getattr(card.features, "width", 0)
    return generator.draws + generator.n * width <= SMALL


def _not_built(folder: Path, choice: DatasetChoice) -> UserError:
    return UserError(
        f"dataset {choice.name} is not built: {folder} does not exist. Build it: {choice.build_command}"
    )


def _is_sound(folder: Path, grid: int | None, sources: dict[str, Path]) -> bool:
    """True if `build` would make the same store again, byte for byte."""
    if not folder.exists():
        return False
    try:
        store = Store(folder)
        store.verify()
    except UserError:
        return False
    read = store.manifest.provenance.sources
    same_files = all(_unchanged(path, read.get(name)) for name, path in sources.items())
    return same_files and grid in (None, store.manifest.grid.vertices)


def _unchanged(path: Path, record: FileRecord | None) -> bool:
    """True if a source file is as the build read it. A store whose source file is gone stays valid."""
    return not path.exists() or _record(path) == record


def _record(path: Path) -> FileRecord:
    return FileRecord(bytes=path.stat().st_size, sha256=hash_file(path))


# The partition of a dataset during a build, within the memory of the build.


def dataset_partition(contents: Contents, choice: DatasetChoice, means: Means) -> Partition | None:
    """The partition of a choice. A method that needs more memory than is allowed is refused."""

    def graph() -> Csr:
        _check_memory(choice, "the graph", bytes_of_structure(contents), means)
        return structure(contents)

    allow = partial(_allow, choice, contents, means)
    return partition_of(choice, contents.n, contents.folder, graph, allow)


def _allow(choice: DatasetChoice, contents: Contents, means: Means, A: Csr) -> int:
    """The bytes that a method takes; more than are allowed are refused."""
    method, directed = cast(Method, choice.partition), contents.card.directed
    needed = memory_of(method, contents.n, A.nnz, choice.parts, directed=directed)
    means.say(f"{choice.partition} takes about {needed / GIB:.1f} GiB of memory")
    _check_memory(choice, choice.partition, needed, means)
    return needed


def _partitions(
    root: Path, choices: Sequence[DatasetChoice], means: Means
) -> dict[DatasetChoice, MakePartition]:
    """Computes the partitions that no store has, as many at a time as the memory and the workers of the build allow."""
    card, folder = load_card(root, choices[0].name), find_data_folder(root)
    asked = [choice for choice in dict.fromkeys(choices) if choice.partition in COMPUTED_FROM_EDGES]
    lacking = [choice for choice in asked if not store_folder(root, card, choice).exists()]
    if len(lacking) < 2:
        return {}
    _require(card, source_files(card, folder))
    graph = contents(card, folder)
    for choice in lacking:
        check_parts(choice, graph.n)
    _check_memory(lacking[0], "the graph", bytes_of_structure(graph), means)
    A = structure(graph)
    needed = max(_allow(choice, graph, means, A) for choice in lacking)
    at_once = min(len(lacking), means.workers, means.memory // needed)
    return dict(zip(lacking, compute_side_by_side(lacking, A, folder, means, at_once), strict=True))


def _check_memory(choice: DatasetChoice, what: str, needed: int, means: Means) -> None:
    if needed > means.memory:
        raise UserError(
            f"{choice.partition} has to see {choice.name} whole: {what} takes about {needed / GIB:.1f} GiB of memory, "
            f"and {means.memory / GIB:.1f} are allowed. Allow more on a machine that has more (--memory "
            f"{ceil(1.1 * needed / GIB)}), compute the partition elsewhere and name its file (--partition file:NAME), "
            "or choose random, which takes next to none."
        )
