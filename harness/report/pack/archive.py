"""Packs archives that depend on their files only, and reads archives that strangers packed.

An archive is a compressed tar file of regular files in one folder. Everything else is refused: links, devices, paths
that lead elsewhere, two files of one name, and more files or bytes than a pack has or the memory has room for.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from itertools import accumulate
from pathlib import Path

from harness.base.errors import UserError
from harness.base.host_memory import ALWAYS_FITS, find_available_bytes
from harness.base.progress import OnStep, ignore_step, report_steps
from harness.base.validation import format_value

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@~-]{0,149}")
"""The name of a file or a folder in an archive."""
MAX_DEPTH = 4
MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 28
MAX_BYTES = 8 << 30
SUMS = "SHA256SUMS"
"""The name of the file that `sha256sum --check` takes."""


def pack_archive(folder: str, files: Mapping[str, bytes], on_step: OnStep = ignore_step) -> bytes:
    """Pack files into a compressed tar archive without dates and owners: the same files give the same bytes.

    Raises UserError for a name that `read_archive` refuses.
    """
    buffer = BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in report_steps(sorted(files.items()), lambda file: f"packing {file[0]}", on_step):
            _check_name(f"{folder}/{name}", folder)
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    return buffer.getvalue()


def list_checksums(files: Mapping[str, bytes]) -> bytes:
    """Return the content of `SUMS`: the checksums of files."""
    return "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())).encode()


class RegularEntry(tarfile.TarInfo):
    """An entry of an archive, refused before its content is read unless it is a regular file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "RegularEntry":
        """Return the entry of a header."""
        entry = super().frombuf(buf, encoding, errors)
        if not entry.isreg():
            raise UserError(f"{format_value(entry.name)} is not a regular file")
        if entry.size > MAX_FILE_BYTES:
            raise UserError(f"{format_value(entry.name)} is larger than {MAX_FILE_BYTES >> 20} MiB")
        return entry


def read_archive(path: Path, folder: str) -> dict[str, bytes]:
    """Return the files of an archive whose files are all in `folder`, by name. Raises UserError for any other."""
    names: set[str] = set()
    files: dict[str, bytes] = {}
    total = checked = 0
    try:
        with (
            gzip.open(path, "rb") as packed,
            tarfile.open(fileobj=packed, mode="r|", tarinfo=RegularEntry) as archive,
        ):
            for entry in archive:
                name, total = _check_name(entry.name, folder), total + entry.size
                if name.lower() in names:
                    raise UserError(f"two of its files have the name {format_value(name)}")
                folders = list(accumulate(name.split("/")[:-1], "{}/{}".format))
                if within := [each for each in folders if each.lower() in names]:
                    raise UserError(f"{format_value(name)} is in a file, {within[0]}")
                names.add(name.lower())
                if len(names) > MAX_FILES or total > MAX_BYTES:
                    raise UserError(f"it has more than {MAX_FILES:,} files or {MAX_BYTES >> 30} GiB")
                if total - checked > ALWAYS_FITS:
                    checked, free = total, find_available_bytes()
                    if 2 * entry.size > free:
                        raise UserError(
                            f"{format_value(name)} needs {entry.size:,} bytes of memory, and {free:,} are free"
                        )
                data = archive.extractfile(entry)
                assert data is not None, "a regular file"
                files[name] = data.read()
    except UserError as reason:
        raise UserError(f"{path} is refused: {reason}. Nothing of it was used.") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as reason:
        is_other = isinstance(reason, gzip.BadGzipFile) and str(reason).startswith("Not a gzipped file")
        told = "gzip did not compress it" if is_other else str(reason) or "it is empty"
        raise UserError(f"{path} is not an archive of `harness pack`: {told}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    return files


def has_folder(path: Path, folder: str) -> bool:
    """Return True if a file is an archive whose first file is in `folder`."""
    try:
        with gzip.open(path, "rb") as packed:
            return packed.read(tarfile.BLOCKSIZE).startswith(f"{folder}/".encode())
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False


def _check_name(entry: str, folder: str) -> str:
    """Return the name of an entry relative to its folder."""
    first, *parts = entry.split("/")
    if first != folder or not 1 <= len(parts) <= MAX_DEPTH or not all(map(NAME.fullmatch, parts)):
        raise UserError(f"{format_value(entry)} is not the name of a file of a pack")
    return "/".join(parts)
