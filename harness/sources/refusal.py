"""Refuses a file that cannot be read, or whose ids do not fit, with its name, the fault and the expected content."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import RunError, UserError
from harness.graph.model import SPLITS, TEST, TRAIN, VALID, Bytes
from harness.graph.normalise import DIRECTED
from harness.validation import clip_line

UNREADABLE = (OSError, EOFError, ValueError, KeyError, zlib.error, BadZipFile, TarError)
"""The errors that readers of archives raise on a truncated or altered archive."""
IN_CARD = {
    "n": "set n in the card",
    "base": "set base in the card",
    "header": "set header: true in the card",
    "classes": "set classes in the card",
    "directed": DIRECTED,
    "weights": "set weights: raw in the card",
}
"""The ways out of errors, by the key of a card. `harness data import` replaces them by its own options."""


@contextmanager
def refusing(path: Path, expected: str) -> Iterator[None]:
    """Turns any error of a library about the content of a file into an error that names the file.

    A truncated or altered file, or one of another kind, makes a library raise any exception; so all are caught.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist. Expected {expected}. Correct its path.")
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        reason = str(error).strip().rstrip(".")
        kind = "" if reason and isinstance(error, OSError | ValueError) else f"{type(error).__name__} "
        raise UserError(
            f"{path} cannot be read: {clip_line(kind + reason, 200)}. Expected {expected}. If it was downloaded, "
            "download it again."
        ) from error


def check_ids(path: Path, owner: str, ids: NDArray[Any], n: int, way_out: str = "") -> None:
    """Refuses ids of other vertices than 0 .. n - 1; `owner` is the part of the file that holds them."""
    if ids.size and not (ids.min() >= 0 and ids.max() < n):
        raise UserError(
            f"{path} has {owner} with ids {ids.min()} .. {ids.max()}, but its vertices are 0 .. {n - 1}.{way_out}"
        )


MASKS = {"train_mask": TRAIN, "val_mask": VALID, "test_mask": TEST}
"""The names of the masks in PyTorch Geometric."""


def split_of_masks(path: Path, masks: Mapping[int, NDArray[Any]], index: int) -> Bytes:
    """The split of this index. The masks of each part are (splits, n)."""
    split = np.zeros(masks[TRAIN].shape[1], np.uint8)
    for part, mask in masks.items():
        if index >= len(mask):
            raise UserError(
                f"{path}: split {index} is missing; the file has the splits 0 .. {len(mask) - 1}."
            )
        split[mask[index].astype(bool)] = part
    return split


def split_of_ids(path: Path, members: Mapping[str, ArrayLike], n: int) -> Bytes:
    """The split whose parts (`train`, `valid`, `test`) list the ids of their vertices."""
    split = np.zeros(n, np.uint8)
    for name, part in SPLITS.items():
        ids = np.asarray(members[name], np.int64)
        check_ids(path, f"a {name} split", ids, n)
        split[ids] = part
    return split
