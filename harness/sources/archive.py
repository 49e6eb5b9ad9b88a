"""Files as bytes, wherever they are: by themselves, compressed, or in an archive. Nothing is extracted.

An archive holds CRCs of what is in it; `damage` holds it against them.

graph.txt   graph.txt.gz   graph.tar.gz with a member   graph.zip with a member, which may be compressed once more
"""

import gzip
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from harness.errors import UserError
from harness.sources.refusal import UNREADABLE

ZIPPED = {".zip", ".npz", ".pt"}
TARS = (".tar.gz", ".tgz")
BLOCK = 1 << 20


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


def is_archive(name: str) -> bool:
    """Whether a file of this name holds CRCs, or an index at its end, that tell all of it from a part."""
    return Path(name).suffix in ZIPPED - {".pt"} or name.endswith((".gz", *TARS))


def damage(path: Path, name: str = "") -> str | None:
    """What an archive's own CRCs say is wrong with it, in one pass; None for one that is whole, and for other files.

    Its kind goes by its name, which may be another than the path it still has. A .pt is a zip archive or a bare pickle,
    and only the first has CRCs.
    """
    name = name or path.name
    try:
        if Path(name).suffix in ZIPPED and (is_archive(name) or zipfile.is_zipfile(path)):
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
            return f"{broken} in it does not have its CRC" if broken else None
        if is_archive(name):
            _walk(path, tar=name.endswith(TARS))
    except (*UNREADABLE, RuntimeError, struct.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of the archive
        return str(error).strip().rstrip(".") or type(error).__name__
    return None


def _walk(path: Path, *, tar: bool) -> None:
    """Reads what is compressed to its end, where its CRC and length stand, past every member of an archive."""
    with gzip.open(path, "rb") as file:
        if tar:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for _ in archive:
                    pass
        while file.read(BLOCK):
            pass


def _known(names: list[str], place: Place) -> str:
    if place.member not in names:
        raise UserError(
            f"{place.path} has no file {place.member} in it, but {', '.join(names[:5])}, ...: it is another archive "
            "than its card means."
        )
    return str(place.member)
