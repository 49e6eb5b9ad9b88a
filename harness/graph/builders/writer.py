"""Builds a store out of core: its adjacency, the data of its vertices, and the manifest of these files.

    adjacency/ORDER/I-J.{rowptr,col}.npy   block (I, J): rowptr and col int32, counted from the corner of the block
    degrees/ORDER.npy                      int32, the nonzeros of every row: A[i, j] is 1 / sqrt(d_i d_j)
    adjacency/ORDER/I-J.val.npy            float64, the weights of weighted edges, before normalisation
    strengths/ORDER.npy                    float64, sums of weights; if A is normalised by them instead of by degrees
    features/I-J.npy                       float32; rows in the order of the columns, cut in both directions
    labels/ORDER.npy  split/ORDER.npy      int64 (int8 per class if multi-label) and uint8, for all vertices
    orders/p.npy                           the vertex map of a partition; the map of a permutation is computed
    orders/edges.npy                       int32, the part of every nonzero of a vertex cut, in the original order

Order 1 exists only under a double permutation, and its adjacency is stored only if the graph is directed: otherwise it
is the transpose of order 0. The bytes of a store do not depend on the memory or the workers of its build.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from harness import __version__
from harness.base.errors import RunError, UserError
from harness.base.files import check_free_space
from harness.graph.builders.adjacency import (
    LAYOUT,
    choose_chunk_size,
    read_stage_counts,
    scatter_edges,
    sort_blocks,
    write_adjacency,
)
from harness.graph.builders.entries import KEY_BYTES
from harness.graph.builders.job import BuildJob
from harness.graph.builders.partition_costs import compute_cut
from harness.graph.builders.resources import BuildResources
from harness.graph.builders.staging import StagingFolder, discard_idle_staging, open_staging
from harness.graph.builders.store_build import (
    EDGES,
    ORDER,
    MakePartition,
    StoreBuild,
    get_stored_orders,
    prepare_vertex_order,
)
from harness.graph.builders.vertex_arrays import write_features, write_vertex_arrays
from harness.graph.cards.dataset_card import DatasetCard
from harness.graph.store.contents import DatasetContents
from harness.graph.store.location import get_store_versions
from harness.graph.store.manifest import MANIFEST_FILE, SCHEMA, BlockGrid, FileRecord, Manifest, Provenance
from harness.spec.dataset import DatasetChoice

BLOCK_NONZEROS = 1 << 22
"""The target size of a block: 16 MB, quick to read and small compared with a rank's share of a large graph."""
MIN_SIDE, MAX_SIDE = 4, 64
"""Limits of the number of blocks along each side, which is never more than the number of vertices."""
BLOCK_FEATURES = 32
"""The fewest feature columns in a block."""
DTYPES = {
    "rowptr": "int32",
    "col": "int32",
    "degrees": "int32",
    "features": "float32",
    "labels": "int64",
    "split": "uint8",
}
"""Values beyond 32 bits, such as the row pointers of a block with 2^31 entries, are int64, as the array header says."""


@dataclass(frozen=True)
class StorePlan:
    """What to build, where, and with which resources."""

    contents: DatasetContents
    folder: Path
    choice: DatasetChoice
    make_partition: MakePartition = lambda: None
    resources: BuildResources = field(default_factory=BuildResources)
    side: int | None = None
    """The number of blocks along each side; None to choose it by the number of edges."""
    sources: Mapping[str, FileRecord] = field(default_factory=dict)
    """The source files of the dataset, by name."""

    @property
    def grid(self) -> BlockGrid:
        """The block grid, chosen by the source's own count of edges: it is known before any edge is read."""
        best = ceil(sqrt(self.contents.max_entries / BLOCK_NONZEROS))
        side = self.side or min(max(best, MIN_SIDE), MAX_SIDE, self.contents.n)
        return BlockGrid(vertices=side, features=max(1, min(side, self.contents.width // BLOCK_FEATURES)))

    @property
    def chunk_edges(self) -> int:
        """The number of edges read at a time."""
        return choose_chunk_size(self.resources.get_worker_memory(self.contents.n))

    @property
    def settings(self) -> dict[str, Any]:
        """Builders with equal settings can continue each other's work."""
        return {
            "schema": SCHEMA,
            "layout": LAYOUT,
            "side": self.grid.vertices,
            "at_once": self.chunk_edges,
            "sources": {name: record.sha256 for name, record in self.sources.items()},
        }

    @property
    def max_bytes(self) -> int:
        """An upper bound on the disk space: entries (as keys, then as columns), features, vectors and headers."""
        contents, grid = self.contents, self.grid
        orders = len(get_stored_orders(self.choice, directed=contents.card.directed))
        n, blocks = contents.n, grid.vertices**2
        weight_bytes = 16 if contents.card.weights else 0
        adjacency = (KEY_BYTES + 4 + weight_bytes) * contents.max_entries + 4 * (n * grid.vertices + blocks)
        files = (3 if weight_bytes else 2) * orders * blocks + grid.vertices * grid.features + 10
        return orders * adjacency + 4 * n * contents.width + 30 * n + 512 * files

    def start(self, staging: StagingFolder) -> StoreBuild:
        """Start or continue the build in a staging folder."""
        order = prepare_vertex_order(self.choice, self.contents.n, self.make_partition, staging)
        return StoreBuild(self.contents, order, self.grid, self.resources, self.chunk_edges, staging)


def write_store(plan: StorePlan, is_built: Callable[[], bool] = lambda: False) -> None:
    """Build a store, completely or not at all; continue a build that was interrupted.

    `is_built` is called once no other process works on the store: if it returns True, another process has built it.
    """
    check_free_space(plan.folder, plan.max_bytes)
    with open_staging(plan.folder, plan.settings, plan.resources.log) as staging:
        if is_built():
            staging.discard()
            return
        try:
            _write_missing(plan.start(staging), dict(plan.sources))
        except (UserError, RunError):
            staging.discard()  # useless with another card or other files; and a full disk needs the space
            raise


def write_job_share(plan: StorePlan, job: BuildJob) -> None:
    """Do one job's share of a build while other jobs do theirs. Afterwards, `write_store` does the rest."""
    check_free_space(plan.folder, plan.max_bytes)
    with open_staging(plan.folder, plan.settings, plan.resources.log, shared=True) as staging:
        if not plan.folder.exists():  # another process may have published it before this one joined
            with staging.lock("-".join(map(str, job))):
                _run_job(job, plan.start(staging))
    discard_idle_staging(plan.folder)


def _run_job(job: BuildJob, build: StoreBuild) -> None:
    match job.step:
        case "scatter":
            for order in build.stored_orders:
                scatter_edges(build, order, job.items)
        case "settle":
            for order in build.stored_orders:
                sort_blocks(build, order, job.items)
        case "features":
            write_features(build, job.items)


def _write_missing(build: StoreBuild, sources: dict[str, FileRecord]) -> None:
    """Write everything that is missing, and publish the store."""
    for order in build.stored_orders:
        write_adjacency(build, order)
    build.contents.card.check_graph(build.n, build.contents.width, read_stage_counts(build))
    write_vertex_arrays(build)
    build.staging.publish(MANIFEST_FILE, _make_manifest(build, sources).to_json())


def _make_manifest(build: StoreBuild, sources: dict[str, FileRecord]) -> Manifest:
    card, choice = build.contents.card, build.order.choice
    return Manifest(
        schema_version=SCHEMA,
        **choice.model_dump(exclude={"seed"}),
        seed=choice.effective_seed,
        n=build.n,
        features=build.contents.width,
        task=card.task,
        classes=card.classes,
        directed=card.directed,
        counts=read_stage_counts(build),
        cut=compute_cut(build),
        orders=build.stored_orders,
        grid=build.grid,
        dtypes=_list_dtypes(card),
        provenance=Provenance(
            harness=__version__,
            versions=get_store_versions(card, choice),
            card=card.dump_data_fields(),
            sources=sources,
        ),
        files=build.staging.get_file_records(_list_arrays(build)),
    )


def _list_dtypes(card: DatasetCard) -> dict[str, str]:
    labels = {"labels": "int8"} if card.task == "multi-label" else {}
    weights = {"val": "float64"} if card.weights else {}
    return {**DTYPES, **labels, **weights}


def _list_arrays(build: StoreBuild) -> Iterator[str]:
    """Yield the names of all arrays of the store."""
    blocks, columns = range(build.grid.vertices), range(build.grid.features)
    pieces = ("rowptr", "col", "val") if build.weights else ("rowptr", "col")
    for order, i, j, piece in product(build.stored_orders, blocks, blocks, pieces):
        yield f"adjacency/{order}/{i}-{j}.{piece}"
    vectors = ["degrees", "labels", "split", *(["strengths"] if build.weights == "normalised" else [])]
    for name, order in product(vectors, (0, 1) if build.order.is_double else (0,)):
        yield f"{name}/{order}"
    yield from (f"features/{i}-{j}" for i, j in product(blocks, columns))
    if build.order.bounds:
        yield ORDER
    if build.order.copies:
        yield EDGES
