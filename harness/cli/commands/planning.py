"""harness plan: lists the runs and the jobs of experiments before anything runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic.dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.formatting import format_count, format_three_digits
from harness.base.progress import report_steps
from harness.cli.commands.answer import Answer
from harness.cli.commands.output import MOST_ROWS, Block, Headline, Raw, Table, TableColumn, View
from harness.cli.commands.request import CONFIG, Files, MachineName, OptionStyle, Request
from harness.cli.commands.verb import Reporter, verb

if TYPE_CHECKING:
    from harness.runtime.slurm.jobs import JobGroup


@dataclass(frozen=True, config=CONFIG)
class PlanRequest(Request):
    """The experiments to plan."""

    files: Annotated[tuple[Path, ...], OptionStyle(metavar="FILE", takes="several", is_positional=True)] = ()
    """The experiments, such as workflows/experiments/smoke.yaml."""
    _: KW_ONLY
    experiment: Files = ()
    """The same as FILE."""
    scale: Literal["tiny", "laptop", "emulated", "published"] = "laptop"
    """The size of the runs: tiny for a trial, laptop for one machine, emulated, or published as in the paper."""
    machine: MachineName | None = None
    """The card for runs that name none (default: local). With --scale published, only the runs for this machine are
    listed."""
    cost: bool = False
    """Print the jobs instead of the runs: nodes, expected and requested time, node-hours, and limits of this cluster's
    partitions that they exceed; with -v also the sbatch and srun lines."""
    out: Files = ()
    """Write the plan, which lists the specs of all runs: one file for each experiment."""


@plain_dataclass(frozen=True)
class PlanAnswer(Answer):
    """The plan of each experiment, and its jobs if they were requested."""

    plans: Sequence[Mapping[str, Any]]
    jobs: Sequence[Sequence["JobGroup"]]
    request: PlanRequest

    def to_document(self) -> Any:
        return self.plans[0] if len(self.plans) == 1 else list(self.plans)

    def to_frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(
            [{"experiment": plan["name"], **_make_row(run)} for plan in self.plans for run in plan["runs"]]
        )

    def lay_out(self, view: View) -> Iterator[Block]:
        for number, plan in enumerate(self.plans):
            yield Headline(f"{plan['experiment']} at scale {self.request.scale}: {plan['cost']}")
            if self.request.cost:
                yield from _lay_out_jobs(self.jobs[number], view)
            else:
                yield Table(RUN_COLUMNS, list(map(_make_row, plan["runs"])), most_rows=MOST_ROWS)


RUN_COLUMNS = (
    TableColumn("run_id", "run"),
    TableColumn("label", "label"),
    TableColumn("machine", "machine", may_drop=True),
    TableColumn("grid", "--grid", may_drop=True),
)
JOB_COLUMNS = (
    TableColumn("jobs", "jobs", "whole"),
    TableColumn("nodes", "nodes each", "whole"),
    TableColumn("minutes", "min each", "whole"),
    TableColumn("expected", "expected min", "number", format=format_three_digits),
    TableColumn("runs", "runs", "whole"),
    TableColumn("node_hours", "node-hours", "number", format=format_three_digits),
    TableColumn("refusal", "never starts", may_wrap=True),
)


def _make_row(run: Mapping[str, Any]) -> dict[str, Any]:
    spec = run["spec"]
    return {
        "run_id": run["run_id"],
        "label": run["label"],
        "machine": spec["machine"]["name"],
        "ranks": spec["ranks"],
        "grid": ",".join(f"{axis}={size}" for axis, size in spec["grid"].items()) or None,
    }


def _lay_out_jobs(groups: Sequence["JobGroup"], view: View) -> Iterator[Block]:
    from harness.runtime.slurm.jobs import sum_costs

    here = [group for group in groups if not group.line]
    there = [group for group in groups if group.line]
    if there:
        yield Table(JOB_COLUMNS, [_make_job_row(group) for group in there])
        yield f"{sum_costs(there).capitalize()}.{'' if view.verbose else ' The commands of the jobs: -v.'}"
    if view.verbose:
        for group in there:
            yield Raw("\n".join([group.line, *(f"  {command}" for command in group.commands)]))
    for group in here:
        yield f"{format_count(len(group.jobs), 'job')} on this machine, {format_count(group.runs, 'run')}."


def _make_job_row(group: "JobGroup") -> dict[str, Any]:
    return {
        "jobs": len(group.jobs),
        "nodes": group.nodes,
        "minutes": group.minutes,
        "expected": group.expected,
        "runs": group.runs,
        "node_hours": group.node_hours,
        "refusal": group.refusal or None,
    }


@verb(PlanRequest)
def plan(request: PlanRequest, reporter: Reporter) -> PlanAnswer:
    """List the runs of experiments, or their jobs, before anything runs.

    Prints the id and the label of every run, and with --cost the jobs on a cluster. `harness predict --grid all`
    predicts the grids of a strategy, and `harness list grids` lists them.
    """
    from harness.base.files import check_replaceable, write_text
    from harness.experiment.expand import plan as plan_experiment
    from harness.experiment.experiment_file import load_experiment
    from harness.experiment.scales import select_scale
    from harness.spec.plan import read_plan

    files = [*request.files, *request.experiment]
    if not files:
        raise UserError(
            "plan needs an experiment: harness plan workflows/experiments/smoke.yaml, or --experiment FILE."
        )
    if request.out and len(request.out) != len(files):
        raise UserError(
            f"--out names {format_count(len(request.out), 'file')} for {format_count(len(files), 'experiment')}: "
            "name one for each."
        )
    for out in request.out:
        check_replaceable(out, read_plan, "a plan")
    root, plans, jobs = request.home, list[dict[str, Any]](), list[list["JobGroup"]]()
    only = request.machine if request.scale == "published" else None
    for number, file in enumerate(report_steps(files, lambda file: f"planning {file}", reporter.step)):
        experiment = select_scale(root, load_experiment(file), request.scale)
        document = plan_experiment(root, experiment, request.machine or "local", only=only)
        if request.out:
            write_text(request.out[number], json.dumps(document) + "\n")
        plans.append(document)
        if request.cost:
            jobs.append(_group_jobs(request, document))
    return PlanAnswer(plans, jobs, request)


def _group_jobs(request: PlanRequest, document: Mapping[str, Any]) -> list["JobGroup"]:
    """Return the jobs of a plan before their submission."""
    from harness.runtime.slurm.executor import make_batch_line
    from harness.runtime.slurm.jobs import EndedJobs, Jobs, group_jobs
    from harness.runtime.slurm.resources import PARTITION_QUERY, ask_slurm, load_site, parse_partitions

    runs = {run["run_id"]: run for run in document["runs"]}
    jobs = Jobs(request.home, runs, load_site(request.home), request.default_runs, EndedJobs())
    costs = [jobs.estimate_cost(batch) for batch in jobs.batches]
    return group_jobs(costs, parse_partitions(ask_slurm(*PARTITION_QUERY) or ""), make_batch_line)
