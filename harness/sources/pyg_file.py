"""Graphs that PyTorch Geometric saved (.pt): a `Data`, its dictionary, or the tuple of an in-memory dataset.

torch's reader of weights loads them. It builds tensors and the classes of `Data`, and runs nothing else.
"""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from harness.errors import UserError
from harness.graph.model import Bytes, Labels, RawGraph
from harness.sources.refusal import MASKS, check_ids, refusing, split_of_masks
from harness.sources.source import FileSource, Rest
from harness.sources.stream import no_weights, with_weights

EXPECTED = "a torch_geometric.data.Data, saved with torch.save, that has an edge_index"
WANTED = "one class per vertex, or a 0 or 1 for each class"


class PygFile(FileSource):
    """A .pt file of PyTorch Geometric, with one graph."""

    kind: Literal["pyg"]
    reads_weights: ClassVar[bool] = True

    def graph(self, rest: Rest) -> RawGraph:
        path = rest.folder / self.path
        attributes = _attributes(path)
        ends, n = attributes["edge_index"].T.numpy(), _vertices(attributes)
        check_ids(path, "edges", ends, n)
        x, y = (attributes.get(key) for key in ("x", "y"))
        found = [attributes[key] for key in ("edge_weight", "edge_attr") if attributes.get(key) is not None]
        if rest.weights and not found:
            raise no_weights(path, "it has neither edge_weight nor edge_attr")
        graph = RawGraph(
            n,
            ends[:, 0].astype(np.int64),
            ends[:, 1].astype(np.int64),
            X=None if x is None else x.float().numpy(),
            y=None if y is None else _labels(path, y),
            split=_split(path, attributes, rest.split),
            weight=found[0].double().numpy() if found and rest.weights else None,
        )
        return with_weights(path, graph, rest.weights)


def _attributes(path: Path) -> dict[str, Any]:
    """The attributes of the graph in the file, by name."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # PyG itself allows Data. Allowing it a second time for a while would end with Data no longer allowed.
    classes = {Data, DataEdgeAttr, DataTensorAttr, GlobalStorage} - set(
        torch.serialization.get_safe_globals()
    )
    try:
        with refusing(path, EXPECTED), torch.serialization.safe_globals(list(classes)):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]} Expected {EXPECTED}.") from None
    if isinstance(content, tuple):  # a dataset: its data, and the begin of each of its graphs
        content, slices = content[0], content[1]
        if slices is not None:
            raise UserError(f"{path} holds several graphs. Expected {EXPECTED}.")
    attributes = content.to_dict() if isinstance(content, Data) else content
    ends = attributes.get("edge_index") if isinstance(attributes, dict) else None
    if not isinstance(ends, torch.Tensor) or ends.ndim != 2 or len(ends) != 2 or ends.is_floating_point():
        raise UserError(f"{path} has no edge_index of two rows of whole numbers. Expected {EXPECTED}.")
    return dict(attributes)


def _vertices(attributes: dict[str, Any]) -> int:
    """The number of vertices: as given, or one for each row of features, or as the largest id needs."""
    if attributes.get("num_nodes") is not None:
        return int(attributes["num_nodes"])
    if attributes.get("x") is not None:
        return len(attributes["x"])
    ends = attributes["edge_index"]
    return int(ends.max()) + 1 if ends.numel() else 0


def _labels(path: Path, y: torch.Tensor) -> Labels:
    """A class for each vertex, or a column for each class."""
    if y.is_floating_point() and (y != y.round()).any():
        raise UserError(f"{path}: y holds numbers that are not whole. Expected {WANTED}.")
    if y.ndim > 2:
        raise UserError(f"{path}: y has the shape {tuple(y.shape)}. Expected {WANTED}.")
    return y.reshape(-1).long().numpy() if y.numel() == len(y) else y.to(torch.int8).numpy()


def _split(path: Path, attributes: dict[str, Any], index: int) -> Bytes | None:
    """The split of this index. A mask has a column for each split, or is one column."""
    if attributes.get("train_mask") is None:
        return None
    masks = {part: attributes.get(name) for name, part in MASKS.items()}
    columns = {part: mask.reshape(len(mask), -1) for part, mask in masks.items() if mask is not None}
    return split_of_masks(path, {part: mask.bool().numpy().T for part, mask in columns.items()}, index)
