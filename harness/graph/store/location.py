"""Where the store of a dataset is, and whether it is built.

This is known without torch: from the card, the order of the vertices, the versions of the code and the manifest.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from harness.base.errors import UserError
from harness.base.files import hash_file
from harness.base.formatting import format_count
from harness.base.progress import OnStep, ignore_step
from harness.graph.cards.catalog import load_card
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.partitions import partitioners
from harness.graph.partitions.file import get_partition_files
from harness.graph.store.manifest import SCHEMA, FileRecord, StoreFiles, hash_graph, read_manifest
from harness.spec.dataset import COMPUTED, DatasetChoice
from harness.spec.root import find_data_folder

VERSION = 1
"""Changes whenever normalisation, readers or recipes give another graph for the same card."""
MAX_EDGES_IN_MEMORY = 1 << 20
"""A generated graph with at most this many edges and feature values is made in memory and needs no store."""


def locate_store(root: Path, card: DatasetCard, choice: DatasetChoice) -> Path:
    """Return the folder of a store, whether or not it is built."""
    files = get_partition_files(choice, find_data_folder(root))
    inputs = {
        "schema": SCHEMA,
        "versions": get_store_versions(card, choice),
        "card": card.dump_data_fields(),
        "choice": {**choice.model_dump(), "seed": choice.effective_seed},
        "brought": {name: make_file_record(path).sha256 for name, path in files.items()},
    }
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return find_data_folder(root) / "store" / f"{card.name}-{digest[:10]}"


def find_sound_store(
    root: Path, choice: DatasetChoice, side: int | None = None, card: DatasetCard | None = None
) -> Path | None:
    """Return the folder of a store that another build would not change, or None.

    Args:
        side: the number of blocks along each side; any if None.
        card: the card of a dataset that is not in the catalog.
    """
    card, data = card or load_card(root, choice.name), find_data_folder(root)
    folder = locate_store(root, card, choice)
    if not is_sound(folder, side, card.list_source_files(data) | get_partition_files(choice, data)):
        return None
    from harness.graph.builders.staging import discard_idle_staging

    discard_idle_staging(folder)  # left by a builder that was killed after it had published the store
    manifest, _ = read_manifest(folder)
    # The card may have changed since the build.
    card.check_graph(manifest.n, manifest.features, manifest.counts)
    return folder


def is_sound(folder: Path, side: int | None, sources: Mapping[str, Path]) -> bool:
    """Return True if building the store again would give the same bytes."""
    if not folder.exists():
        return False
    try:
        files = StoreFiles(folder)
        files.verify()
    except UserError:
        return False
    records = files.manifest.provenance.sources
    same_files = all(_is_unchanged(path, records.get(name)) for name, path in sources.items())
    return same_files and side in (None, files.manifest.grid.vertices)


def is_built(root: Path, choice: DatasetChoice) -> bool:
    """Return True if `open_dataset` can open the dataset, from its store or in memory."""
    card = load_card(root, choice.name)
    return locate_store(root, card, choice).exists() or fits_in_memory(card)


def describe_built(root: Path, card: DatasetCard) -> Literal["yes", "in memory", "no"]:
    """Return whether a store of the graph exists, in any order of its vertices, or whether it is made in memory."""
    if list_store_folders(root, card):
        return "yes"
    return "in memory" if fits_in_memory(card) else "no"


def find_graph_hashes(root: Path, card: DatasetCard) -> set[str]:
    """Return the hashes (`hash_graph`) that the graph of a card can have here, without building it.

    A graph without source files has one. Another graph has the hash of each of its stores, in any order of its
    vertices, because their source files may differ.
    """
    fields, versions = card.dump_data_fields(), get_code_versions(card)
    if not card.list_source_files(find_data_folder(root)):
        return {hash_graph(fields, versions, {})}
    hashes = set()
    for folder in list_store_folders(root, card):
        with suppress(UserError):  # a store of an earlier version
            manifest, _ = read_manifest(folder)
            if hash_graph(manifest.provenance.card, manifest.provenance.versions, {}) == hash_graph(
                fields, versions, {}
            ):
                hashes.add(manifest.graph_hash)
    return hashes


def list_store_folders(root: Path, card: DatasetCard) -> list[Path]:
    """Return the folders of the stores of a graph, in any order of its vertices and of any version of its card."""
    folders = (find_data_folder(root) / "store").glob(f"{card.name}-*")
    return [
        folder
        for folder in sorted(folders)
        if re.fullmatch(r"-[0-9a-f]{10}", folder.name.removeprefix(card.name))
    ]


def verify_store(root: Path, choice: DatasetChoice, on_step: OnStep = ignore_step) -> Path:
    """Compare every file of a store with its checksum; return the folder of the store."""
    card = load_card(root, choice.name)
    folder = locate_store(root, card, choice)
    if not folder.exists():
        raise make_not_built_error(folder, root, card, choice)
    StoreFiles(folder).verify(on_step)
    return folder


def make_not_built_error(folder: Path, root: Path, card: DatasetCard, choice: DatasetChoice) -> UserError:
    """Return the error for a store that is not built, with the commands that build it."""
    return UserError(
        f"dataset {choice.name} is not built: {folder} does not exist. Build it: {suggest_build(root, card, choice)}"
    )


def list_build_commands(root: Path, card: DatasetCard, choice: DatasetChoice | None = None) -> list[str]:
    """Return the commands that make the store of a dataset: a build, after a fetch if published files are missing.

    `choice` is the order of the vertices; by default that of the graph.
    """
    fetch = [f"harness data fetch {card.name}"] if find_missing_file(root, card) else []
    return [*fetch, (choice or DatasetChoice(name=card.name)).build_command]


def suggest_build(root: Path, card: DatasetCard, choice: DatasetChoice | None = None) -> str:
    """Return the commands of `list_build_commands` as a part of a sentence."""
    return ", then ".join(list_build_commands(root, card, choice))


def find_missing_file(root: Path, card: DatasetCard) -> Path | None:
    """Return the first published file of a dataset that is not in the data folder; None if all are there."""
    folder = find_data_folder(root)
    paths = (remote.path(folder) for remote in card.source.list_remote_files())
    return next((path for path in paths if not path.exists()), None)


def describe_order(choice: DatasetChoice) -> str:
    """Return the order of the vertices in words."""
    if choice.partitioned:
        parts = f"partition {choice.partition} of {format_count(choice.parts, 'part')}"
        return f"{parts}, seed {choice.seed}" if choice.effective_seed else parts
    if choice.permutation == "none":
        return "original order"
    return f"{choice.permutation} permutation, seed {choice.seed}"


def get_code_versions(card: DatasetCard) -> dict[str, int]:
    """Return the versions of all code that the data of this card depends on."""
    generator = card.source.version
    return {"recipes": VERSION} | ({} if generator is None else {"generator": generator})


def get_store_versions(card: DatasetCard, choice: DatasetChoice) -> dict[str, int]:
    """Return the versions of all code that a store of this choice depends on."""
    computed = {"partition": partitioners.VERSION} if choice.partition in COMPUTED else {}
    return get_code_versions(card) | computed


def fits_in_memory(card: DatasetCard) -> bool:
    """Return True for a graph that is made in memory and needs no store."""
    size = card.source.bound_size()
    if size is None:
        return False
    width = getattr(card.features, "width", 0)
    return size.edges + size.vertices * width <= MAX_EDGES_IN_MEMORY


def make_file_record(path: Path) -> FileRecord:
    """Return the size and the checksum of a file."""
    return FileRecord(bytes=path.stat().st_size, sha256=hash_file(path))


def _is_unchanged(path: Path, record: FileRecord | None) -> bool:
    """Return True if a source file is what the build read. A store stays valid if its source file is gone."""
    return not path.exists() or make_file_record(path) == record
