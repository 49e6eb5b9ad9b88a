"""Files as bytes, wherever they are: by themselves, compressed, or in an archive. Nothing is extracted.

graph.txt   graph.txt.gz   graph.tar.gz with a member   graph.zip with a member, which may be compressed once more
"""

import gzip
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from harness.errors import UserError


class Place(NamedTuple):
    """Where a file is."""

    path: Path
    member: str | None = None
    """Its name in the archive that the path leads to."""

    @property
    def is_plain(self) -> bool:
        """Whether any range of its bytes can be read by itself."""
        return self.member is None and self.path.suffix != ".gz"

    def __str__(self) -> str:
        return f"{self.path}" if self.member is None else f"{self.path} ({self.member})"


@contextmanager
def opened(place: Place) -> Iterator[IO[bytes]]:
    """The bytes from the first on; of what is not plain they come one after the other."""
    path, member = place
    if member is None:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(IO[bytes], file)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(_known(archive.namelist(), place)) as file:
            if not member.endswith(".gz"):
                yield file
                return
            with gzip.open(file, "rb") as inner:
                yield cast(IO[bytes], inner)
    else:
        with tarfile.open(path, "r|*") as tar:
            for entry in tar:
                found = tar.extractfile(entry) if entry.name.removeprefix("./") == member else None
                if found is not None:
                    yield found
                    return
            raise UserError(f"{path} has no file {member} in it: it is another archive than its card means.")


def _known(names: list[str], place: Place) -> str:
    if place.member not in names:
        raise UserError(
            f"{place.path} has no file {place.member} in it, but {', '.join(names[:5])}, ...: it is another archive "
            "than its card means."
        )
    return str(place.member)
