"""A folder is written atomically, also if writing is interrupted."""

import errno
import hashlib
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.base import files
from harness.base.errors import RunError, UserError
from harness.base.files import (
    DATASETS,
    HashedFile,
    atomic_folder,
    check_free_space,
    is_abandoned,
    make_private_folder,
    owner_tag,
    remove_folder,
    remove_leftovers,
    temporary_path,
)
from tests.python_path import CHECKOUT, with_python_path

ARRAY = np.arange(1000)


def everything(folder):
    return sorted(path.name for path in folder.iterdir())


def put(folder, name, array=ARRAY):
    """Writes an array as the store writes one; returns what was hashed."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        hashed = HashedFile(file)
        np.lib.format.write_array(hashed, np.ascontiguousarray(array))
    return hashed


def write(folder, text="{}", *, replace=False):
    with atomic_folder(folder, "last.json", DATASETS, replace=replace) as partial:
        put(partial, "a/b.npy")
        (partial / "last.json").write_text(text)


def write_and(folder, then):
    """Something happens between two arrays."""
    with atomic_folder(folder, "last.json", DATASETS) as partial:
        put(partial, "a")
        then()
        put(partial, "last.json")


def test_a_whole_folder_holds_the_arrays_and_nothing_else(tmp_path):
    write(tmp_path / "s")
    assert everything(tmp_path) == ["s"]
    assert everything(tmp_path / "s") == ["a", "last.json"]
    np.testing.assert_array_equal(np.load(tmp_path / "s" / "a" / "b.npy"), ARRAY)


def test_hash_is_that_of_the_file(tmp_path):
    for name, array in (("x", ARRAY), ("empty", ARRAY[:0]), ("strided", ARRAY.reshape(10, 100)[:, ::3])):
        hashed = put(tmp_path, name, array)
        content = (tmp_path / name).read_bytes()
        assert (hashed.bytes, hashed.sha256.hexdigest()) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_and(tmp_path / "s", lambda: 1 / 0)
    assert everything(tmp_path) == []


def test_without_its_last_file_nothing_appears(tmp_path):
    with (
        pytest.raises(AssertionError, match=r"last\.json"),
        atomic_folder(tmp_path / "s", "last.json") as partial,
    ):
        put(partial, "a")
    assert everything(tmp_path) == []


def test_two_writers_at_once_leave_the_first_ones_folder(tmp_path):
    with atomic_folder(tmp_path / "s", "last.json") as slow:
        put(slow, "a")
        write(tmp_path / "s", "fast")
        put(slow, "last.json")
    assert everything(tmp_path) == ["s"]
    assert (tmp_path / "s" / "last.json").read_text() == "fast"


def test_a_folder_is_replaced_whole_where_that_is_asked_for(tmp_path):
    write(tmp_path / "s", "old")
    (tmp_path / "s" / "more").touch()
    write(tmp_path / "s", "new", replace=True)
    assert everything(tmp_path) == ["s"]
    assert everything(tmp_path / "s") == ["a", "last.json"]
    assert (tmp_path / "s" / "last.json").read_text() == "new"


def test_a_folder_that_is_in_the_way_is_named(tmp_path):
    (tmp_path / "s" / "mine").mkdir(parents=True)
    with pytest.raises(RunError, match=str(tmp_path / "s")):
        write(tmp_path / "s")
    assert everything(tmp_path) == ["s"]
    assert everything(tmp_path / "s") == ["mine"]


def killed(program):
    """Another process that kills itself."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os, pathlib, shutil, signal\nimport harness.base.files as files\n{program}",
        ],
        env=with_python_path(CHECKOUT),
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_killed_writer_leaves_no_folder_and_the_next_one_cleans_up(tmp_path):
    killed(
        f"with files.atomic_folder(pathlib.Path({str(tmp_path / 's')!r}), 'last.json') as partial:\n"
        "    (partial / 'a').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert len(everything(tmp_path)) == 1
    assert not (tmp_path / "s").exists()
    write(tmp_path / "s")
    assert everything(tmp_path) == ["s"]


def test_a_removed_folder_is_gone_whole(tmp_path):
    write(tmp_path / "s")
    remove_folder(tmp_path / "s")
    remove_folder(tmp_path / "s")
    assert everything(tmp_path) == []


def test_leftovers_of_a_killed_removal_are_removed(tmp_path):
    write(tmp_path / "s")
    killed(
        "shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"files.remove_folder(pathlib.Path({str(tmp_path / 's')!r}))\n"
    )
    assert len(everything(tmp_path)) == 1
    assert not (tmp_path / "s").exists()
    write(tmp_path / "s")
    assert everything(tmp_path) == ["s"]


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path):
    with pytest.raises(RunError, match="HARNESS_DATASETS"):
        check_free_space(tmp_path / "s", 1 << 60)
    check_free_space(tmp_path / "new" / "s", shutil.disk_usage(tmp_path).free // 2)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, RunError), (errno.EDQUOT, RunError), (errno.EIO, RunError), (errno.EACCES, UserError)],
)
def test_failed_system_call_leaves_no_files(tmp_path, monkeypatch, number, kind):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    def fill_the_disk():
        monkeypatch.setattr(HashedFile, "write", refuse)

    with pytest.raises(kind) as error:
        write_and(tmp_path / "s", fill_the_disk)
    assert str(tmp_path / "s") in str(error.value) and os.strerror(number) in str(error.value)
    assert everything(tmp_path) == []


def test_a_real_limit_on_file_size_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(RunError, match=str(tmp_path / "s")):
            write_and(tmp_path / "s", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything(tmp_path) == []


def test_a_place_that_cannot_hold_folders_is_a_wrong_request(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="HARNESS_DATASETS"):
        write(tmp_path / "file" / "s")


@pytest.mark.parametrize(
    "name",
    [
        "launch-{host}-20231.notes",
        "launch-{host}-99999999.tar",
        "launch-{host}-99999999.ab12cd34",
        "launch-{tag}.ab12cd34.tar",
        "launch-{tag}",
        ".thesis.{host}-4000000.part",
        ".thesis.{host}-4000000.0123abcd.part",
        ".thesis.{tag}.part",
        "thesis.{tag}.0123abcd.part",
        ".thesis.{tag}.0123abcd.part.pdf",
    ],
)
def test_sweep_leaves_files_that_only_resemble_leftovers(tmp_path, name):
    dead = re.sub(r"-\d+-\d+$", "-4000000-1", owner_tag())
    path = tmp_path / name.format(host=files.platform.node(), tag=dead)
    for own in (path, path.with_name(f"{path.name}s")):
        own.mkdir()
        (own / "chapter.tex").touch()
    remove_leftovers(tmp_path)
    assert (path / "chapter.tex").exists()
    assert (path.with_name(f"{path.name}s") / "chapter.tex").exists()


def leftover_of(tag, folder):
    path = folder / f"launch-{tag}.ab12cd34"
    path.mkdir()
    (path / "spec.json").touch()
    return path


def test_sweep_removes_the_scratch_of_a_dead_process_and_no_other(tmp_path):
    host, realm, pid, start = owner_tag().rsplit("-", 3)
    mine = leftover_of(owner_tag(), tmp_path)
    dead = leftover_of(f"{host}-{realm}-4000000-{start}", tmp_path)
    reused = leftover_of(f"{host}-{realm}-{pid}-{int(start) - 1}", tmp_path)
    elsewhere = leftover_of(f"{host}-{'0' * 8}-4000000-{start}", tmp_path)
    assert [is_abandoned(each) for each in (mine, dead, reused, elsewhere)] == [False, True, True, False]
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == sorted([mine.name, elsewhere.name])


def test_a_scratch_of_another_boot_is_swept_once_nothing_changed_for_a_month(tmp_path):
    path = leftover_of(f"vm-{'0' * 8}-1-1", tmp_path)
    for each in (path / "spec.json", path):
        os.utime(each, (0, 0))
    (path / "log").touch()
    os.utime(path, (0, 0))
    assert not is_abandoned(path), "one of its files was written today"
    (path / "log").unlink()
    os.utime(path, (0, 0))
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == []


IN_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


def test_sweep_spares_a_live_process_of_another_pid_namespace(tmp_path):
    """Two containers with one hostname share a folder: the ids of one mean nothing in the other."""
    if subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system makes no PID namespaces for its users")
    program = (
        "import os, sys; from pathlib import Path; from harness.base.files import owner_tag, temporary_path\n"
        "os.fork() and (os.wait(), os._exit(0))\n"  # the first process of a namespace has an id that is always taken
        f"folder = Path({str(tmp_path)!r}); temporary_path(folder / 'record').touch()\n"
        "(folder / f'launch-{owner_tag()}.ab12cd34').mkdir(); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [*IN_A_NAMESPACE, sys.executable, "-c", program],
        env=with_python_path(CHECKOUT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = everything(tmp_path)
        remove_leftovers(tmp_path)
        assert everything(tmp_path) == before
        assert len(before) == 2
        other.communicate(b"")


def test_sweep_sees_the_death_of_another_users_process(tmp_path, monkeypatch):
    """Where other users' processes are hidden, a signal is refused, and their start cannot be read."""
    path = leftover_of(owner_tag(), tmp_path)

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(files.os, "kill", refuse)
    monkeypatch.setattr(files, "process_start_ticks", lambda _: None)
    assert not is_abandoned(path)


def test_names_that_siblings_give_are_swept_after_a_kill(tmp_path):
    path = tmp_path / "a.b-1-2.part"
    killed(
        f"path = files.temporary_path(pathlib.Path({str(path)!r})); path.touch()\n"
        "path.with_name(path.name + '.json').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert len(everything(tmp_path)) == 2
    assert temporary_path(path).parent == tmp_path
    remove_leftovers(tmp_path)
    assert everything(tmp_path) == []


def test_a_folder_in_a_shared_place_is_this_users_own_or_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have made the folder first, left a link or a file there, or let everybody write."""
    mine = make_private_folder(tmp_path / "cache")
    assert (mine, stat.S_IMODE(mine.stat().st_mode)) == (tmp_path / "cache", 0o700)
    assert make_private_folder(mine) == mine
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    user = os.getuid()
    for name in ("link", "dangling", "file", "open", "foreign"):
        if name == "foreign":
            (tmp_path / name).mkdir(mode=0o700)
            monkeypatch.setattr(os, "getuid", lambda: user + 1)
        found = make_private_folder(tmp_path / name)
        assert found.parent == tmp_path and found.name.startswith(f"{name}-")
        assert stat.S_IMODE(found.lstat().st_mode) == 0o700
    assert not list((tmp_path / "elsewhere").iterdir())
