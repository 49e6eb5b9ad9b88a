"""Packs archives that depend on their files only, and unpacks archives that strangers packed.

An archive is a compressed tar file of regular files in one folder. Everything else is refused: links, devices, paths
that lead elsewhere, two files of one name, and more files or bytes than a submission has.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

from harness.errors import UserError
from harness.progress import OnStep, ignore_step, report_steps
from harness.validation import format_value

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""The name of a file or a folder in an archive."""
MAX_DEPTH = 4
MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 30
MAX_BYTES = 8 << 30
BLOCK = 1 << 20
SUMS = "SHA256SUMS"
"""The name of the file that `sha256sum --check` takes."""


def pack_archive(folder: str, files: Mapping[str, bytes], on_step: OnStep = ignore_step) -> bytes:
    """Pack files into a compressed tar archive without dates and owners: the same files give the same bytes."""
    buffer = BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in report_steps(sorted(files.items()), lambda file: f"packing {file[0]}", on_step):
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
            raise UserError(f"{format_value(entry.name)} is larger than {MAX_FILE_BYTES >> 30} GiB")
        return entry


def unpack_archive(path: Path, folder: str, into: Path) -> list[str]:
    """Unpack an archive whose files are all in `folder`, and return their names. Raises UserError for any other."""
    names: dict[str, str] = {}
    total = 0
    try:
        with (
            gzip.open(path, "rb") as packed,
            tarfile.open(fileobj=packed, mode="r|", tarinfo=RegularEntry) as archive,
        ):
            for entry in archive:
                name, total = _check_name(entry.name, folder), total + entry.size
                if name.lower() in names:
                    raise UserError(f"two of its files have the name {format_value(name)}")
                if within := [
                    str(each) for each in PurePosixPath(name).parents if str(each).lower() in names
                ]:
                    raise UserError(f"{format_value(name)} is in a file, {within[0]}")
                names[name.lower()] = name
                if len(names) > MAX_FILES or total > MAX_BYTES:
                    raise UserError(f"it has more than {MAX_FILES:,} files or {MAX_BYTES >> 30} GiB")
                data = archive.extractfile(entry)
                assert data is not None, "a regular file"
                _write(data, into / name)
    except UserError as reason:
        raise UserError(f"{path} is refused: {reason}. Nothing of it was used.") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as reason:
        told = str(reason) or "it is empty"
        raise UserError(f"{path} is not an archive of `harness submission pack`: {told}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be unpacked: {error.strerror or error}.") from None
    return list(names.values())


def _check_name(entry: str, folder: str) -> str:
    """Return the name of an entry relative to its folder."""
    first, *parts = entry.split("/")
    if first != folder or not 1 <= len(parts) <= MAX_DEPTH or not all(map(NAME.fullmatch, parts)):
        raise UserError(f"{format_value(entry)} is not the name of a file of a submission")
    return "/".join(parts)


def _write(data: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        while block := data.read(BLOCK):
            file.write(block)
