"""What the tests of tables share: synthetic runs, and a user who may not write everywhere."""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

SYNTHETIC = runpy.run_path(str(Path(__file__).parents[1] / "synthetic_runs.py"))


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    """The functions of tests/synthetic_runs.py."""
    return SimpleNamespace(**SYNTHETIC)


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """A folder that this user may not write to, even if this user is root."""
    folder = tmp_path / "forbidden"
    folder.mkdir()
    folder.chmod(0o555)
    for parent in folder.parents[:3]:
        if parent.name.startswith("pytest-"):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield folder
    if root:
        os.seteuid(0)
