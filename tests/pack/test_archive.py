"""Archives of strangers are refused whole, by name and kind of their entries, before anything of them is used.

The archives are written by Python's tarfile; what `tar` writes is read too.
"""

import gzip
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.report.pack import archive
from harness.report.pack.archive import pack_archive, read_archive

FILES = {"about.json": b"{}", "runs/one/record.json": b"1" * 100_000}


def write_entries(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for entry, data in entries:
            packed.addfile(entry, io.BytesIO(data))
    return path


def entry(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(data)
    return info, data


def test_packed_entries_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(pack_archive("folder", FILES))
    assert read_archive(path, "folder") == FILES


def test_the_same_files_give_the_same_bytes_in_any_order() -> None:
    assert pack_archive("folder", FILES) == pack_archive("folder", dict(reversed(FILES.items())))


def test_an_archive_of_tar_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder" / "runs").mkdir(parents=True)
    (tmp_path / "folder" / "runs" / "a.json").write_text("a")
    subprocess.run(["tar", "-czf", "a.tar.gz", "folder/runs/a.json"], cwd=tmp_path, check=True)
    assert read_archive(tmp_path / "a.tar.gz", "folder") == {"runs/a.json": b"a"}


HOSTILE: dict[str, tuple[Callable[[], list[tuple[tarfile.TarInfo, bytes]]], str]] = {
    "a link": (lambda: [entry("folder/a", kind=tarfile.SYMTYPE, target="/etc/passwd")], "not a regular file"),
    "a hard link": (
        lambda: [entry("folder/a", kind=tarfile.LNKTYPE, target="folder/b")],
        "not a regular file",
    ),
    "a device": (lambda: [entry("folder/a", kind=tarfile.CHRTYPE)], "not a regular file"),
    "a pipe": (lambda: [entry("folder/a", kind=tarfile.FIFOTYPE)], "not a regular file"),
    "an absolute path": (lambda: [entry("/etc/cron.d/a", b"a")], "not the name of a file"),
    "a parent folder": (lambda: [entry("folder/../../a", b"a")], "not the name of a file"),
    "another folder": (lambda: [entry("elsewhere/a", b"a")], "not the name of a file"),
    "a hidden file": (lambda: [entry("folder/.bashrc", b"a")], "not the name of a file"),
    "markup": (lambda: [entry("folder/<script>", b"a")], "not the name of a file"),
    "a backslash": (lambda: [entry("folder/a\\b", b"a")], "not the name of a file"),
    "a deep path": (lambda: [entry("folder/" + "a/" * 9 + "a", b"a")], "not the name of a file"),
    "an empty name": (lambda: [entry("folder/", b"")], "not the name of a file"),
    "two of one name": (lambda: [entry("folder/a", b"1"), entry("folder/A", b"2")], "two of its files"),
    "a long name in a header of its own": (
        lambda: [entry("folder/" + "a" * 200, b"a")],
        "not a regular file",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_entry_is_refused(kind: str, tmp_path: Path) -> None:
    make, reason = HOSTILE[kind]
    path = write_entries(tmp_path / "a.tar.gz", *make())
    with pytest.raises(UserError, match=f"a.tar.gz is refused: .*{reason}"):
        read_archive(path, "folder")


def test_a_file_within_a_file_is_refused(tmp_path: Path) -> None:
    path = write_entries(tmp_path / "a.tar.gz", entry("folder/a", b"1"), entry("folder/a/b", b"2"))
    with pytest.raises(UserError, match=r"refused: .*is in a file"):
        read_archive(path, "folder")


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 1), ("MAX_BYTES", 9), ("MAX_FILE_BYTES", 9)])
def test_too_much_is_refused(limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_entries(tmp_path / "a.tar.gz", entry("folder/a", b"1" * 5), entry("folder/b", b"2" * 15))
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(UserError, match="is refused"):
        read_archive(path, "folder")


def test_more_than_the_free_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_entries(tmp_path / "a.tar.gz", entry("folder/a", b"1" * 5), entry("folder/b", b"2" * 15))
    monkeypatch.setattr(archive, "ALWAYS_FITS", 6)
    monkeypatch.setattr(archive, "find_available_bytes", lambda: 30)
    assert set(read_archive(path, "folder")) == {"a", "b"}
    monkeypatch.setattr(archive, "find_available_bytes", lambda: 29)
    with pytest.raises(UserError, match="needs 15 bytes of memory, and 29 are free"):
        read_archive(path, "folder")


def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A header of a pax archive names its size; its zeros would take little in the archive and much in memory."""
    header = tarfile.TarInfo("folder/header")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf(format=tarfile.GNU_FORMAT) + b"0" * 1000))
    with pytest.raises(UserError, match="not a regular file"):
        read_archive(path, "folder")


NO_ARCHIVES = {
    "nothing": b"",
    "text": b"text",
    "packed text": gzip.compress(b"text"),
    "cut": gzip.compress(b"text" * 500)[:-9],
}


@pytest.mark.parametrize("kind", NO_ARCHIVES)
def test_invalid_archive_is_reported(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(NO_ARCHIVES[kind])
    with pytest.raises(UserError, match="not an archive of `harness pack`") as refused:
        read_archive(path, "folder")
    assert "b'" not in str(refused.value), "bytes as Python shows them"


def test_a_cut_archive_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(pack_archive("folder", FILES)[:-30])
    with pytest.raises(UserError, match="not an archive"):
        read_archive(path, "folder")


def test_a_missing_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_archive(tmp_path / "a.tar.gz", "folder")
