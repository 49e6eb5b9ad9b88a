"""Reading logs by `harness external read`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.results.record import Record, read_record


@pytest.fixture
def read_as(tmp_path: Path) -> Callable[..., int]:
    """`read_as(program, text, *options)`: the exit code of `harness external read`, of a log of that text."""

    def act(program: str, text: str, *options: str) -> int:
        log = tmp_path / "some.log"
        log.write_text(text)
        words = ["external", "read", str(log), "--format", program, "--out", str(tmp_path / "runs")]
        return main([*words, *options])

    return act


def only(folder: Path) -> Record:
    """Return the only record that was written."""
    (run,) = (folder / "runs").iterdir()
    return read_record(run)
