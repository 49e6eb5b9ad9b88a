"""Graphs that PyTorch Geometric saved (.pt): a `Data`, its dictionary, or what its in-memory datasets keep.

Loaded with torch's reader of weights, which builds tensors and the classes of `Data` and runs nothing else.
"""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import numpy as np
import torch

from harness.errors import UserError
from harness.graph.model import Bytes, Labels, RawGraph
from harness.sources.refusal import MASKS, check_ends, refusing, split_of
from harness.sources.source import FileSource, Rest

EXPECTED = "a torch_geometric.data.Data, saved with torch.save, that has an edge_index"
WANTED = "one class per vertex, or a 0 or 1 for each class"


class Pyg(FileSource):
    """A .pt file of PyTorch Geometric, of one graph."""

    kind: Literal["pyg"]

    def graph(self, rest: Rest) -> RawGraph:
        path = rest.folder / self.path
        known = _loaded(path)
        ends, n = known["edge_index"].T.numpy(), _vertices(known)
        check_ends(path, ends, n)
        x, y = (known.get(key) for key in ("x", "y"))
        return RawGraph(
            n,
            ends[:, 0].astype(np.int64),
            ends[:, 1].astype(np.int64),
            X=None if x is None else x.float().numpy(),
            y=None if y is None else _labels(path, y),
            split=_split(path, known, rest.split),
        )


def _loaded(path: Path) -> dict[str, Any]:
    """What the file holds, by name."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # PyG allows Data by itself, and to allow it once more for a while would end in its being allowed no more
    classes = {Data, DataEdgeAttr, DataTensorAttr, GlobalStorage} - set(
        torch.serialization.get_safe_globals()
    )
    try:
        with refusing(path, EXPECTED), torch.serialization.safe_globals(list(classes)):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]} Expected {EXPECTED}.") from None
    if isinstance(found, tuple):  # a dataset: its data and where each graph of them begins
        found, slices = found[0], found[1]
        if slices is not None:
            raise UserError(f"{path} holds several graphs. Expected {EXPECTED}.")
    known = found.to_dict() if isinstance(found, Data) else found
    ends = known.get("edge_index") if isinstance(known, dict) else None
    if not isinstance(ends, torch.Tensor) or ends.ndim != 2 or len(ends) != 2 or ends.is_floating_point():
        raise UserError(f"{path} has no edge_index of two rows of whole numbers. Expected {EXPECTED}.")
    return dict(known)


def _vertices(known: dict[str, Any]) -> int:
    """As many as it says, or as there are rows of features, or as the largest id asks for."""
    if known.get("num_nodes") is not None:
        return int(known["num_nodes"])
    if known.get("x") is not None:
        return len(known["x"])
    return int(known["edge_index"].max()) + 1 if known["edge_index"].numel() else 0


def _labels(path: Path, y: torch.Tensor) -> Labels:
    """One class a vertex, or a column for each class."""
    if y.is_floating_point() and (y != y.round()).any():
        raise UserError(f"{path}: y holds numbers that are not whole. Expected {WANTED}.")
    if y.ndim > 2:
        raise UserError(f"{path}: y has the shape {tuple(y.shape)}. Expected {WANTED}.")
    return y.reshape(-1).long().numpy() if y.numel() == len(y) else y.to(torch.int8).numpy()


def _split(path: Path, known: dict[str, Any], index: int) -> Bytes | None:
    """Of masks that may have a column for each of several splits."""
    if known.get("train_mask") is None:
        return None
    found = {part: known.get(name) for name, part in MASKS.items()}
    columns = {part: mask.reshape(len(mask), -1) for part, mask in found.items() if mask is not None}
    return split_of(path, {part: mask.bool().numpy().T for part, mask in columns.items()}, index)
