"""Reads a file that is plain, compressed, or a member of an archive. Nothing is extracted.

Archives hold CRCs of their members; `find_damage` checks them.

    graph.txt   graph.txt.gz   a member of graph.tar.gz   a member of graph.zip, which may itself be gzipped
"""

import gzip
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from harness.base.errors import UserError
from harness.graph.sources.read_errors import UNREADABLE

ZIPPED = {".zip", ".npz", ".pt"}
TARS = (".tar.gz", ".tgz")
BLOCK = 1 << 20


class FileRef(NamedTuple):
    """A file on disk, or a member of an archive."""

    path: Path
    member: str | None = None
    """The name of the member if `path` is an archive."""

    @property
    def is_plain(self) -> bool:
        """True if any range of bytes can be read without the rest."""
        return self.member is None and self.path.suffix != ".gz"

    def __str__(self) -> str:
        return f"{self.path}" if self.member is None else f"{self.path} ({self.member})"


@contextmanager
def open_file(file: FileRef) -> Iterator[IO[bytes]]:
    """Open a file for reading from its start. Only plain files are seekable."""
    path, member = file
    if member is None:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as plain:
            yield cast(IO[bytes], plain)
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, open_member(archive, member, path) as member_file:
            if not member.endswith(".gz"):
                yield member_file
                return
            with gzip.open(member_file, "rb") as inner:
                yield cast(IO[bytes], inner)
    else:
        with tarfile.open(path, "r|*") as tar:
            for entry in tar:
                unpacked = tar.extractfile(entry) if entry.name.removeprefix("./") == member else None
                if unpacked is not None:
                    yield unpacked
                    return
            raise UserError(f"{path} has no member {member}: it is not the archive that its card describes.")


def open_member(archive: zipfile.ZipFile, name: str, origin: object) -> IO[bytes]:
    """Open a member of a zip archive; `origin` names the archive in errors."""
    names = archive.namelist()
    if name not in names:
        raise UserError(
            f"{origin} has no member {name}, but {', '.join(names[:5])}, ...: it is not the archive that its card "
            "describes."
        )
    return archive.open(name)


def is_archive(name: str) -> bool:
    """Return True if a file with this name holds CRCs or a final index, which reveal truncation."""
    return Path(name).suffix in ZIPPED - {".pt"} or name.endswith((".gz", *TARS))


def find_damage(path: Path, name: str = "") -> str | None:
    """Check the CRCs of an archive in one pass; return a description of the damage, or None.

    The format is determined by `name`, which may differ from the path of a download. Files that are not archives have
    no CRCs to check. A .pt file is a zip archive or a bare pickle.
    """
    name = name or path.name
    try:
        if Path(name).suffix in ZIPPED and (is_archive(name) or zipfile.is_zipfile(path)):
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
            return f"the CRC of its member {broken} is wrong" if broken else None
        if is_archive(name):
            _read_to_end(path, tar=name.endswith(TARS))
    except (*UNREADABLE, RuntimeError, struct.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk, not of the archive
        return str(error).strip().rstrip(".") or type(error).__name__
    return None


def _read_to_end(path: Path, *, tar: bool) -> None:
    """Read a compressed file to its end, which holds its CRC and length, through every member of an archive."""
    with gzip.open(path, "rb") as file:
        if tar:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for _ in archive:
                    pass
        while file.read(BLOCK):
            pass
