"""The hash of built-in strategies at a commit is the hash that runs of that commit recorded."""

import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from harness.runtime.provenance import hash_committed_strategies
from harness.spec.spec import hash_data

FILES = {"one.py": "ONE = 1\n", "folder/two.py": "TWO = 2\n"}


@pytest.fixture
def commit(tmp_path: Path) -> str:
    """The commit of a repository with two strategies, whose files were changed since."""
    for name, text in FILES.items():
        path = tmp_path / "strategies" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "strategies" / "notes.md").write_text("no code")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add strategies"]):
        identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    (tmp_path / "strategies" / "one.py").write_text("ONE = 3\n")
    return head.stdout.strip()


def test_hash_is_of_the_files_at_the_commit(commit: str, tmp_path: Path) -> None:
    expected = hash_data({name: sha256(text.encode()).hexdigest() for name, text in FILES.items()})
    assert hash_committed_strategies(tmp_path, commit) == expected


@pytest.mark.parametrize("name", ["", "HEAD", "--all", "0" * 40, "--output=x" + "0" * 30])
def test_unknown_commit_has_no_hash(name: str, commit: str, tmp_path: Path) -> None:
    assert hash_committed_strategies(tmp_path, name) == ""
    assert not (tmp_path / "x").exists()
