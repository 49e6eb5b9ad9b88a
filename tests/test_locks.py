"""Where a file system has no locks, what ranks of one machine share goes to a local file system that has."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.base import locks
from harness.base.errors import UserError
from harness.base.files import is_abandoned, owner_tag
from harness.base.locks import TurnLock, acquire_lock, describe_mount, find_lockable_path, has_locks, try_lock
from harness.comm.world_store import open_file_store

ROOT = Path(__file__).parents[1]


@pytest.fixture
def without_locks(tmp_path, monkeypatch):
    """A folder on a file system without locks, and the local one next to it that has them."""
    remote, local = tmp_path / "remote", tmp_path / "local"
    scratch = remote / f"launch-{owner_tag()}.abcdefgh"
    scratch.mkdir(parents=True)
    local.mkdir()
    take = fcntl.flock

    def flock(file, kind):
        if Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(remote):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        take(file, kind)

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(locks, "MEMORY", tmp_path / "absent")
    monkeypatch.setattr("tempfile.tempdir", str(local))
    return scratch


def test_a_file_system_with_locks_is_used_as_it_is(tmp_path):
    assert has_locks(tmp_path)
    assert find_lockable_path(tmp_path / "meeting") == tmp_path / "meeting"
    assert list(tmp_path.iterdir()) == []


def test_ranks_meet_on_a_local_file_system_if_theirs_has_no_locks(without_locks, tmp_path):
    store = open_file_store(without_locks / "meeting", 1)
    store.set("key", "value")
    (place,) = (tmp_path / "local" / f"harness-{os.getuid()}-locks").iterdir()
    assert store.get("key") == b"value"
    assert list(without_locks.iterdir()) == []
    assert place.parent.stat().st_mode & 0o777 == 0o700
    del store
    assert not place.exists()


def test_the_local_file_belongs_to_the_process_that_made_the_folder(without_locks):
    place = find_lockable_path(without_locks / "meeting")
    assert (
        place == find_lockable_path(without_locks / "meeting") != find_lockable_path(without_locks / "turn")
    )
    assert not is_abandoned(place)
    owner = owner_tag().replace(f"-{os.getpid()}-", "-999999999-")
    assert is_abandoned(Path(place.name.replace(owner_tag(), owner)))


def test_leftovers_of_a_dead_launcher_are_removed(without_locks):
    place = find_lockable_path(without_locks / "meeting")
    dead = place.with_name(place.name.replace(f"-{os.getpid()}-", "-999999999-"))
    dead.touch()
    del (store := [open_file_store(without_locks / "meeting", 1)])[0]
    assert store == [] and not dead.exists()


def test_a_turn_is_held_and_leaves_no_file(without_locks):
    first, second = (TurnLock(find_lockable_path(without_locks / "turn")) for _ in range(2))
    first.acquire()
    with pytest.raises(BlockingIOError):
        fcntl.flock(second._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for turn in (first, second):
        turn.close()
    assert list(find_lockable_path(without_locks / "turn").parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_to_is_not_used(without_locks, tmp_path, mode):
    (tmp_path / "local" / f"harness-{os.getuid()}-locks").mkdir()
    (tmp_path / "local" / f"harness-{os.getuid()}-locks").chmod(mode)
    with pytest.raises(UserError, match=r" at /.*TMPDIR"):
        find_lockable_path(without_locks / "meeting")


def test_a_link_is_not_used(without_locks, tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "local" / f"harness-{os.getuid()}-locks").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="TMPDIR"):
        find_lockable_path(without_locks / "meeting")


def test_the_file_system_is_that_of_the_innermost_mount(monkeypatch, tmp_path):
    table = tmp_path / "mounts"
    table.write_text(
        "22 1 0:1 / / rw - ext4 /dev/a rw\n"
        "23 22 0:2 / /home rw,nosuid shared:1 - nfs4 server:/home rw\n"
        "24 22 0:3 / /homes rw - lustre mgs:/fs rw\n"
    )
    monkeypatch.setattr(locks, "MOUNTS", table)
    assert describe_mount(Path("/home/me/results")) == "nfs4 at /home"
    assert describe_mount(Path("/homes/me")) == "lustre at /homes"
    assert describe_mount(Path("/var")) == "ext4 at /"


FLOCK = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int flock(int file, int kind) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  readlink(link, path, sizeof path - 1);
  const char *under = getenv("WITHOUT_LOCKS");
  if (strncmp(path, under, strlen(under)) == 0) {
    errno = ENOLCK;
    return -1;
  }
  return syscall(SYS_flock, file, kind);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="this machine has no C compiler")
def test_two_ranks_run_on_a_file_system_without_locks(tmp_path):
    """torch takes its locks in C++, so a library that is loaded first refuses them."""
    (tmp_path / "flock.c").write_text(FLOCK)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / "flock.so", tmp_path / "flock.c"], check=True
    )
    remote = tmp_path / "remote"
    words = [
        "run",
        "--strategy",
        "cagnet-1d",
        "--dataset",
        "tiny-sbm",
        "--ranks",
        "2",
        "--set",
        "training.epochs=1",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "harness", *words, "--set", "measure.tape=true"],
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": str(tmp_path / "flock.so"),
            "WITHOUT_LOCKS": str(remote),
            "HARNESS_RESULTS": str(remote / "results"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert [path.name for path in (remote / "results").iterdir()] == ["runs"]


def test_folder_that_is_removed_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """Another process has made the folder before this one, and removes it before this one looks what it is."""
    make, times = os.mkdir, 3

    def mkdir(path, mode=0o777):
        nonlocal times
        make(path, mode)
        if times:
            times -= 1
            Path(path).rmdir()
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with acquire_lock(tmp_path / "work" / ".lock") as is_held:
        assert is_held
        assert times == 0


def test_obstructed_lock_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for name in ("file", "link"):
        for place in (tmp_path / name / ".lock", tmp_path / name / "work" / ".lock"):
            with pytest.raises((FileExistsError, NotADirectoryError)), acquire_lock(place):
                pass


@pytest.mark.parametrize("hold", [acquire_lock, try_lock])
def test_process_that_was_forked_meanwhile_does_not_keep_a_lock(tmp_path, hold):
    """It has the file open, too. Those who wait have opened it before it was removed."""
    waiting, got = threading.Event(), threading.Event()

    def wait_for_it():
        with acquire_lock(tmp_path / ".lock", wait=waiting.set):
            got.set()

    with hold(tmp_path / ".lock"):
        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        assert waiting.wait(30)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        assert got.wait(30)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        waiter.join()
