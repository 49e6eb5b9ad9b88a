"""What comes over a network that fails in every way is the file, or nothing."""

import errno
import gzip
import hashlib
import io
import os
import random
import re
import socket
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from harness.base.errors import RunError, UserError
from harness.graph.fetch.download import download_file, verify_download
from harness.graph.fetch.transfer import RetryPolicy
from harness.graph.sources.remote import RemoteFile

ROOT = Path(__file__).parents[2]
PATH = "/data.example.org/sets/graph.bin"
DATA = random.Random(0).randbytes(5_000_000)
QUICK = RetryPolicy(pause=0.001)
SHA = hashlib.sha256(DATA).hexdigest()


def remote(**known) -> RemoteFile:
    return RemoteFile(url="https://data.example.org/sets/graph.bin", file="raw/graph.bin", **known)


def fetch(folder: Path, **known) -> bytes:
    said: list[str] = []
    return download_file(remote(**known), folder, said.append, QUICK).read_bytes()


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
        ["short"] * (2 * QUICK.max_idle_attempts),
        ["416"],
        ["empty", "empty"],
        ["unasked"],
        ["202"],
        ["503 0", "429 Thu, 01 Jan 2026 00:00:00 GMT"],
        ["chunked cut", "chunked"],
        ["reset", "reset"],
        ["short", "blind from 0"],
        ["short", "blind other total"],
        ["short", "blind other tag"],
        ["short", "blind mute"],
    ],
    ids=",".join,
)
def test_transient_errors_are_retried_and_broken_downloads_resumed(site, tmp_path, faults):
    site.faults[PATH] = list(faults)
    assert fetch(tmp_path, sha256=SHA) == DATA
    begun_anew = [wanted for _, wanted in site.asked if wanted is None]
    kept = ("short", "no ranges", "no length", "reset")
    assert len(begun_anew) <= 1 + sum(fault not in kept for fault in faults)
    assert not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize(
    "fault", ["blind", "blind mute", "blind from 0", "blind other tag", "", "no ranges", "blind other total"]
)
@pytest.mark.parametrize("says", [(), ("ETag",), ("Last-Modified",), ("ETag", "Last-Modified")], ids=",".join)
@pytest.mark.parametrize("same_length", [True, False])
def test_two_versions_are_never_joined(site, tmp_path, fault, says, same_length):
    """Another version is published while a transfer is broken off, whatever the server then makes of a range."""
    site.says, site.faults[PATH] = says, ["short"] + ["503"] * QUICK.max_idle_attempts
    with pytest.raises(RunError):
        fetch(tmp_path)
    assert (tmp_path / "raw" / "graph.bin.part").exists() == bool(says), (
        "what nobody can go on with is not kept"
    )
    site.files[PATH] = other = DATA[::-1] if same_length else DATA[::-1] + b"more"
    site.faults[PATH] = [fault]
    assert fetch(tmp_path) == other


@pytest.mark.parametrize("says", [("ETag",), ("Last-Modified",), ("ETag", "Last-Modified")], ids=",".join)
def test_no_byte_of_the_same_version_comes_twice(site, tmp_path, says):
    site.says, site.faults[PATH] = says, ["short", "503", "short", "reset"]
    assert fetch(tmp_path) == DATA
    assert site.sent < len(DATA) * 1.2  # what was on its way when the link was reset comes again
    assert [wanted for _, wanted in site.asked].count(None) == 1


SLOW = RetryPolicy(pause=0.001, window=0.3, min_bytes=1000)


@pytest.mark.long
@pytest.mark.parametrize(
    ("always", "patience", "said"),
    [
        ("trickle", SLOW, r"6 attempts.* bytes are kept"),
        ("slow head", RetryPolicy(pause=0.001, timeout=0.2), "6 attempts"),
        ("503 0", QUICK, "6 attempts.*503"),
        ("503 7200", QUICK, "one attempt.*7,200 s"),
        ("empty", QUICK, "6 attempts"),
        ("blind from 0 short", QUICK, "attempts"),
        ("short", RetryPolicy(pause=0.0, max_attempts=4), r"4 attempts.*4,687,500 bytes are kept"),
        ("trickle", RetryPolicy(max_seconds=0.2), "0 s"),
        ("503", RetryPolicy(pause=50, max_seconds=20), "one attempt.*503"),
    ],
)
def test_a_server_that_never_ends_is_given_up(site, tmp_path, always, patience, said):
    site.always = always
    with pytest.raises(RunError, match=said) as refusal:
        download_file(remote(), tmp_path, lambda _: None, patience)
    assert "HARNESS_MIRROR" in str(refusal.value)
    assert len(site.asked) <= 2 * QUICK.max_idle_attempts
    site.always = ""
    assert fetch(tmp_path) == DATA


def test_complete_download_is_only_verified(site, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("harness.graph.fetch.download.hash_file", killed)
        with pytest.raises(Killed):
            fetch(tmp_path)
    assert sorted(path.name for path in (tmp_path / "raw").iterdir() if path.stat().st_size) == [
        "graph.bin.part",
        "graph.bin.part.json",
    ]
    site.always = "404"
    assert fetch(tmp_path) == DATA
    assert len(site.asked) == 1


@pytest.mark.parametrize("beside", [b"", b"\n", b"\xff\xfe", b"short  graph.bin\n"])
@pytest.mark.parametrize("is_there", [True, False])
def test_invalid_checksum_is_refused_before_the_download(site, tmp_path, beside, is_there):
    if is_there:
        fetch(tmp_path)
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw" / "graph.bin.sha256").write_bytes(beside)
    before = len(site.asked)
    with pytest.raises(UserError, match=r"graph\.bin\.sha256"):
        fetch(tmp_path)
    assert len(site.asked) == before
    (tmp_path / "raw" / "graph.bin.sha256").unlink()
    assert fetch(tmp_path) == DATA


def packed(kind: str) -> bytes:
    """An archive of two files of noise."""
    files, made = {"a": DATA[:50_000], "b": DATA[50_000:90_000]}, io.BytesIO()
    if kind in ("zip", "npz", "pt"):
        with zipfile.ZipFile(made, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    elif kind == "gz":
        made.write(gzip.compress(DATA[:90_000], mtime=0))
    else:
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize("kind", ["zip", "npz", "pt", "gz", "tar.gz", "tgz"])
@pytest.mark.parametrize("harm", ["none", "cut", "one bit", "end"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_an_archive_is_held_against_its_crcs_before_it_is_trusted(site, tmp_path, kind, harm, by_hand):
    good = packed(kind)
    data = bytearray(good)
    if harm == "cut":
        del data[len(data) // 2 :]
    elif harm == "end":
        del data[-4:]
    elif harm == "one bit":
        data[len(data) // 2] ^= 1
    file = RemoteFile(url="https://data.example.org/sets/graph.bin", file=f"raw/graph.{kind}")
    path, site.files[PATH] = tmp_path / file.file, bytes(data)
    if by_hand:
        path.parent.mkdir()
        path.write_bytes(data)
    site.always = "" if kind == "pt" else "no length"  # what is cut at the server is told by the CRCs alone
    if harm == "none" or (
        kind == "pt" and harm in ("cut", "end")
    ):  # which is then no zip, but may be a pickle
        assert download_file(file, tmp_path, print, QUICK).read_bytes() == data
        return
    with pytest.raises((UserError, RunError), match="damaged"):
        download_file(file, tmp_path, print, QUICK)
    assert path.exists() == by_hand
    assert not list(tmp_path.rglob("*.sha256"))
    site.files[PATH] = good
    path.unlink(missing_ok=True)
    assert download_file(file, tmp_path, print, QUICK).read_bytes() == good


def test_an_archive_whose_checksum_the_card_has_is_read_once(site, tmp_path, monkeypatch):
    site.files[PATH] = data = packed("zip")
    monkeypatch.setattr("harness.graph.fetch.download.find_damage", None)
    file = RemoteFile(
        url="https://data.example.org/sets/graph.bin",
        file="raw/graph.zip",
        sha256=hashlib.sha256(data).hexdigest().upper(),
    )
    assert download_file(file, tmp_path, print, QUICK).read_bytes() == data


def test_a_redirect_is_followed(site, tmp_path):
    site.files["/elsewhere"] = DATA
    site.faults[PATH] = [f"to {site.url}/elsewhere"]
    assert fetch(tmp_path) == DATA


def test_a_file_that_changed_meanwhile_is_begun_anew(site, tmp_path):
    site.faults[PATH] = ["short"] + ["503"] * QUICK.max_idle_attempts
    with pytest.raises(RunError, match=r"503.*graph\.bin\.part"):
        fetch(tmp_path)
    assert (tmp_path / "raw" / "graph.bin.part").stat().st_size == len(DATA) // 2
    site.files[PATH] = other = DATA[::-1]
    assert fetch(tmp_path) == other


@pytest.mark.parametrize(
    ("fault", "known", "said"),
    [
        ("410", {}, "410"),
        ("451", {}, "451"),
        ("404", {}, "404"),
        ("403", {}, "403"),
        ("gzip", {"sha256": SHA}, "'gzip'"),
        ("html", {}, "web page"),
        ("page", {}, "web page"),
        ("no length", {}, "length"),
        ("cut", {}, "length"),
        ("cut", {"sha256": SHA}, "expected"),
        ("", {"sha256": "0" * 64}, "expected"),
        ("cut", {"bytes": len(DATA)}, "2,500,000 .*5,000,000"),
        ("", {"bytes": 7}, "5,000,000 .* 7"),
        ("no length", {"bytes": 7}, "5,000,000 .* 7"),
    ],
)
def test_wrong_download_is_refused_and_removed(site, tmp_path, fault, known, said):
    site.faults[PATH] = [fault]
    with pytest.raises(UserError, match=said) as refusal:
        fetch(tmp_path, **known)
    assert "HARNESS_MIRROR" in str(refusal.value)
    assert str(refusal.value).endswith(str(tmp_path / "raw" / "graph.bin"))
    assert not (tmp_path / "raw" / "graph.bin").exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.part")) == 0
    assert len(site.asked) == 1


def test_unreachable_server_is_reported_after_retries(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(RunError, match="6 attempts"):
        fetch(tmp_path)


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
        with pytest.raises(RunError, match=rf"{os.strerror(errno.ENOSPC)}.*HARNESS_DATASETS"):
            fetch(tmp_path)
    assert not (tmp_path / "raw" / "graph.bin").exists()
    assert fetch(tmp_path) == DATA
    assert site.asked[-1][1] is not None


START = """
import sys
from pathlib import Path
from harness.graph.fetch.download import download_file
from harness.graph.fetch.transfer import RetryPolicy
from harness.graph.sources.remote import RemoteFile
remote = RemoteFile(url="https://data.example.org/sets/graph.bin", file="raw/graph.bin")
download_file(remote, Path(sys.argv[1]), lambda told: print(told, flush=True), RetryPolicy(pause=0.001))
"""


def another(folder: Path) -> subprocess.Popen[str]:
    """Another process that fetches the file."""
    command = [sys.executable, "-c", START, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, text=True)


@pytest.mark.long
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


@pytest.mark.parametrize("file", ["../graph.bin", "raw/../../graph.bin", "/tmp/graph.bin"])
def test_nothing_is_fetched_to_another_place(site, tmp_path, file):
    with pytest.raises(UserError, match=re.escape(file)):
        download_file(RemoteFile(url="https://data.example.org/sets/graph.bin", file=file), tmp_path, print)
    assert site.asked == []


def test_a_folder_in_the_place_of_the_file_is_said_before_anything_comes(site, tmp_path):
    (tmp_path / "raw" / "graph.bin").mkdir(parents=True)
    with pytest.raises(UserError, match=r"raw/graph\.bin"):
        fetch(tmp_path)
    assert site.asked == []


def test_raw_may_be_a_link_to_another_disk(site, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "raw").symlink_to(tmp_path / "elsewhere")
    site.faults[PATH] = ["short"]
    assert fetch(tmp_path) == DATA
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "graph.bin",
        "graph.bin.sha256",
    ]


@pytest.mark.parametrize(
    "url",
    ["http://[::1/x", "https://host:port/x", "mirror.example.org/x", "file:///etc", "http:///x", "ftp://h/x"],
)
def test_invalid_url_is_refused(tmp_path, monkeypatch, url):
    with pytest.raises(UserError, match="http"):
        download_file(RemoteFile(url=url, file="x"), tmp_path, print, QUICK)
    monkeypatch.setenv("HARNESS_MIRROR", url)
    with pytest.raises(UserError, match="HARNESS_MIRROR="):
        fetch(tmp_path)


@pytest.mark.parametrize("url", ["http://[2001:db8::1]:8080/a%20b/c?d=e", "http://h.example.org/a b"])
def test_a_url_is_asked_for_as_it_is(site, monkeypatch, url):
    asked = RemoteFile(url=url, file="x").request_url.removeprefix(site.url)
    assert asked == url.removeprefix("http:/").replace(" ", "%20")


def test_a_redirect_leads_only_over_http(site, tmp_path):
    site.faults[PATH] = ["to ftp://127.0.0.1/graph.bin"]
    with pytest.raises(UserError, match="ftp"):
        fetch(tmp_path)


def test_untrusted_certificate_is_reported_immediately(tmp_path, monkeypatch):
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    command += ["-keyout", "key", "-out", "cert"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    said = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            link, _ = server.accept()
            with suppress(OSError):
                context.wrap_socket(link, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("HARNESS_MIRROR", f"https://localhost:{server.getsockname()[1]}")
        with pytest.raises(UserError, match=r"localhost.*SSL_CERT_FILE"):
            download_file(remote(), tmp_path, said.append, QUICK)
    assert said == [], "it was not tried again"


def test_a_proxy_that_is_gone_is_named_without_its_password(tmp_path, monkeypatch):
    monkeypatch.delenv("HARNESS_MIRROR")
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:9")
    with pytest.raises(RunError, match=r"proxy 127\.0\.0\.1:9") as refusal:
        fetch(tmp_path)
    assert "secret" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 50])
def test_waiter_resumes_after_killed_downloader(site, tmp_path, rounds):
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


def test_stale_lock_does_not_block(site, tmp_path):
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
    verify_download(remote(), tmp_path)
    path.write_bytes(DATA[:-1])
    with pytest.raises(UserError, match=r"graph\.bin"):
        verify_download(remote(), tmp_path)
    path.unlink()
    assert fetch(tmp_path) == DATA


def test_a_file_put_in_its_place_by_hand_is_taken(site, tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "graph.bin").write_bytes(b"mine")
    assert fetch(tmp_path) == b"mine"
    assert site.asked == []


def test_no_test_reaches_another_machine():
    with socket.socket() as link, pytest.raises(AssertionError, match="wanted to reach"):
        link.connect(("192.0.2.1", 80))
