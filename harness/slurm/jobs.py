"""The jobs of a workflow: which runs each has, and what it asks for at the moment it is submitted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.slurm.batches import Runs, batches
from harness.slurm.limits import job_minutes
from harness.slurm.past import Past
from harness.slurm.resources import Resources, job, one_node, place
from harness.slurm.site import Site, slurm_of

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
