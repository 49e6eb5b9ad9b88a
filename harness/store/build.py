"""Datasets by name: open one for training, build its store, verify it.

Stores, and the files that cards name, live under HARNESS_DATASETS, or datasets/ under the project root. A store
is the folder store/NAME-HASH: the hash stands for the card, the order of the vertices (permuted, or partitioned, by
the user's file if so chosen) and the versions of what wrote it, so that a changed card never meets an old store.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import cast

import torch

from harness.errors import UserError
from harness.files import sha256_of
from harness.graph.blocks import Blocks
from harness.graph.model import Graph
from harness.graph.partition import Method, Partition, memory_of
from harness.kernels.csr import Csr
from harness.spec.dataset import DatasetChoice
from harness.store.card import DatasetCard
from harness.store.catalog import load_card
from harness.store.compose import Contents, check_counts, compose, contents, generator_of, source_files
from harness.store.manifest import SCHEMA, FileRecord
from harness.store.memory import MemoryStore
from harness.store.partitions import brought, bytes_of_structure, check_parts, partition_of, structure
from harness.store.reader import Store
from harness.store.shard import Order, code_versions, write, write_share
from harness.store.share import Share
from harness.store.task import GIB, Means
from harness.store.work import discard_if_idle, take_back

SMALL = 1 << 20
"""A drawn graph with at most this many draws and features is made in memory, where it is needed."""


def data_folder(root: Path) -> Path:
    """Where stores and source files are: HARNESS_DATASETS, or datasets/ under the root."""
    return Path(os.environ.get("HARNESS_DATASETS") or root / "datasets")


def store_folder(root: Path, card: DatasetCard, choice: DatasetChoice) -> Path:
    """The folder of a store, built or not."""
    files = brought(choice, data_folder(root))
    inputs = {
        "schema": SCHEMA,
        "versions": code_versions(card, choice),
        "card": card.content(),
        "choice": {**choice.model_dump(), "seed": choice.drawn_by},
        "brought": {name: _record(path).sha256 for name, path in files.items()},
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return data_folder(root) / "store" / f"{card.name}-{digest[:10]}"


def open_dataset(root: Path, choice: DatasetChoice, dtype: torch.dtype = torch.float32) -> Blocks:
    """The blocks of a dataset: from its store if there is one, else in memory if it is drawn and small.

    The weights of a store come in `dtype`, which is that of the run; memory has them in double precision.
    """
    card = load_card(root, choice.name)
    folder = store_folder(root, card, choice)
    if folder.exists():
        return _opened(folder, card, dtype)
    if _is_small(card):
        graph, partition = _composed(root, card, choice)
        return MemoryStore(graph, choice.permutation, choice.seed, partition)
    raise _not_built(folder, choice)


def build(
    root: Path,
    choice: DatasetChoice,
    *,
    grid: int | None = None,
    means: Means | None = None,
    share: Share | None = None,
    card: DatasetCard | None = None,
) -> Path:
    """The folder of a dataset's store, after building it unless it is there, whole and from the same files.

    `grid` sets the number of blocks along each side. Of several builders at once, one builds and the others wait. With
    a `share`, only that is done, beside other jobs that do theirs; nothing, if there is a store. A `card` is of a
    dataset that the catalog does not have yet: what its files say is looked through before anything is made.
    """
    is_new, card = card is not None, card or load_card(root, choice.name)
    folder = store_folder(root, card, choice)
    sources = source_files(card, data_folder(root)) | brought(choice, data_folder(root))
    if share and folder.exists():
        return folder
    if _is_sound(folder, grid, sources):
        discard_if_idle(folder)  # of a builder that was killed when all was done
        return _opened(folder, card).folder
    _require(card, sources)
    records = {name: _record(path) for name, path in sources.items()}
    found = contents(card, data_folder(root))
    check_parts(choice, found.n)  # before a folder is made for it
    if is_new:
        found.check()
    means = means or Means()
    order = Order(choice, partial(parted, found, choice, means))
    if share:
        write_share(found, folder, order, means, share, grid=grid, sources=records)
    else:
        write(
            found,
            folder,
            order,
            means,
            grid=grid,
            sources=records,
            unless=lambda: _is_sound(folder, grid, sources),
        )
    return folder


@contextmanager
def taken_back(root: Path, card: DatasetCard, choice: DatasetChoice, *, unless: bool) -> Iterator[None]:
    """Leaves nothing of a store that was made in vain, `unless` it, or a part of it, may have been there before."""
    folder = store_folder(root, card, choice)
    try:
        yield
    except BaseException:
        if not unless:
            take_back(folder)
        raise


def _require(card: DatasetCard, sources: dict[str, Path]) -> None:
    """Says how to come by a file that somebody publishes, where it is not there."""
    lacking = [remote.file for remote in card.source.remotes() if not sources[remote.file].exists()]
    if lacking:
        raise UserError(
            f"dataset {card.name} is not fetched: there is no {sources[lacking[0]]}. Fetch it, where there is a "
            f"network: harness data fetch {card.name}"
        )


def verify(root: Path, choice: DatasetChoice) -> Path:
    """The folder of a store, after every file in it was held against its checksum."""
    folder = store_folder(root, load_card(root, choice.name), choice)
    if not folder.exists():
        raise _not_built(folder, choice)
    Store(folder).verify()
    return folder


def _composed(root: Path, card: DatasetCard, choice: DatasetChoice) -> tuple[Graph, Partition | None]:
    graph = compose(card, data_folder(root))
    return graph, partition_of(choice, graph.n, data_folder(root), lambda: graph.A)


def _opened(folder: Path, card: DatasetCard, dtype: torch.dtype = torch.float32) -> Store:
    """The store, held against what the card expects today: it may have been built before somebody said so."""
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
        f"dataset {choice.name} is not built: there is no {folder}. Build it: {choice.build_command}"
    )


def _is_sound(folder: Path, grid: int | None, sources: dict[str, Path]) -> bool:
    """Whether a store is there that `build` would make again, byte for byte."""
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
    """Whether a source file is the one that was read. One that is gone cannot be read again: the store stands."""
    return not path.exists() or _record(path) == record


def _record(path: Path) -> FileRecord:
    return FileRecord(bytes=path.stat().st_size, sha256=sha256_of(path))


# The partition of a dataset that is to be built, in the memory that a build may take.


def parted(found: Contents, choice: DatasetChoice, means: Means) -> Partition | None:
    """The partition of a choice. What has to see the graph whole is refused where that takes too much."""

    def graph() -> Csr:
        _check_memory(choice, "the graph", bytes_of_structure(found), means)
        return structure(found)

    def allow(A: Csr) -> None:
        method, directed = cast(Method, choice.partition), found.card.directed
        needed = memory_of(method, found.n, A.nnz, choice.parts, directed=directed)
        means.say(f"{choice.partition} takes about {needed / GIB:.1f} GiB of memory")
        _check_memory(choice, choice.partition, needed, means)

    return partition_of(choice, found.n, found.folder, graph, allow)


def _check_memory(choice: DatasetChoice, what: str, needed: int, means: Means) -> None:
    if needed > means.memory:
        raise UserError(
            f"{choice.partition} has to see {choice.name} whole: {what} takes about {needed / GIB:.1f} GiB of memory, "
            f"and {means.memory / GIB:.1f} are allowed. Allow more where there is more (--memory "
            f"{ceil(1.1 * needed / GIB)}), compute the partition elsewhere and bring it (--partition file:NAME), or "
            "choose random, which takes next to none."
        )
