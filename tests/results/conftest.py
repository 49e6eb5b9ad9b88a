"""What the tests of tables share: synthetic runs, and a folder that nobody may write to."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """A folder that the user of this process may not write to. Root may write anywhere, so root steps down."""
    folder = tmp_path / "forbidden"
    folder.mkdir(mode=0o555)
    closed = [
        each
        for each in tmp_path.parents
        if each.stat().st_uid == os.geteuid() and not each.stat().st_mode & 1
    ]
    for each in closed:
        each.chmod(each.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        for each in closed:
            each.chmod(each.stat().st_mode & ~0o011)
