"""The line about the progress of a run: the first epoch may compile kernels, and its time is an upper bound."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.runtime.rank import _report_progress


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (1, "1 of 12.* 13.5 s.* 1.397.*at most 148 s"),
        (2, "2 of 12.* 13.5 s.* 1.397, 135 s"),
    ],
)
def test_remaining_time_after_the_first_epoch_is_an_upper_bound(tmp_path: Path, done: int, told: str) -> None:
    tables: Any = SimpleNamespace(epochs=[{"seconds": 13.5, "loss": 1.3971}] * done)
    _report_progress(tmp_path, tables, 12)
    assert re.search(told, (tmp_path / "progress").read_text())
