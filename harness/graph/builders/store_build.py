"""The state that all steps of a build share: the graph, its vertex order, its block grid, and the staging folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from harness.base.ranges import split_range
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.staging import StagingFolder
from harness.graph.model import Weighting
from harness.graph.order import Map, Orders, TableMap, make_maps
from harness.graph.partitions.partition import Partition
from harness.graph.sources.stream import Piece
from harness.graph.store.contents import DatasetContents
from harness.graph.store.manifest import BlockGrid
from harness.spec.dataset import DatasetChoice

ORDER = "orders/p"
"""The vertex map of a partition, which a reader of the store could not compute."""
EDGES = "orders/edges"
"""The part of every nonzero under a vertex cut, in the graph's original order."""
ALL = slice(None)

MakePartition = Callable[[], Partition | None]
"""Computes or reads the partition of a dataset choice; returns None if the choice is not partitioned."""


class VertexOrder(NamedTuple):
    """The order of the vertices in a store."""

    choice: DatasetChoice
    maps: Orders[Map] | None
    """None for the original order."""
    bounds: tuple[int, ...] | None
    """The first vertex of each part of a partition, and the end."""
    copies: tuple[int, ...] | None = None
    """The number of vertices copied to each part, under a vertex cut."""

    @property
    def is_double(self) -> bool:
        """True if rows and columns are permuted differently."""
        return self.choice.permutation == "double"


def prepare_vertex_order(
    choice: DatasetChoice, n: int, make_partition: MakePartition, staging: StagingFolder
) -> VertexOrder:
    """Return the vertex order of a choice. A partition is made once and saved in the staging folder."""
    if not choice.partitioned:
        return VertexOrder(choice, make_maps(choice.permutation, n, choice.seed), None)
    if not staging.has(f"{ORDER}.npy") and (partition := make_partition()):
        if partition.edges is not None:
            staging.write_array(EDGES, partition.edges.numpy())
        staging.write_array(ORDER, partition.order.numpy(), bounds=partition.bounds, copies=partition.copies)
    saved = staging.load_attributes(f"{ORDER}.npy")
    table = TableMap(torch.from_numpy(staging.map_array(ORDER)))
    copies = saved.get("copies")
    return VertexOrder(choice, Orders(table, table), tuple(saved["bounds"]), copies and tuple(copies))


def get_stored_orders(choice: DatasetChoice, *, directed: bool) -> tuple[int, ...]:
    """Return the orders whose adjacency is stored. In an undirected graph, order 1 is the transpose of order 0."""
    return (0, 1) if choice.permutation == "double" and directed else (0,)


@dataclass(frozen=True)
class StoreBuild:
    """A store that is being built."""

    contents: DatasetContents
    order: VertexOrder
    grid: BlockGrid
    resources: BuildResources
    chunk_edges: int
    """The number of edges read at a time."""
    staging: StagingFolder

    @property
    def n(self) -> int:
        """The number of vertices."""
        return self.contents.n

    @property
    def directed(self) -> bool:
        return self.contents.card.directed

    @property
    def weights(self) -> Weighting | None:
        return self.contents.card.weights

    @property
    def stored_orders(self) -> tuple[int, ...]:
        """The orders whose adjacency is stored."""
        return get_stored_orders(self.order.choice, directed=self.directed)

    @cached_property
    def block_ranges(self) -> list[range]:
        """The vertices of each row of blocks, and of each column of blocks."""
        return split_range(self.n, self.grid.vertices)

    @cached_property
    def pieces(self) -> Sequence[Piece]:
        """The pieces of the source. Cutting it may read the whole source."""
        return self.contents.stream.pieces(self.chunk_edges)

    @property
    def memory_per_worker(self) -> int:
        """Bytes available to each worker."""
        return self.resources.get_worker_memory(self.n) // self.resources.workers
