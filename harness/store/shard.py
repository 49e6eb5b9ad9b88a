"""Cuts a graph into the arrays of a store.

    adjacency/ORDER/I-J.{rowptr,col,val}.npy   block (I, J): rowptr int64, col int32 within the block, val float32
    features/I-J.npy                           float32; rows in the columns' order, both ways cut
    labels/ORDER.npy  split/ORDER.npy          int64, uint8, whole
    orders/{p,q}.npy                           the index maps, where there is a permutation or a partition

Order 1 exists under a double permutation only, and its adjacency is stored only if the graph is directed:
otherwise it is the transpose of order 0.
"""

from math import ceil, sqrt
from pathlib import Path

import torch

from harness import __version__
from harness.graph.model import Graph
from harness.graph.order import Orders, orders, permuted
from harness.graph.partition import VERSION, Partition
from harness.graph.volume import volumes
from harness.kernels.csr import Csr, block, index_dtype
from harness.ranges import split
from harness.store.card import DatasetCard
from harness.store.choice import COMPUTED, DatasetChoice
from harness.store.compose import versions
from harness.store.manifest import FILE, SCHEMA, BlockGrid, Cut, FileRecord, Manifest, Provenance
from harness.store.writer import FolderWriter, whole_folder

BLOCK_NONZEROS = 1 << 22
"""What a block aims to hold: 32 MB, read in a blink and small beside a rank's share of a large graph."""
FEWEST, MOST = 4, 64
"""Blocks along each side, within which the aim is followed; never more than vertices."""
BLOCK_FEATURES = 32
"""The fewest feature columns in a block."""


def write(
    graph: Graph,
    folder: Path,
    card: DatasetCard,
    choice: DatasetChoice,
    partition: Partition | None = None,
    *,
    grid: int | None = None,
    sources: dict[str, FileRecord] | None = None,
) -> None:
    """Writes the store of a graph in the chosen order, whole or not at all."""
    maps = partition.orders if partition else orders(choice.permutation, graph.n, choice.seed)
    side = grid or _side(graph)
    layout = BlockGrid(vertices=side, features=max(1, min(side, graph.X.shape[1] // BLOCK_FEATURES)))
    stored = (0, 1) if choice.permutation == "double" and graph.directed else (0,)
    with whole_folder(folder, needs=_bytes(graph, len(stored), layout)) as writer:
        for order in stored:
            A = permuted(graph.A, maps.rows(order), maps.cols(order))
            _put_adjacency(writer, A, order, layout)
        _put_features(writer, graph, maps, layout)
        _put_vectors(writer, graph, maps, choice)
        manifest = Manifest(
            schema_version=SCHEMA,
            **choice.model_dump(exclude={"seed"}),
            seed=choice.drawn_by,
            n=graph.n,
            features=graph.X.shape[1],
            classes=graph.classes,
            directed=graph.directed,
            counts=graph.counts,
            cut=_cut(A, partition.bounds) if partition else None,
            orders=stored,
            grid=layout,
            dtypes=_dtypes(graph.n, side),
            provenance=_provenance(card, choice, sources or {}),
            files=writer.files,
        )
        writer.seal(FILE, manifest.text())


def code_versions(card: DatasetCard, choice: DatasetChoice) -> dict[str, int]:
    """The versions of all code that a store of this choice depends on."""
    return versions(card) | ({"partition": VERSION} if choice.partition in COMPUTED else {})


def _provenance(card: DatasetCard, choice: DatasetChoice, sources: dict[str, FileRecord]) -> Provenance:
    return Provenance(
        harness=__version__, versions=code_versions(card, choice), card=card.content(), sources=sources
    )


def _cut(A: Csr, bounds: tuple[int, ...]) -> Cut:
    ends = A.rowptr[torch.tensor(bounds)]
    return Cut(bounds=bounds, nonzeros=tuple(ends.diff().tolist()), needed=tuple(volumes(A, bounds)))


def _side(graph: Graph) -> int:
    aim = ceil(sqrt(graph.A.nnz / BLOCK_NONZEROS))
    return min(max(aim, FEWEST), MOST, graph.n)


def _bytes(graph: Graph, versions: int, grid: BlockGrid) -> int:
    """What the store will take: the arrays (indices, weights, row pointers; features; vectors) and their headers."""
    n, width = graph.X.shape
    blocks = grid.vertices**2
    adjacency = 8 * graph.A.nnz + 8 * (n * grid.vertices + blocks)
    files = 3 * versions * blocks + grid.vertices * grid.features + 8
    return versions * adjacency + 4 * n * width + 34 * n + 512 * files


def _dtypes(n: int, side: int) -> dict[str, str]:
    col = str(index_dtype(ceil(n / side))).removeprefix("torch.")
    return {
        "rowptr": "int64",
        "col": col,
        "val": "float32",
        "features": "float32",
        "labels": "int64",
        "split": "uint8",
    }


def _put_adjacency(writer: FolderWriter, A: Csr, order: int, grid: BlockGrid) -> None:
    ranges = split(A.rows, grid.vertices)
    for i, rows in enumerate(ranges):
        stripe = block(A, rows, range(A.cols))
        for j, cols in enumerate(ranges):
            _put_block(writer, f"adjacency/{order}/{i}-{j}", block(stripe, range(len(rows)), cols))


def _put_block(writer: FolderWriter, name: str, A: Csr) -> None:
    writer.put(f"{name}.rowptr", A.rowptr.numpy())
    writer.put(f"{name}.col", A.col.numpy())
    writer.put(f"{name}.val", A.val.to(torch.float32).numpy())


def _put_features(writer: FolderWriter, graph: Graph, maps: Orders, grid: BlockGrid) -> None:
    for i, rows in enumerate(split(graph.n, grid.vertices)):
        X_NF = graph.X[maps.q[rows.start : rows.stop]]
        for j, cols in enumerate(split(graph.X.shape[1], grid.features)):
            writer.put(f"features/{i}-{j}", X_NF[:, cols.start : cols.stop].numpy())


def _put_vectors(writer: FolderWriter, graph: Graph, maps: Orders, choice: DatasetChoice) -> None:
    for order in (0, 1) if choice.permutation == "double" else (0,):
        writer.put(f"labels/{order}", graph.y[maps.rows(order)].numpy())
        writer.put(f"split/{order}", graph.split[maps.rows(order)].numpy())
    if choice.permutation != "none" or choice.partitioned:
        writer.put("orders/p", maps.p.numpy())
    if choice.permutation == "double":
        writer.put("orders/q", maps.q.numpy())
