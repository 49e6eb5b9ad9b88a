"""A folder appears whole or not at all, whatever happens while it is written."""

import errno
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.errors import RunError, UserError
from harness.store import writer as writer_module
from harness.store.writer import remove_folder, whole_folder

ARRAY = np.arange(1000)


def everything(folder):
    return sorted(path.name for path in folder.iterdir())


def put_and_seal(folder, text="{}"):
    with whole_folder(folder, needs=1) as writer:
        writer.put("a/b", ARRAY)
        writer.seal("last.json", text)


def put_and(folder, then):
    """Something happens between two arrays."""
    with whole_folder(folder, needs=1) as writer:
        writer.put("a", ARRAY)
        then()
        writer.put("b", ARRAY)


def test_sealed_it_holds_the_arrays_and_nothing_else(tmp_path):
    put_and_seal(tmp_path / "s")
    assert everything(tmp_path) == ["s"]
    assert everything(tmp_path / "s") == ["a", "last.json"]
    np.testing.assert_array_equal(np.load(tmp_path / "s" / "a" / "b.npy"), ARRAY)


def test_records_are_those_of_the_files(tmp_path):
    with whole_folder(tmp_path / "s", needs=1) as writer:
        for name, array in (("x", ARRAY), ("empty", ARRAY[:0]), ("strided", ARRAY.reshape(10, 100)[:, ::3])):
            writer.put(name, array)
        writer.seal("last.json", "{}")
    for name, record in writer.files.items():
        content = (tmp_path / "s" / name).read_bytes()
        assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        put_and(tmp_path / "s", lambda: 1 / 0)
    assert everything(tmp_path) == []


def test_without_a_seal_nothing_appears(tmp_path):
    with whole_folder(tmp_path / "s", needs=1) as writer:
        writer.put("a", ARRAY)
    assert everything(tmp_path) == []


def test_two_writers_at_once_leave_the_first_ones_folder(tmp_path):
    with whole_folder(tmp_path / "s", needs=1) as slow:
        slow.put("a", ARRAY)
        put_and_seal(tmp_path / "s", "fast")
        slow.put("b", ARRAY)
        slow.seal("last.json", "slow")
    assert everything(tmp_path) == ["s"]
    assert (tmp_path / "s" / "last.json").read_text() == "fast"


def test_a_folder_that_is_in_the_way_is_named(tmp_path):
    (tmp_path / "s" / "mine").mkdir(parents=True)
    with pytest.raises(RunError, match="in the way"):
        put_and_seal(tmp_path / "s")
    assert everything(tmp_path) == ["s"]
    assert everything(tmp_path / "s") == ["mine"]


def test_a_killed_writer_leaves_no_folder_and_the_next_one_cleans_up(tmp_path):
    program = (
        "import os, signal, numpy, pathlib\n"
        "from harness.store.writer import remove_folder, whole_folder\n"
        f"with whole_folder(pathlib.Path({str(tmp_path / 's')!r}), needs=1) as writer:\n"
        "    writer.put('a', numpy.arange(9)); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(Path.cwd())}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(everything(tmp_path)) == 1
    assert not (tmp_path / "s").exists()
    put_and_seal(tmp_path / "s")
    assert everything(tmp_path) == ["s"]


def test_a_removed_folder_is_gone_whole(tmp_path):
    put_and_seal(tmp_path / "s")
    remove_folder(tmp_path / "s")
    remove_folder(tmp_path / "s")
    assert everything(tmp_path) == []


def test_what_a_killed_remover_left_is_cleaned_up(tmp_path):
    put_and_seal(tmp_path / ".s.12345678.old")
    put_and_seal(tmp_path / "s")
    assert everything(tmp_path) == ["s"]


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path):
    with (
        pytest.raises(RunError, match=r"bytes free, but s needs .*HARNESS_DATASETS"),
        whole_folder(tmp_path / "s", needs=1 << 60),
    ):
        pass
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, RunError), (errno.EDQUOT, RunError), (errno.EIO, RunError), (errno.EACCES, UserError)],
)
def test_what_the_system_refuses_midway_leaves_nothing(tmp_path, monkeypatch, number, kind):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    def fill_the_disk():
        monkeypatch.setattr(writer_module.np.lib.format, "write_array", refuse)

    with pytest.raises(kind) as error:
        put_and(tmp_path / "s", fill_the_disk)
    assert str(tmp_path / "s") in str(error.value)
    assert os.strerror(number) in str(error.value)
    assert re.search("Nothing (of it was kept|was changed)", str(error.value))
    assert everything(tmp_path) == []


def test_a_real_limit_on_file_size_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(RunError, match="Nothing of it was kept"):
            put_and(tmp_path / "s", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert everything(tmp_path) == []


def test_a_place_that_cannot_hold_folders_is_a_wrong_request(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="HARNESS_DATASETS"), whole_folder(tmp_path / "file" / "s", needs=1):
        pass
