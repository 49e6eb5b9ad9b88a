"""Builds the stores of datasets: in one order or in several, all at once or the share of one job."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness.base.errors import UserError
from harness.graph.builders.job import BuildJob
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.staging import remove_store
from harness.graph.builders.store_build import MakePartition
from harness.graph.builders.writer import StorePlan, write_job_share, write_store
from harness.graph.cards.catalog import load_card
from harness.graph.cards.class_names import update_class_names
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.partitions.file import get_partition_files
from harness.graph.partitions.of_dataset import (
    check_part_count,
    compute_missing_partitions,
    make_partition_within_memory,
)
from harness.graph.store.contents import open_contents
from harness.graph.store.location import (
    find_missing_file,
    find_sound_store,
    is_sound,
    locate_store,
    make_file_record,
)
from harness.spec.dataset import DatasetChoice
from harness.spec.root import find_data_folder


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
