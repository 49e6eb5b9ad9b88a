"""The jobs of a workflow: which runs each has, and what it asks for at the moment it is submitted."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.slurm.resources import Resources, geometry, job, one_node, place
from harness.slurm.run_history import Past, job_minutes
from harness.slurm.site import Site, slurm_of
from harness.spec.machine_card import Slurm
from harness.spec.spec import digest

# Which runs share a job. It follows from the plan and the cards alone: whoever asks again gets the same
# batches.
#
# Runs of one graph on equally many nodes go one after the other on the same nodes, which is also the
# fairest comparison; launches are its outermost order, so that competitors take turns. A job costs a place
# in the queue, where there is one, and seconds of its own everywhere; a large run is enough for one.

Runs = Mapping[str, Mapping[str, Any]]
"""The runs of a plan by their ids, each with its spec."""
TOGETHER = 16
"""Runs of a job on a machine that no Slurm gives out."""


def batches(runs: Runs, slurm: Mapping[str, Slurm | None]) -> dict[str, list[str]]:
    """The runs of every job, by a name: of a job of one run, its id. `slurm` says how each machine is given out."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for run_id, run in runs.items():
        groups.setdefault(_company(run_id, run["spec"], slurm), []).append(run_id)
    shared = [part for group in groups.values() for part in _parts(group, runs, slurm)]
    return {_name(part): part for part in shared}


def _company(run_id: str, spec: Mapping[str, Any], slurm: Mapping[str, Slurm | None]) -> tuple[object, ...]:
    machine = spec["machine"]["name"]
    gives = slurm[machine]
    if gives is None:
        return (machine, spec["dataset"]["name"])
    nodes = geometry(spec["ranks"], gives).nodes
    return (machine, nodes, spec["dataset"]["name"]) if nodes <= gives.shared_nodes else (run_id,)


def _parts(group: list[str], runs: Runs, slurm: Mapping[str, Slurm | None]) -> Iterable[list[str]]:
    """As many together as a job has time for, if each takes what a machine's card allows."""
    gives = slurm[runs[group[0]]["spec"]["machine"]["name"]]
    together = max(1, int(gives.job_minutes // gives.minutes)) if gives else TOGETHER
    ordered = sorted(group, key=lambda run_id: int(runs[run_id]["spec"].get("launch", 0)))
    return (ordered[start : start + together] for start in range(0, len(ordered), together))


def _name(part: list[str]) -> str:
    return part[0] if len(part) == 1 else digest(part)


UNKNOWN_MINUTES = 30.0
"""Of a run on a machine whose card knows no Slurm, and of building a graph there."""


class Jobs:
    """Those of one plan at one site."""

    def __init__(self, root: Path, runs: Runs, site: Site, records: Path) -> None:
        self._runs, self._records, self._site = runs, records, site
        self._past = Past(records)
        machines = {run["spec"]["machine"]["name"] for run in runs.values()}
        self._slurm = {name: slurm_of(root, name, site) for name in machines}
        self._asked: dict[tuple[str, int], Resources] = {}
        self.batches = batches(runs, self._slurm)

    def place(self) -> Resources:
        """Where all of them go; the machines of one plan are given out in one way."""
        return place(self._site, next(iter(self._slurm.values()), None))

    def run(self, batch: str, attempt: int) -> Resources:
        """What a job asks for whose runs are those of a batch that have no result yet."""
        if (batch, attempt) not in self._asked:
            past = self._past if attempt == 1 else Past(self._records)
            self._asked[batch, attempt] = self._ask(batch, past)
        return self._asked[batch, attempt]

    def build(self) -> Resources:
        """What a job asks for that builds a graph: a whole node."""
        slurm = next(iter(self._slurm.values()), None)
        processors = slurm.ranks_per_node * slurm.cpus_per_rank if slurm else 1
        return one_node(processors, slurm, slurm.job_minutes if slurm else UNKNOWN_MINUTES)

    def _ask(self, batch: str, past: Past) -> Resources:
        specs = [self._runs[run_id]["spec"] for run_id in self.batches[batch]]
        slurm = self._slurm[specs[0]["machine"]["name"]]
        if slurm is None:
            return one_node(max(map(_processors, specs)), None, UNKNOWN_MINUTES)
        open_ = [
            spec for run_id, spec in zip(self.batches[batch], specs, strict=True) if not past.settled(run_id)
        ]
        return job([spec["ranks"] for spec in specs], slurm, job_minutes(open_, slurm, past))


def _processors(spec: Mapping[str, Any]) -> int:
    threads: int = spec["ranks"] * spec["machine"]["threads_per_rank"]
    return threads


# Jobs that a Snakemake of this folder submitted and did not live to see the end of.
#
# The executor's jobs carry a prefix of ours in their names (workflows/profiles/slurm) and the folder they work in.
# Before the first job of a workflow is submitted, whatever of these is there is an orphan: Snakemake's lock
# keeps others out.

PREFIX = "harness_"
PATIENCE = 60


def orphans(folder: Path) -> list[str]:
    """The numbers of such jobs; nothing where there is no Slurm."""
    command = ["squeue", "--me", "--noheader", "--format=%i|%j|%Z"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return []
    jobs = [line.split("|", 2) for line in asked.stdout.splitlines() if line.count("|") > 1]
    here = {str(folder), str(folder.resolve())}
    return [number for number, name, place in jobs if name.startswith(PREFIX) and place in here]
