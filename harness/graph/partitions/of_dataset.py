"""The partition of a dataset: read from a user's file, drawn at random, or computed once and cached."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import cast

import torch

from harness.base.errors import UserError
from harness.base.formatting import GIB
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.store_build import MakePartition
from harness.graph.partitions.cache import (
    CheckMemory,
    compute_partitions_in_parallel,
    load_or_compute_partition,
)
from harness.graph.partitions.file import get_partition_files, read_partition_file
from harness.graph.partitions.partition import (
    Method,
    Partition,
    assign_random_parts,
    estimate_partition_memory,
    order_by_part,
)
from harness.graph.partitions.pattern import estimate_pattern_memory, load_pattern
from harness.graph.store.contents import DatasetContents
from harness.kernels.csr import Csr
from harness.spec.dataset import DatasetChoice


def make_partition(
    choice: DatasetChoice,
    n: int,
    folder: Path,
    load_graph: Callable[[], Csr],
    check_memory: CheckMemory | None = lambda _: None,
) -> Partition | None:
    """Return the partition of `n` vertices, or None if the choice is not partitioned.

    `load_graph` returns the graph in its original order; it is called only for methods that need the edges. A computed
    partition is cached in the data folder; without `check_memory`, it must be cached already.
    """
    if not choice.partitioned:
        return None
    check_part_count(choice, n)
    if choice.file is not None:
        (path,) = get_partition_files(choice, folder).values()
        parts = torch.from_numpy(read_partition_file(path, n, choice.parts))
    elif choice.is_computed_from_edges:
        return load_or_compute_partition(choice, load_graph(), folder, check_memory)
    else:
        parts = assign_random_parts(n, choice.parts, choice.seed)
    return order_by_part(parts, choice.parts)


def check_part_count(choice: DatasetChoice, n: int) -> None:
    """Raise an error if there are more parts than vertices."""
    if choice.parts > n:
        raise UserError(
            f"dataset {choice.name} has {n:,} vertices, so it cannot be cut into parts = {choice.parts}: "
            f"1 to {n} are accepted."
        )


def make_partition_within_memory(
    contents: DatasetContents, choice: DatasetChoice, resources: BuildResources
) -> Partition | None:
    """Like `make_partition`, but raise an error if computing it would take more memory than a build may use."""

    def load_graph() -> Csr:
        _check_memory(choice, "the graph", estimate_pattern_memory(contents), resources)
        return load_pattern(contents)

    check_memory = partial(_check_method_memory, choice, contents, resources)
    return make_partition(choice, contents.n, contents.folder, load_graph, check_memory)


def compute_missing_partitions(
    contents: DatasetContents, choices: Sequence[DatasetChoice], resources: BuildResources
) -> dict[DatasetChoice, MakePartition]:
    """Compute partitions of one graph, as many in parallel as memory and workers allow.

    Return the functions that read them. A single choice is left to its own build.
    """
    choices = [choice for choice in dict.fromkeys(choices) if choice.is_computed_from_edges]
    if len(choices) < 2:
        return {}
    for choice in choices:
        check_part_count(choice, contents.n)
    _check_memory(choices[0], "the graph", estimate_pattern_memory(contents), resources)
    A = load_pattern(contents)
    needed = max(_check_method_memory(choice, contents, resources, A) for choice in choices)
    max_processes = min(len(choices), resources.workers, resources.memory // needed)
    made = compute_partitions_in_parallel(choices, A, contents.folder, resources, max_processes)
    return dict(zip(choices, made, strict=True))


def _check_method_memory(
    choice: DatasetChoice, contents: DatasetContents, resources: BuildResources, A: Csr
) -> int:
    """Return the bytes that a method takes; raise an error if that is more than the build may use."""
    method, directed = cast(Method, choice.partition), contents.card.directed
    needed = estimate_partition_memory(method, contents.n, A.nnz, choice.parts, directed=directed)
    if needed >= GIB:
        resources.log(f"{choice.partition} takes about {needed / GIB:.1f} GiB of memory")
    _check_memory(choice, choice.partition, needed, resources)
    return needed


def _check_memory(choice: DatasetChoice, what: str, needed: int, resources: BuildResources) -> None:
    if needed > resources.memory:
        raise UserError(
            f"{choice.partition} needs the whole graph {choice.name} in memory: {what} takes about "
            f"{needed / GIB:.1f} GiB, and {resources.memory / GIB:.1f} GiB are allowed. Allow more on a machine that "
            f"has more (--memory {ceil(1.1 * needed / GIB)}), compute the partition elsewhere and name its file "
            "(--partition file:NAME), or choose random, which takes almost no memory."
        )
