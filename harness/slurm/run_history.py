"""What earlier runs tell: which need not run again, and how long their likes took.

It reads the run folders without their tables. A folder that cannot be read tells nothing; who wants its record will say
what is wrong with it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.files import whole_folders
from harness.results.statuses import SETTLED
from harness.spec.machine_card import Slurm
from harness.spec.spec import canonical_json

UNLIKE = ("launch", "seed")
"""What two runs that take equally long may differ in."""


class Past:
    """The records of a folder, as they were when they were first asked for."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def settled(self, run_id: str) -> bool:
        """Whether the run has a result."""
        return bool(_read(self._runs / run_id / "record.json").get("status") in SETTLED)

    def seconds(self, spec: dict[str, Any]) -> float | None:
        """What the last run like this one took, from its start to its record."""
        return self._lasted.get(_likeness(spec))

    @cached_property
    def _lasted(self) -> dict[str, float]:
        ended = []
        for folder in whole_folders(self._runs):
            record, spec = _read(folder / "record.json"), _read(folder / "spec.json")
            with suppress(KeyError, TypeError):
                if record["status"] == "ok" and record.get("source") != "external":
                    started, finished = record["provenance"]["started"], record["provenance"]["finished"]
                    ended.append((finished, finished - started, _likeness(spec)))
        return {likeness: seconds for _, seconds, likeness in sorted(ended)}


def _likeness(spec: dict[str, Any]) -> str:
    return canonical_json({key: value for key, value in spec.items() if key not in UNLIKE})


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


# How long a run may take, and how long a job for several of them.

MARGIN = 2.0
"""Of what a run may take over what the last one like it took."""
START = 1.0
"""Minutes for what does not depend on the run: starting Python everywhere, a busy file system."""
AROUND = 5.0
"""Minutes of a job before its first run and after its last."""


def run_minutes(spec: dict[str, Any], slurm: Slurm, past: Past) -> float:
    """After so long a run counts as one that takes too long."""
    last = past.seconds(spec)
    return slurm.minutes if last is None else MARGIN * last / 60 + START


def job_minutes(specs: Sequence[dict[str, Any]], slurm: Slurm, past: Past) -> float:
    """For runs one after the other, and for any of them to take all that it may.

    No more than the machine's jobs may take, unless one run may take more: what does not fit is left for another job.
    """
    each = [run_minutes(spec, slurm, past) for spec in specs]
    most = max(each, default=START)
    known = sum(minutes - START for minutes in each) + START
    return min(max(known, most), max(slurm.job_minutes, most)) + AROUND
