"""How a file that cannot be read is refused: by its name, with what was found and what was expected."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarError
from zipfile import BadZipFile

from harness.errors import UserError

UNREADABLE = (OSError, EOFError, ValueError, KeyError, zlib.error, BadZipFile, TarError)
"""What the libraries raise on files that are truncated, altered or of another kind."""


@contextmanager
def refusing(path: Path, expected: str) -> Iterator[None]:
    """Turns whatever a library says about the content of a file into an error that names the file."""
    if not path.exists():
        raise UserError(f"{path} does not exist. Expected {expected}. Correct the path in the card.")
    try:
        yield
    except UserError:
        raise
    except UNREADABLE as error:
        found = str(error).strip().rstrip(".") or type(error).__name__
        raise UserError(
            f"{path} cannot be read: {found}. Expected {expected}. If it was downloaded, download it again."
        ) from error
