"""Graphs saved by PyTorch Geometric (.pt): a `Data`, its dictionary, or the tuple of an in-memory dataset.

Files are loaded with `weights_only=True`, which builds only tensors and the classes of `Data`.
"""

from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from harness.base.errors import UserError
from harness.graph.model import Bytes, Labels, RawGraph
from harness.graph.sources.read_errors import check_ids, convert_read_errors
from harness.graph.sources.source import FileSource, ReadOptions
from harness.graph.sources.splits import MASK_NAMES, make_split_from_masks
from harness.graph.sources.stream import check_graph_weights, make_missing_weights_error

if TYPE_CHECKING:
    from torch import Tensor

EXPECTED = "a torch_geometric.data.Data, saved with torch.save, that has an edge_index"
LABELS_EXPECTED = "one class per vertex, or a 0 or 1 for each class"


class PygFile(FileSource):
    """A .pt file of PyTorch Geometric with one graph."""

    kind: Literal["pyg"]
    reads_weights: ClassVar[bool] = True

    def read_graph(self, options: ReadOptions) -> RawGraph:
        path = options.folder / self.path
        attributes = _load_attributes(path)
        ends, n = attributes["edge_index"].T.numpy(), _count_vertices(attributes)
        check_ids(path, "edges", ends, n)
        x, y = (attributes.get(key) for key in ("x", "y"))
        weights = (attributes.get(key) for key in ("edge_weight", "edge_attr"))
        weight = next((each for each in weights if each is not None), None)
        if options.weights and weight is None:
            raise make_missing_weights_error(path, "it has neither edge_weight nor edge_attr")
        graph = RawGraph(
            n,
            ends[:, 0].astype(np.int64),
            ends[:, 1].astype(np.int64),
            X=None if x is None else x.float().numpy(),
            y=None if y is None else _convert_labels(path, y),
            split=_select_split(path, attributes, options.split),
            weight=weight.double().numpy() if weight is not None and options.weights else None,
        )
        return check_graph_weights(path, graph, options.weights)


def _load_attributes(path: Path) -> dict[str, Any]:
    """Load the attributes of the graph, by name."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # PyG allows Data globally. Allowing it again in a context would disallow it when the context exits.
    allowed = torch.serialization.get_safe_globals()
    classes = [each for each in (Data, DataEdgeAttr, DataTensorAttr, GlobalStorage) if each not in allowed]
    try:
        with convert_read_errors(path, EXPECTED), torch.serialization.safe_globals(classes):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]} Expected {EXPECTED}.") from None
    if isinstance(content, tuple):  # a dataset: its data, and the start of each of its graphs
        content, slices = content[0], content[1]
        if slices is not None:
            raise UserError(f"{path} has several graphs. Expected {EXPECTED}.")
    attributes = content.to_dict() if isinstance(content, Data) else content
    ends = attributes.get("edge_index") if isinstance(attributes, dict) else None
    if not isinstance(ends, torch.Tensor) or ends.ndim != 2 or len(ends) != 2 or ends.is_floating_point():
        raise UserError(f"{path} does not have an integer edge_index of two rows. Expected {EXPECTED}.")
    return dict(attributes)


def _count_vertices(attributes: dict[str, Any]) -> int:
    """Return the number of vertices: as given, or the number of feature rows, or the largest id plus one."""
    if attributes.get("num_nodes") is not None:
        return int(attributes["num_nodes"])
    if attributes.get("x") is not None:
        return len(attributes["x"])
    ends = attributes["edge_index"]
    return int(ends.max()) + 1 if ends.numel() else 0


def _convert_labels(path: Path, y: "Tensor") -> Labels:
    """Convert to one class per vertex, or one column per class."""
    if y.is_floating_point() and (y != y.round()).any():
        raise UserError(f"{path}: y has non-integer values. Expected {LABELS_EXPECTED}.")
    if y.ndim > 2:
        raise UserError(f"{path}: y has the shape {tuple(y.shape)}. Expected {LABELS_EXPECTED}.")
    return y.reshape(-1).long().numpy() if y.numel() == len(y) else y.char().numpy()


def _select_split(path: Path, attributes: dict[str, Any], index: int) -> Bytes | None:
    """Return the split with this index. A mask has a column per split, or is a vector."""
    if attributes.get("train_mask") is None:
        return None
    masks = {part: attributes.get(name) for name, part in MASK_NAMES.items()}
    columns = {part: mask.reshape(len(mask), -1) for part, mask in masks.items() if mask is not None}
    return make_split_from_masks(path, {part: mask.bool().numpy().T for part, mask in columns.items()}, index)
