"""Cuts a graph into the arrays of a store.

    adjacency/ORDER/I-J.{rowptr,col,val}.npy   block (I, J): rowptr int64, col int32 within the block, val float32
    features/I-J.npy                           float32; rows in the columns' order, both ways cut
    labels/ORDER.npy  split/ORDER.npy          int64, uint8, whole
    orders/{p,q}.npy                           the index maps, where there is a permutation

Order 1 exists under a double permutation only, and its adjacency is stored only if the graph is directed:
otherwise it is the transpose of order 0.
"""

from math import ceil, sqrt
from pathlib import Path

import torch

from harness import __version__
from harness.graph.blocks import ceil_blocks
from harness.graph.model import Graph
from harness.graph.order import Orders, Permutation, orders, permuted
from harness.kernels.csr import Csr, block, index_dtype
from harness.store.card import DatasetCard
from harness.store.compose import versions
from harness.store.manifest import FILE, SCHEMA, BlockGrid, FileRecord, Manifest, Provenance
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
    permutation: Permutation = "none",
    seed: int = 0,
    *,
    grid: int | None = None,
    sources: dict[str, FileRecord] | None = None,
) -> None:
    """Writes the store of a graph, whole or not at all."""
    maps = orders(permutation, graph.n, seed)
    side = grid or _side(graph)
    layout = BlockGrid(vertices=side, features=max(1, min(side, graph.X.shape[1] // BLOCK_FEATURES)))
    stored = (0, 1) if permutation == "double" and graph.directed else (0,)
    with whole_folder(folder, needs=_bytes(graph, len(stored), layout)) as writer:
        for order in stored:
            _put_adjacency(writer, graph, maps, order, layout)
        _put_features(writer, graph, maps, layout)
        _put_vectors(writer, graph, maps, permutation)
        manifest = Manifest(
            schema_version=SCHEMA,
            name=card.name,
            n=graph.n,
            features=graph.X.shape[1],
            classes=graph.classes,
            directed=graph.directed,
            counts=graph.counts,
            permutation=permutation,
            seed=seed,
            orders=stored,
            grid=layout,
            dtypes=_dtypes(graph.n, side),
            provenance=Provenance(
                harness=__version__, versions=versions(card), card=card.content(), sources=sources or {}
            ),
            files=writer.files,
        )
        writer.seal(FILE, manifest.text())


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


def _put_adjacency(writer: FolderWriter, graph: Graph, maps: Orders, order: int, grid: BlockGrid) -> None:
    A = permuted(graph.A, maps.rows(order), maps.cols(order))
    ranges = ceil_blocks(graph.n, grid.vertices)
    for i, rows in enumerate(ranges):
        stripe = block(A, rows, range(graph.n))
        for j, cols in enumerate(ranges):
            _put_block(writer, f"adjacency/{order}/{i}-{j}", block(stripe, range(len(rows)), cols))


def _put_block(writer: FolderWriter, name: str, A: Csr) -> None:
    writer.put(f"{name}.rowptr", A.rowptr.numpy())
    writer.put(f"{name}.col", A.col.numpy())
    writer.put(f"{name}.val", A.val.to(torch.float32).numpy())


def _put_features(writer: FolderWriter, graph: Graph, maps: Orders, grid: BlockGrid) -> None:
    for i, rows in enumerate(ceil_blocks(graph.n, grid.vertices)):
        X_NF = graph.X[maps.q[rows.start : rows.stop]]
        for j, cols in enumerate(ceil_blocks(graph.X.shape[1], grid.features)):
            writer.put(f"features/{i}-{j}", X_NF[:, cols.start : cols.stop].numpy())


def _put_vectors(writer: FolderWriter, graph: Graph, maps: Orders, permutation: Permutation) -> None:
    for order in (0, 1) if permutation == "double" else (0,):
        writer.put(f"labels/{order}", graph.y[maps.rows(order)].numpy())
        writer.put(f"split/{order}", graph.split[maps.rows(order)].numpy())
    if permutation != "none":
        writer.put("orders/p", maps.p.numpy())
    if permutation == "double":
        writer.put("orders/q", maps.q.numpy())
