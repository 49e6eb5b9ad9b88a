"""The history of runs: the runs that have a result, and the time that a run like another one took.

The run folders are read without their tables. A folder that cannot be read counts as absent here; collecting its record
names the fault.
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
"""The keys in which two runs of equal duration may differ."""


class RunHistory:
    """The records of a folder, as they were at the first question."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def settled(self, run_id: str) -> bool:
        """True if the run has a result."""
        return bool(_read(self._runs / run_id / "record.json").get("status") in SETTLED)

    def seconds(self, spec: dict[str, Any]) -> float | None:
        """The time of the last run like this one, from its start to its record."""
        return self._lasted.get(likeness(spec))

    @cached_property
    def _lasted(self) -> dict[str, float]:
        ended = []
        for folder in whole_folders(self._runs):
            record, spec = _read(folder / "record.json"), _read(folder / "spec.json")
            with suppress(KeyError, TypeError):
                if record["status"] == "ok" and record.get("source") != "external":
                    started, finished = record["provenance"]["started"], record["provenance"]["finished"]
                    ended.append((finished, finished - started, likeness(spec)))
        return {likeness: seconds for _, seconds, likeness in sorted(ended)}


def likeness(spec: dict[str, Any]) -> str:
    return canonical_json({key: value for key, value in spec.items() if key not in UNLIKE})


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


# The time limit of a run, and of a job with several runs.

MARGIN = 2.0
"""The limit of a run over the time of the last similar run."""
START = 1.0
"""Minutes that do not depend on the run: starting Python everywhere, a busy file system."""
AROUND = 5.0
"""Minutes of a job before its first run and after its last."""


def run_minutes(
    spec: dict[str, Any], slurm: Slurm, history: RunHistory, predicted: float | None = None
) -> float:
    """The limit of a run: MARGIN times its last like and START.

    Without an earlier run it is the machine card's `minutes`, or more if the seconds that are predicted at most need
    more. A prediction shortens no limit: a run that exceeds its limit counts as one that takes too long.
    """
    if (last := history.seconds(spec)) is not None:
        return MARGIN * last / 60 + START
    return max(slurm.minutes, MARGIN * (predicted or 0) / 60 + START)


def job_minutes(each: Sequence[float], slurm: Slurm) -> float:
    """The limit of a job whose runs go one after the other: the sum of their limits, with one START.

    The limit is at most the machine card's `job_minutes`, unless one run needs more. The remaining runs are left to
    another job.
    """
    most = max(each, default=START)
    known = sum(minutes - START for minutes in each) + START
    return min(max(known, most), max(slurm.job_minutes, most)) + AROUND
