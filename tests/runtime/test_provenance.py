"""Provenance tells of the command of the user, of every file that a run may have read, and of the cores it shared."""

import platform
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness.results.statistics import find_oversubscribed
from harness.runtime.provenance import COMMAND, Affinity, collect_provenance, is_dirty, name_processor


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        ("package/one.py", True),
        ("package/new.py", True),
        ("mine/more/new.py", True),
        ("new.py", True),
        ("package/ignored_new.py", False),
        ("tests/test_new.py", False),
        ("mine/tests/test_new.py", False),
        ("config/machines/mine.yaml", False),
        ("notes.txt", False),
        ("output/record.json", False),
    ],
)
def test_code_that_is_new_or_differs_counts_as_uncommitted(path: str, dirty: bool, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    assert is_dirty(tmp_path) is None
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "one.py").write_text("a = 1")
    (tmp_path / ".gitignore").write_text("ignored_*")
    git("init")
    git("add", ".")
    git("commit", "-m", "code")
    assert is_dirty(tmp_path) is False
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("b = 2")
    assert is_dirty(tmp_path) is dirty


def test_the_command_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/harness/runtime/launch/rank.py", "--scratch", "x"])
    (tmp_path / COMMAND).write_text("harness run --strategy serial")
    monkeypatch.setenv("LOADEDMODULES", "cuda/12.4:openmpi/5")
    monkeypatch.setenv("FI_PROVIDER", "cxi")
    told = collect_provenance(tmp_path, tmp_path)
    assert told["command"] == "harness run --strategy serial"
    assert told["modules"] == "cuda/12.4:openmpi/5"
    assert told["env"]["FI_PROVIDER"] == "cxi"


@pytest.mark.parametrize(
    ("affinities", "crowded"),
    [
        ([Affinity("a", (0, 1), 1)] * 2, False),
        ([Affinity("a", (0, 1), 1)] * 3, True),
        ([Affinity("a", (0, 1), 2)] * 2, True),
        ([Affinity("a", (0, 1), 2), Affinity("a", (2, 3), 2)], False),
        ([Affinity("a", (0, 1), 1)] * 2 + [Affinity("b", (0, 1), 1)] * 2, False),
        ([Affinity("a", (0, 1), 1)] + [Affinity("b", (0, 1), 1)] * 3, True),
    ],
)
def test_more_threads_than_cores_on_any_host_is_oversubscribed(
    affinities: list[Affinity], crowded: bool, tmp_path: Path
) -> None:
    """Whatever the load was: by the cores that the ranks of each host could use."""
    told = collect_provenance(tmp_path, None, affinities)
    row = {f"provenance.{name}": told[name] for name in ("cores", "ranks_on_host")}
    row |= {
        "ranks": len(affinities),
        "provenance.threads": affinities[0].threads,
        "machine.threads_per_rank": 1,
    }
    assert find_oversubscribed(pd.DataFrame([{**row, "provenance.env": "{}"}])).tolist() == [crowded]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (
            {"cpu family": "25", "model": "1", "model name": "AMD EPYC 7763 64-Core Processor"},
            "AMD EPYC 7763 64-Core Processor",
        ),
        ({"cpu family": "25", "model": "1", "model name": "AMD EPYC"}, "AMD EPYC (family 25, model 1)"),
        ({"cpu family": "25", "model": "17", "model name": "AMD EPYC"}, "AMD EPYC (family 25, model 17)"),
        ({"BogoMIPS": "50.00", "CPU part": "0xd40"}, platform.machine()),
    ],
)
def test_processors_of_different_models_have_different_names(fields: dict[str, str], name: str) -> None:
    block = "".join(f"{field}\t: {value}\n" for field, value in {"processor": "0", **fields}.items())
    assert name_processor(f"{block}\n{block.replace('AMD', 'another')}\n") == name
