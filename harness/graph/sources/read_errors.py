"""Errors for files that cannot be read, with the file name, the problem and the expected content."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarError
from typing import Any
from zipfile import BadZipFile

from numpy.typing import NDArray

from harness.base.errors import RunError, UserError
from harness.base.validation import clip_line
from harness.graph.model import DIRECTED_HINT

UNREADABLE = (OSError, EOFError, ValueError, KeyError, zlib.error, BadZipFile, TarError)
"""What libraries raise for a truncated or altered archive."""
CARD_HINTS = {
    "n": "set n in the card",
    "base": "set base in the card",
    "header": "set header: true in the card",
    "names": "set names: true in the card",
    "classes": "set classes in the card",
    "directed": DIRECTED_HINT,
    "weights": "set weights: raw in the card",
}
"""Advice in error messages, by the key of a card. `harness data import` replaces it with its own options."""


@contextmanager
def convert_read_errors(path: Path, expected: str) -> Iterator[None]:
    """Convert any exception about the content of a file to an error that names the file.

    A truncated or altered file, or one in another format, makes a library raise any exception; so all are caught.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist. Expected {expected}. Correct the path.")
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


def check_ids(path: Path, owner: str, ids: NDArray[Any], n: int, hint: str = "") -> None:
    """Raise an error for ids outside 0 .. n - 1; `owner` is the part of the file that has them."""
    if ids.size and not (ids.min() >= 0 and ids.max() < n):
        raise UserError(
            f"{path} has {owner} with ids {ids.min()} .. {ids.max()}, but its vertices are 0 .. {n - 1}.{hint}"
        )
