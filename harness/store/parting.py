"""The partition of a dataset that is to be built, in the memory that a build may take."""

from math import ceil
from typing import cast

from harness.errors import UserError
from harness.graph.partition import Method, Partition, memory_of
from harness.kernels.csr import Csr
from harness.store.choice import DatasetChoice
from harness.store.compose import Contents
from harness.store.partitions import partition_of
from harness.store.structure import bytes_of_structure, structure
from harness.store.task import GIB, Means


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
