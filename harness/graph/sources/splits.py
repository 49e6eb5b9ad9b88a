"""Splits of the vertices, as sources store them: as masks or as lists of ids."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.base.errors import UserError
from harness.graph.model import SPLITS, TEST, TRAIN, VALID, Bytes
from harness.graph.sources.read_errors import check_ids

MASK_NAMES = {"train_mask": TRAIN, "val_mask": VALID, "test_mask": TEST}
"""The names of the masks in PyTorch Geometric."""


def make_split_from_masks(path: Path, masks: Mapping[int, NDArray[Any]], index: int) -> Bytes:
    """Return the split with this index. The masks of each part have the shape (splits, n)."""
    split = np.zeros(masks[TRAIN].shape[1], np.uint8)
    for part, mask in masks.items():
        if index >= len(mask):
            raise UserError(f"{path}: there is no split {index}; the file has splits 0 .. {len(mask) - 1}.")
        split[mask[index].astype(bool)] = part
    return split


def make_split_from_ids(path: Path, members: Mapping[str, ArrayLike], n: int) -> Bytes:
    """Return the split whose parts (`train`, `valid`, `test`) are given as lists of ids."""
    split = np.zeros(n, np.uint8)
    for name, part in SPLITS.items():
        ids = np.asarray(members[name], np.int64)
        check_ids(path, f"a {name} split", ids, n)
        split[ids] = part
    return split
