"""How a file that cannot be read is refused: by its name, with what was found and what was expected."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarError
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from harness.errors import RunError, UserError
from harness.graph.model import TEST, TRAIN, VALID, Bytes
from harness.validation import clipped

UNREADABLE = (OSError, EOFError, ValueError, KeyError, zlib.error, BadZipFile, TarError)
"""What the readers of archives raise on those that are truncated or altered."""
IN_CARD = {
    "n": "set n in the card",
    "base": "set base in the card",
    "header": "set header: true in the card",
    "classes": "set classes in the card",
}
"""The ways out of errors, by the key of a card. Whoever wrote no card is told the option that stands for it."""


@contextmanager
def refusing(path: Path, expected: str) -> Iterator[None]:
    """Turns whatever a library says about the content of a file into an error that names the file.

    Files that are truncated, altered or of another kind make libraries raise anything, so that anything is caught.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist. Expected {expected}. Correct its path.")
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        said = str(error).strip().rstrip(".")
        kind = "" if said and isinstance(error, OSError | ValueError) else f"{type(error).__name__} "
        raise UserError(
            f"{path} cannot be read: {clipped(kind + said, 200)}. Expected {expected}. If it was downloaded, download "
            "it again."
        ) from error


# What files that bring a whole graph have in common: edges held against its vertices, masks as one split.

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
