"""The bytes of a file that is alone, compressed, or in an archive. Nothing is extracted.

An archive holds CRCs of its members; `damage` compares them.

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


class FileIn(NamedTuple):
    """A file: by its path, or by its name in an archive."""

    path: Path
    member: str | None = None
    """The name of the file in the archive at `path`."""

    @property
    def is_plain(self) -> bool:
        """True if any range of the bytes can be read by itself."""
        return self.member is None and self.path.suffix != ".gz"

    def __str__(self) -> str:
        return f"{self.path}" if self.member is None else f"{self.path} ({self.member})"


@contextmanager
def opened(file: FileIn) -> Iterator[IO[bytes]]:
    """The bytes from the first on. Only those of a plain file can be read out of order."""
    path, member = file
    if member is None:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as alone:
            yield cast(IO[bytes], alone)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, open_member(archive, member, path) as packed:
            if not member.endswith(".gz"):
                yield packed
                return
            with gzip.open(packed, "rb") as inner:
                yield cast(IO[bytes], inner)
    else:
        with tarfile.open(path, "r|*") as tar:
            for entry in tar:
                unpacked = tar.extractfile(entry) if entry.name.removeprefix("./") == member else None
                if unpacked is not None:
                    yield unpacked
                    return
            raise UserError(f"{path} has no member {member}: it is another archive than its card describes.")


def open_member(archive: zipfile.ZipFile, name: str, origin: object) -> IO[bytes]:
    """A member of a zip archive; `origin` names the archive in the error for a missing one."""
    names = archive.namelist()
    if name not in names:
        raise UserError(
            f"{origin} has no member {name}, but {', '.join(names[:5])}, ...: it is another archive than its card "
            "describes."
        )
    return archive.open(name)


def is_archive(name: str) -> bool:
    """True if a file of this name holds CRCs or a final index, which tell the whole file from a part."""
    return Path(name).suffix in ZIPPED - {".pt"} or name.endswith((".gz", *TARS))


def damage(path: Path, name: str = "") -> str | None:
    """The damage that an archive's own CRCs show, in one pass; None for a whole archive and for other files.

    The kind of the file goes by `name`, which may differ from the path of a download. A .pt is a zip archive or a bare
    pickle, and only the first has CRCs.
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
            raise  # an error of the disk, not of the archive
        return str(error).strip().rstrip(".") or type(error).__name__
    return None


def _walk(path: Path, *, tar: bool) -> None:
    """Reads a compressed file to its end, where its CRC and length stand, past every member of an archive."""
    with gzip.open(path, "rb") as file:
        if tar:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for _ in archive:
                    pass
        while file.read(BLOCK):
            pass
