"""The jobs of a workflow: the runs of each job, the time that runs take, and the resources that a job asks for."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.files import whole_folders
from harness.results.statuses import SETTLED
from harness.slurm.resources import Resources, geometry, job, one_node, place
from harness.slurm.site import Site, slurm_of
from harness.spec.machine_card import Slurm
from harness.spec.spec import canonical_json, digest

# The history of runs: the runs that have a result, and the time that a run like another one took.
#
# The run folders are read without their tables. A folder that cannot be read counts as absent here; collecting its
# record names the fault.

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


# Batches: the runs that share a job. Batches follow from the plan and the cards alone, so a second call gives the
# same ones.
#
# Runs of one graph on equally many nodes go one after the other on the same nodes, which is also the fairest
# comparison. Launches are the outermost order, so that competitors take turns. A job costs a place in the queue, if
# the machine has one, and seconds of its own everywhere; a large run has a job to itself.

Runs = Mapping[str, Mapping[str, Any]]
"""The runs of a plan by their ids, each with its spec."""
TOGETHER = 16
"""Runs of a job on a machine without Slurm."""


def batches(runs: Runs, slurm: Mapping[str, Slurm | None]) -> dict[str, list[str]]:
    """The runs of every job, by the job's name: the id of a single run. `slurm` has the card of each machine."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for run_id, run in runs.items():
        groups.setdefault(_group_of(run_id, run["spec"], slurm), []).append(run_id)
    shared = [part for group in groups.values() for part in _parts(group, runs, slurm)]
    return {_name(part): part for part in shared}


def _group_of(run_id: str, spec: Mapping[str, Any], slurm: Mapping[str, Slurm | None]) -> tuple[object, ...]:
    machine = spec["machine"]["name"]
    card = slurm[machine]
    if card is None:
        return (machine, spec["dataset"]["name"])
    nodes = geometry(spec["ranks"], card).nodes
    return (machine, nodes, spec["dataset"]["name"]) if nodes <= card.shared_nodes else (run_id,)


def _parts(group: list[str], runs: Runs, slurm: Mapping[str, Slurm | None]) -> Iterable[list[str]]:
    """Cuts a group into jobs: as many runs as a job has time for, if each takes the `minutes` of the machine card."""
    card = slurm[runs[group[0]]["spec"]["machine"]["name"]]
    together = max(1, int(card.job_minutes // card.minutes)) if card else TOGETHER
    ordered = sorted(group, key=lambda run_id: int(runs[run_id]["spec"].get("launch", 0)))
    return (ordered[start : start + together] for start in range(0, len(ordered), together))


def _name(part: list[str]) -> str:
    return part[0] if len(part) == 1 else digest(part)


UNKNOWN_MINUTES = 30.0
"""The time of a run, or of building a graph, on a machine whose card has no Slurm."""


class Jobs:
    """The jobs of one plan at one site."""

    def __init__(self, root: Path, runs: Runs, site: Site, records: Path) -> None:
        self._runs, self._records, self._site = runs, records, site
        self._history = RunHistory(records)
        machines = {run["spec"]["machine"]["name"] for run in runs.values()}
        self._slurm = {name: slurm_of(root, name, site) for name in machines}
        self._asked: dict[tuple[str, int], Resources] = {}
        self.batches = batches(runs, self._slurm)

    def place(self) -> Resources:
        """The account, partition and the like of all jobs: the machines of one plan share them."""
        return place(self._site, next(iter(self._slurm.values()), None))

    def run(self, batch: str, attempt: int) -> Resources:
        """The resources of a job for those runs of a batch that have no result yet."""
        if (batch, attempt) not in self._asked:
            history = self._history if attempt == 1 else RunHistory(self._records)
            self._asked[batch, attempt] = self._ask(batch, history)
        return self._asked[batch, attempt]

    def build(self) -> Resources:
        """The resources of a job that builds a graph: a whole node."""
        slurm = next(iter(self._slurm.values()), None)
        processors = slurm.ranks_per_node * slurm.cpus_per_rank if slurm else 1
        return one_node(processors, slurm, slurm.job_minutes if slurm else UNKNOWN_MINUTES)

    def _ask(self, batch: str, history: RunHistory) -> Resources:
        specs = [self._runs[run_id]["spec"] for run_id in self.batches[batch]]
        slurm = self._slurm[specs[0]["machine"]["name"]]
        if slurm is None:
            return one_node(max(map(_processors, specs)), None, UNKNOWN_MINUTES)
        left = [self._runs[run_id] for run_id in self.batches[batch] if not history.settled(run_id)]
        limits = [run_minutes(run["spec"], slurm, history, _predicted(run)) for run in left]
        return job([spec["ranks"] for spec in specs], slurm, job_minutes(limits, slurm))


def _predicted(run: Mapping[str, Any]) -> float | None:
    """The seconds that a run is predicted to take at most."""
    cost = run.get("cost")
    return cost["most"] if cost else None


def _processors(spec: Mapping[str, Any]) -> int:
    threads: int = spec["ranks"] * spec["machine"]["threads_per_rank"]
    return threads


# Orphans: jobs whose Snakemake ended before they did.
#
# The executor's jobs carry our prefix in their names (workflows/profiles/slurm) and the folder in which they work.
# Before the first job of a workflow is submitted, any such job is an orphan: Snakemake's lock keeps others out.

PREFIX = "harness_"
PATIENCE = 60


def orphans(folder: Path) -> list[str]:
    """The numbers of the orphans in a folder; empty without Slurm."""
    command = ["squeue", "--me", "--noheader", "--format=%i|%j|%Z"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return []
    jobs = [line.split("|", 2) for line in answer.stdout.splitlines() if line.count("|") > 1]
    paths = {str(folder), str(folder.resolve())}
    return [number for number, name, place in jobs if name.startswith(PREFIX) and place in paths]
