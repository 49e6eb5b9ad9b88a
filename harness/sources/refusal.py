"""How a file that cannot be read is refused: by its name, with what was found and what was expected."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarError
from zipfile import BadZipFile

from harness.errors import RunError, UserError
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
