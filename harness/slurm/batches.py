"""Which runs share a job. It follows from the plan and the cards alone: whoever asks again gets the same batches.

Runs of one graph on equally many nodes go one after the other on the same nodes, which is also the fairest comparison;
launches are its outermost order, so that competitors take turns. A job costs a place in the queue, where there is one,
and seconds of its own everywhere; a large run is enough for one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from harness.slurm.geometry import geometry
from harness.spec.machine import Slurm
from harness.spec.spec import digest

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
