"""What comes from the machine and not from the harness: its refusals, its encoding, and its clock."""

import ast
import errno
import io
import os
import sys
from pathlib import Path

import pytest

import harness.cli
from harness.base.errors import RunError, UserError, clip_middle, environment_error
from harness.cli import main

ROOT = Path(__file__).parents[1]
PRODUCT = [
    path for room in ("harness", "strategies") for path in sorted((ROOT / room).glob("**/*.py"), key=str)
]
COMPARE_DATES = {"harness/base/files.py", "harness/graph/fetch/transfer.py"}
"""The modules that compare the time of day with a date: of a file, and of a server's answer."""


def replace_verbs(monkeypatch, act):
    """Make every command line call this function."""
    monkeypatch.setattr(harness.cli, "_run_verb", lambda _: act())


@pytest.mark.parametrize(
    ("number", "code", "way_out"),
    [
        (errno.ENOSPC, 1, ""),
        (errno.EROFS, 2, ""),
        (errno.EACCES, 2, ""),
        (errno.ENAMETOOLONG, 2, "shorter"),
        (errno.EMFILE, 1, "ulimit -n"),
        (errno.EIO, 1, ""),
        (errno.EAGAIN, 1, "ulimit -a"),
    ],
)
def test_a_refusal_of_the_operating_system_is_one_sentence_with_the_path(
    monkeypatch, capsys, number, code, way_out
):
    def act():
        raise OSError(number, os.strerror(number), "/some/place")

    replace_verbs(monkeypatch, act)
    assert main(["any"]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"harness: /some/place: {os.strerror(number)}. ") and said.count("\n") == 1
    assert way_out in said and "defect" not in said


def test_a_file_that_the_harness_should_have_made_stays_a_defect():
    assert environment_error(FileNotFoundError(errno.ENOENT, "No such file", "mine")) is None
    assert isinstance(environment_error(OSError(errno.EMFILE, "Too many")), RunError)
    assert isinstance(environment_error(PermissionError(errno.EACCES, "No", b"/bytes")), UserError)


def test_a_path_that_is_too_long_is_refused(capsys):
    assert main(["collect", "--runs", f"/tmp/{'a' * 5000}"]) == 2
    said = capsys.readouterr().err
    assert os.strerror(errno.ENAMETOOLONG) in said and len(said) < 500


def test_the_middle_of_a_long_text_is_left_out():
    assert clip_middle("abc", 3) == "abc"
    assert clip_middle("abcdefgh", 5) == "ab…gh"
    assert len(clip_middle("x" * 9, 4)) == 4


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_a_character_shows_its_escape(monkeypatch, encoding):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding=encoding, errors="strict"))
    replace_verbs(monkeypatch, lambda: print("2→3", flush=True) or 0)
    assert main(["any"]) == 0
    assert shown.getvalue() == b"2\\u21923\n"


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def is_text_without_encoding(name, call):
    owner = ast.unparse(call.func)
    if any(word.arg == "encoding" for word in call.keywords) or "os.open" in owner or "tar" in owner:
        return False
    modes = [word.value for part in call.args for word in ast.walk(part) if isinstance(word, ast.Constant)]
    texts = {"read_text": 0, "write_text": 1}
    if name in texts:
        return len(call.args) == texts[name]
    return name == "open" and not any("b" in str(mode) for mode in modes) and len(call.args) < 2


def test_files_are_written_and_read_as_utf_8():
    """Whatever the locale: a file that one machine writes is read on another."""
    others = ("archive.open", "build_opener(_HttpRedirectHandler).open")
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in PRODUCT
        for name, call in calls(ast.parse(path.read_text(encoding="utf-8")))
        if is_text_without_encoding(name, call) and ast.unparse(call.func) not in others
    ]
    assert found == []


def is_time_of_day(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "time.time"


def test_no_duration_is_a_difference_of_times_of_day():
    """Somebody may set the clock in between."""
    found = set()
    for path in PRODUCT:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            sides = []
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
                sides = [node.left, node.right]
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
            if any(map(is_time_of_day, sides)):
                found.add(str(path.relative_to(ROOT)))
    assert found == COMPARE_DATES


def test_a_clock_that_is_set_does_not_change_the_stages(monkeypatch):
    from harness.runtime.open_run import Stages

    stages = Stages()
    monkeypatch.setattr("time.time", lambda: stages.begun + 3600)
    assert stages.end("open") - stages.begun < 600
    assert stages.seconds["open"] < 600
