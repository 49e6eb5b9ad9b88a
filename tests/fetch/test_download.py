"""What comes over a network that fails in every way is the file, or nothing."""

import errno
import hashlib
import io
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import RunError, UserError
from harness.fetch.download import TRIES, download, verify
from harness.sources.remote import Remote

ROOT = Path(__file__).parents[2]
PATH = "/data.example.org/sets/graph.bin"
DATA = random.Random(0).randbytes(5_000_000)
SHA = hashlib.sha256(DATA).hexdigest()


def remote(**known) -> Remote:
    return Remote(url="https://data.example.org/sets/graph.bin", file="raw/graph.bin", **known)


def fetch(folder: Path, **known) -> bytes:
    said: list[str] = []
    return download(remote(**known), folder, said.append, wait=0.001).read_bytes()


@pytest.fixture(autouse=True)
def published(site):
    site.files[PATH] = DATA


@pytest.mark.parametrize("known", [{}, {"sha256": SHA}, {"bytes": len(DATA)}], ids=["", "sha256", "bytes"])
def test_a_file_is_fetched_once(site, tmp_path, known):
    assert fetch(tmp_path, **known) == DATA
    assert fetch(tmp_path, **known) == DATA
    assert site.asked == [(PATH, None)]
    assert not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize(
    "faults",
    [
        ["503", "500", "429"],
        ["short"],
        ["short", "503", "short", "short"],
        ["no length"],
        ["short", "no ranges"],
        ["short"] * (2 * TRIES),
        ["416"],
    ],
    ids=",".join,
)
def test_what_passes_is_waited_for_and_what_broke_off_is_resumed(site, tmp_path, faults):
    site.faults[PATH] = list(faults)
    assert fetch(tmp_path, sha256=SHA) == DATA
    begun_anew = [wanted for _, wanted in site.asked if wanted is None]
    assert len(begun_anew) <= 1 + sum(fault.isdecimal() for fault in faults)
    assert not list(tmp_path.rglob("*.part*"))


def test_a_redirect_is_followed(site, tmp_path):
    site.files["/elsewhere"] = DATA
    site.faults[PATH] = [f"to {site.url}/elsewhere"]
    assert fetch(tmp_path) == DATA


def test_a_file_that_changed_meanwhile_is_begun_anew(site, tmp_path):
    site.faults[PATH] = ["short"] + ["503"] * TRIES
    with pytest.raises(
        RunError, match=r"503.*bytes are kept in .*graph\.bin\.part; the same command goes on there"
    ):
        fetch(tmp_path)
    assert (tmp_path / "raw" / "graph.bin.part").stat().st_size == len(DATA) // 2
    site.files[PATH] = other = DATA[::-1]
    assert fetch(tmp_path) == other


@pytest.mark.parametrize(
    ("fault", "known", "kind", "said"),
    [
        ("404", {}, UserError, "answered 404"),
        ("403", {}, UserError, "answered 403"),
        ("page", {}, UserError, "web page"),
        ("", {"sha256": "0" * 64}, UserError, "is not the file that is expected"),
        ("", {"bytes": 7}, UserError, r"has 5,000,000 bytes, and the card expects 7"),
        ("no length", {"bytes": 7}, UserError, r"has 5,000,000 bytes, and the card expects 7"),
    ],
)
def test_what_is_not_the_file_is_refused_and_not_kept(site, tmp_path, fault, known, kind, said):
    site.faults[PATH] = [fault]
    with pytest.raises(kind, match=said) as refusal:
        fetch(tmp_path, **known)
    assert "HARNESS_MIRROR" in str(refusal.value)
    assert str(refusal.value).endswith(f"by hand: {tmp_path / 'raw' / 'graph.bin'}")
    assert not (tmp_path / "raw" / "graph.bin").exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.part")) == 0
    assert len(site.asked) == 1


def test_nobody_there_is_said_after_a_few_tries(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(RunError, match=r"could not be fetched: .*refused") as refusal:
        fetch(tmp_path)
    assert "bytes are kept" not in str(refusal.value)


class FullDisk(io.FileIO):
    """A file on a disk with room for two megabytes."""

    def write(self, data):
        if self.tell() > 2_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_is_named_and_what_came_is_kept(site, tmp_path, monkeypatch):
    ordinary = Path.open

    def opened(path, mode="r", **options):
        writes = path.suffix == ".part" and mode in ("wb", "ab")
        return FullDisk(path, mode) if writes else ordinary(path, mode, **options)

    with monkeypatch.context() as full:
        full.setattr(Path, "open", opened)
        with pytest.raises(RunError, match=r"No space left.*HARNESS_DATASETS"):
            fetch(tmp_path)
    assert not (tmp_path / "raw" / "graph.bin").exists()
    assert fetch(tmp_path) == DATA
    assert site.asked[-1][1] is not None


START = """
import sys
from pathlib import Path
from harness.fetch.download import download
from harness.sources.remote import Remote
remote = Remote(url="https://data.example.org/sets/graph.bin", file="raw/graph.bin")
download(remote, Path(sys.argv[1]), lambda told: print(told, flush=True), wait=0.001)
"""


def another(folder: Path) -> subprocess.Popen[str]:
    """Another process that fetches the file."""
    command = [sys.executable, "-c", START, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, text=True)


def test_of_several_that_want_a_file_one_fetches_and_the_others_wait(site, tmp_path):
    site.files[PATH] = DATA
    site.slow = 0.5
    others = [another(tmp_path) for _ in range(3)]
    for process in others:
        process.communicate(timeout=60)
    assert [process.returncode for process in others] == [0, 0, 0]
    assert fetch(tmp_path) == DATA
    assert site.asked == [(PATH, None)]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["graph.bin", "graph.bin.sha256"]


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_whoever_waits_goes_on_where_one_that_is_killed_was(site, tmp_path, rounds):
    rng, killed = random.Random(rounds), 0
    for _ in range(rounds):
        site.slow = 1.0
        first, before = another(tmp_path), len(site.asked)
        while first.poll() is None and len(site.asked) == before:
            time.sleep(0.01)
        second = another(tmp_path)
        time.sleep(rng.uniform(0, 0.5))
        killed += first.poll() is None
        first.kill()
        first.communicate()
        site.slow = 0.0
        assert second.wait(timeout=60) == 0
        second.communicate()
        assert fetch(tmp_path, sha256=SHA) == DATA
        for path in (tmp_path / "raw").iterdir():
            path.unlink()
    assert killed


def test_a_lock_that_was_left_behind_holds_nobody_up(site, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / ".graph.bin.lock").touch()
    assert fetch(tmp_path) == DATA
    assert not (tmp_path / "raw" / ".graph.bin.lock").exists()


def test_without_locks_the_file_comes_as_well(site, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    assert fetch(tmp_path, sha256=SHA) == DATA
    assert not list(tmp_path.rglob("*.part*"))


def test_the_first_download_is_trusted_and_the_file_is_held_to_it(tmp_path):
    fetch(tmp_path)
    path = tmp_path / "raw" / "graph.bin"
    assert (tmp_path / "raw" / "graph.bin.sha256").read_text() == f"{SHA}  graph.bin\n"
    verify(remote(), tmp_path)
    path.write_bytes(DATA[:-1])
    with pytest.raises(UserError, match=r"graph\.bin was altered"):
        verify(remote(), tmp_path)
    path.unlink()
    assert fetch(tmp_path) == DATA


def test_a_file_put_in_its_place_by_hand_is_taken(site, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "graph.bin").write_bytes(b"mine")
    assert fetch(tmp_path) == b"mine"
    assert site.asked == []


def test_only_the_web_is_asked(tmp_path):
    with pytest.raises(UserError, match="only http and https"):
        download(Remote(url="file:///etc/passwd", file="x"), tmp_path, print)


def test_no_test_reaches_another_machine():
    with socket.socket() as link, pytest.raises(AssertionError, match="wanted to reach"):
        link.connect(("192.0.2.1", 80))
