"""Writes a built graph as a file for PyTorch Geometric. Importing the file gives the same graph.

The file holds the dictionary of a `Data`, which torch loads without executing code:

    torch_geometric.data.Data.from_dict(torch.load(file, weights_only=True))

Vertices have their original numbers, whatever order the store has. An undirected edge is written in both directions.
Loops are those of the matrix A and no part of the graph: a loop is written only if its weight is not that of the loop
which an import adds. Weights are those of the file, before normalisation. Generated features and labels are included.

The whole graph is in memory: 32 bytes for each edge in each direction (48 with weights), and 8 for each feature.
"""

from pathlib import Path

import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.files import explain_os_errors, sync_file, sync_folder, temporary_path
from harness.base.progress import OnStep, ignore_step
from harness.graph.blocks import read_row_stripes
from harness.graph.cards.catalog import load_card
from harness.graph.cards.class_names import list_class_names
from harness.graph.model import SPLITS
from harness.graph.normalise import ADDED_LOOP_WEIGHT
from harness.graph.store.datasets import open_dataset
from harness.graph.store.memory_store import MemoryStore
from harness.graph.store.reader import Store
from harness.kernels.csr import row_indices
from harness.spec.dataset import DatasetChoice

Built = Store | MemoryStore
FEATURES = 1 << 22
"""The number of features read at a time."""


def export_graph(root: Path, choice: DatasetChoice, out: Path, on_step: OnStep = ignore_step) -> Path:
    """Write a built graph to the new file `out`, and return its path."""
    if out.exists():
        raise UserError(f"{out} exists. Choose another path, or remove it.")
    if not out.parent.is_dir():
        raise UserError(f"There is no folder {out.parent}. Make it first, or choose another path.")
    blocks = open_dataset(root, choice)
    assert isinstance(blocks, Built)
    data = {**_read_edges(blocks, on_step), **_read_vertices(blocks), "num_nodes": blocks.n}
    if class_names := list_class_names(root, load_card(root, choice.name)):
        data["class_names"] = class_names
    part = temporary_path(out)
    try:
        with explain_os_errors(out):
            torch.save(data, part)
            sync_file(part)
            part.rename(out)
            sync_folder(out.parent)
    finally:
        part.unlink(missing_ok=True)
    return out


def _read_edges(blocks: Built, on_step: OnStep) -> dict[str, Tensor]:
    """Return the edges by the original numbers of their ends, and their weights if the graph has some."""
    loop = ADDED_LOOP_WEIGHT[blocks.weights] if blocks.weights else 1.0
    order, ends, weights = blocks.orders, list[Tensor](), list[Tensor]()
    for rows, A in read_row_stripes(blocks, range(blocks.n)):
        on_step(rows.start, blocks.n, "reading edges")
        target, source = order.p[rows.start + row_indices(A).long()], order.q[A.col.long()]
        kept = target != source
        if isinstance(blocks, Store) and blocks.weights:
            weight = blocks.edge_weights(rows)
            kept |= weight != loop
            weights.append(weight[kept])
        ends.append(torch.stack([source[kept], target[kept]]))
    edges = {"edge_index": torch.cat(ends, dim=1)}
    return edges | ({"edge_attr": torch.cat(weights)} if weights else {})


def _read_vertices(blocks: Built) -> dict[str, Tensor]:
    """Return the features, labels and masks of all vertices in their original order."""
    everyone, columns = range(blocks.n), range(blocks.features)
    X = torch.empty(blocks.n, blocks.features)
    step = max(FEATURES // max(blocks.features, 1), 1)
    for start in range(0, blocks.n, step):
        rows = everyone[start : start + step]
        X[blocks.orders.q[rows.start : rows.stop]] = blocks.feature_block(rows, columns)
    y, split = blocks.labels(everyone), blocks.split(everyone)
    labels, parts = torch.empty_like(y), torch.empty_like(split)
    labels[blocks.orders.p], parts[blocks.orders.p] = y, split
    masks = {f"{'val' if name == 'valid' else name}_mask": parts == value for name, value in SPLITS.items()}
    return {"x": X, "y": labels if labels.dim() == 1 else labels.float(), **masks}
