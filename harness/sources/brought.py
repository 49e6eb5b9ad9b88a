"""What files that bring a whole graph have in common: edges held against its vertices, masks as one split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.graph.model import TEST, TRAIN, VALID, Bytes

MASKS = {"train_mask": TRAIN, "val_mask": VALID, "test_mask": TEST}
"""As PyTorch Geometric names them."""


def check_ends(path: Path, ends: NDArray[Any], n: int) -> None:
    """Edges, (edges, 2), of other vertices than 0 .. n - 1 are refused."""
    if len(ends) and not (ends.min() >= 0 and ends.max() < n):
        raise UserError(f"{path}: edges name vertices {ends.min()} .. {ends.max()}, but there are {n}.")


def split_of(path: Path, masks: Mapping[int, NDArray[Any]], index: int) -> Bytes:
    """The split with this number; the masks of each of its parts are (splits, n)."""
    split = np.zeros(masks[TRAIN].shape[1], np.uint8)
    for part, mask in masks.items():
        if index >= len(mask):
            raise UserError(f"{path}: split {index} is not there; it has the splits 0 .. {len(mask) - 1}.")
        split[mask[index].astype(bool)] = part
    return split
