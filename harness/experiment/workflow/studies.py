"""Studies: experiments at a scale, planned by `harness plan` and divided into the jobs of the workflow.

Snakemake runs in the project root, so all paths here are relative to it.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.base.documents import read_yaml
from harness.base.errors import UserError
from harness.base.files import replace_files
from harness.experiment.experiment_file import Experiment, parse_experiment
from harness.experiment.paper_figures import EXPERIMENTS
from harness.experiment.workflow.graph_build import GraphBuild, read_expected_nonzeros
from harness.runtime.slurm.executor import make_batch_line
from harness.runtime.slurm.jobs import EndedJobs, Jobs, describe_costs
from harness.runtime.slurm.resources import PARTITION_QUERY, Resources, Site, ask_slurm, parse_partitions
from harness.spec.machine_card import MACHINES
from harness.spec.plan import read_plan

RECORDS = Path("results/runs")
DONE = Path("results/done")
"""The markers of the jobs that have ended."""


class Study(NamedTuple):
    """An experiment at one scale."""

    plan: str
    """The file that lists its runs."""
    jobs: Jobs

    @property
    def markers(self) -> list[str]:
        """The markers of all jobs."""
        return [str(DONE / batch) for batch in self.jobs.batches]


class Studies:
    """The studies of a workflow, each planned when a rule first needs it."""

    def __init__(self, site: Site, scale: str, machine: str | None, *, print_costs: bool = False) -> None:
        self._site, self._scale, self._machine, self._print_costs = site, scale, machine, print_costs
        self._studies: dict[tuple[str, str], Study] = {}

    def plan(self, experiment: str, scale: str | None = None) -> Study:
        """Return the study of an experiment file, at the scale of the workflow by default."""
        key = (experiment, scale or self._scale)
        if key not in self._studies:
            self._studies[key] = self._plan(*key)
        return self._studies[key]

    def write_plans(self, experiments: Iterable[str], scale: str | None = None) -> None:
        """Write the plans that do not exist yet, in one process."""
        scale = scale or self._scale
        plans = {experiment: self._plan_file(experiment, scale) for experiment in experiments}
        missing = {experiment: plan for experiment, plan in plans.items() if not Path(plan).is_file()}
        if missing:
            files = ["--experiment", *missing, "--out", *missing.values()]
            _run_harness("plan", *files, *self._plan_options(scale))

    def request_build(self, dataset: str) -> Resources:
        """Return the resources of a job that builds a graph."""
        planned = [study.jobs for study in self._studies.values()]
        jobs = planned[0] if planned else Jobs(Path.cwd(), {}, self._site, RECORDS)
        return jobs.request_build(read_expected_nonzeros(dataset))

    def _plan(self, experiment: str, scale: str) -> Study:
        self.write_plans([experiment], scale)
        file = self._plan_file(experiment, scale)
        plan = read_plan(Path(file))
        runs = plan.runs_by_id
        jobs = Jobs(Path.cwd(), runs, self._site, RECORDS, _list_ended_jobs())
        specs = {spec_file(run_id): run["spec"] for run_id, run in runs.items()}
        batches = {
            batch_file(batch): {run_id: runs[run_id] for run_id in members}
            for batch, members in jobs.batches.items()
        }
        _write_missing_files({**specs, **batches})
        if self._print_costs:
            print(f"{plan.experiment}: {plan.cost}\n{_describe_costs(jobs)}", file=sys.stderr)
        return Study(file, jobs)

    def _plan_options(self, scale: str) -> list[str]:
        scales = [] if scale == "laptop" else [f"--scale={scale}"]
        return [*scales, f"--machine={self._machine}"] if self._machine else scales

    def _plan_file(self, experiment: str, scale: str) -> str:
        """Return the plan file of an experiment. A changed experiment or machine card leads to another file."""
        name = read_experiment(experiment).name
        sources = [Path(experiment), *sorted(MACHINES.glob("*.yaml"))]
        key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
        words = [name, *(option.strip("-") for option in self._plan_options(scale))]
        return f"results/plans/{'-'.join(words)}-{key}.json"


def read_experiment(path: str) -> Experiment:
    """Return the experiment in a file. `harness plan` checks what its values mean."""
    if not Path(path).is_file():
        known = ", ".join(map(str, sorted(EXPERIMENTS.glob("*.yaml")))) or "none"
        raise UserError(f"{path}: no such file. Experiments: {known}. Run Snakemake from the project root.")
    return parse_experiment(read_yaml(Path(path), path), path)


def _run_harness(*arguments: str) -> None:
    command = ["harness", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise UserError("The command `harness` is not on the PATH. `make setup` installs it.") from None
    if done.returncode != 0:
        raise UserError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")


def _describe_costs(jobs: Jobs) -> str:
    """Return the nodes, minutes and sbatch lines of the jobs that have not ended."""
    left = [batch for batch in jobs.batches if not (DONE / batch).exists()]
    return describe_costs(
        [jobs.estimate_cost(batch) for batch in left],
        parse_partitions(ask_slurm(*PARTITION_QUERY) or ""),
        make_batch_line,
    )


def _list_ended_jobs() -> EndedJobs:
    """Return the jobs that have markers. Markers whose list of runs was deleted are ignored."""
    names = frozenset(path.name for path in DONE.glob("*") if batch_file(path.name).exists())
    return EndedJobs(names, read_batch)


# The files of runs and batches. Their names identify their content, so they are written once.


def spec_file(run_id: str) -> Path:
    """Return the file of a run's spec."""
    return Path(f"results/specs/{run_id}.json")


def batch_file(batch: str) -> Path:
    """Return the file that lists the runs of a batch."""
    return Path(f"results/batches/{batch}.json")


def _write_missing_files(contents: Mapping[Path, Any]) -> None:
    """Write the files that do not exist yet, each with its content as JSON."""
    missing = {file: content for file, content in contents.items() if not file.exists()}
    replace_files({file: (json.dumps(content) + "\n").encode() for file, content in missing.items()})


@cache
def read_batch(batch: str) -> dict[str, dict[str, Any]]:
    """Return the runs of a batch by run id."""
    runs: dict[str, dict[str, Any]] = json.loads(batch_file(batch).read_text(encoding="utf-8"))
    return runs


class RunBatch:
    """A job of runs, as it was at its submission: plans and experiments may have been edited since, or be gone."""

    def __init__(self, name: str, site: Site) -> None:
        self.name, self._site = name, site

    @property
    def label(self) -> str:
        """The name for people."""
        first, *others = self._runs.values()
        return str(first["label"]) + (f" and {len(others)} more" if others else "")

    @property
    def spec_files(self) -> list[str]:
        """The specs of the runs."""
        return [str(spec_file(run_id)) for run_id in self._runs]

    @property
    def graph_markers(self) -> list[str]:
        """The markers of the graphs that the runs need, without those that the job of the runs builds itself."""
        builds = dict.fromkeys(GraphBuild.from_spec(run["spec"]) for run in self._runs.values())
        return [build.marker for build in builds if not build.is_small]

    def resources(self, attempt: int) -> Resources:
        """Return the resources of the job for the runs that have no result yet, its place included."""
        return self._jobs.request_place() | self._jobs.request_runs(self.name, attempt)

    @property
    def _runs(self) -> Mapping[str, Mapping[str, Any]]:
        return read_batch(self.name)

    @cached_property
    def _jobs(self) -> Jobs:
        return Jobs(Path.cwd(), self._runs, self._site, RECORDS)
