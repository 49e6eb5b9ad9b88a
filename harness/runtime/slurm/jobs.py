"""The jobs of a workflow: the runs of each job, the time that runs take, and the resources that jobs request."""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.base.documents import parse_json
from harness.base.errors import UserError
from harness.base.files import list_complete_folders, read_regular_file
from harness.base.formatting import format_count
from harness.base.validation import format_value
from harness.results.record import MAX_BYTES
from harness.results.schema import SETTLED
from harness.runtime.slurm.resources import (
    OUTAGE_SECONDS,
    OVERHEAD_MINUTES,
    UNKNOWN_MINUTES,
    Resources,
    Site,
    SlurmPartition,
    ask_slurm,
    explain_refusal,
    load_slurm,
    plan_nodes,
    request_build,
    request_job,
    request_node,
    request_place,
)
from harness.runtime.slurm.srun import make_step_command
from harness.spec.machine_card import Slurm
from harness.spec.spec import canonical_json, digest

# The history of runs: which runs have a result, and how long similar runs took.
#
# The run folders are read without their tables. A folder that cannot be read counts as absent here; collecting the
# records reports it.

IGNORED_KEYS = ("launch", "seed")
"""The keys of a spec that do not change the duration of a run."""


class RunHistory:
    """The records in a folder, as they were when first read."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def has_result(self, run_id: str) -> bool:
        """Return whether the run has a result and is not repeated."""
        return bool(_read_or_empty(self._runs / run_id / "record.json").get("status") in SETTLED)

    def find_seconds(self, spec: dict[str, Any]) -> float | None:
        """Return the time of the last similar run, from its start to its record; None if there was none."""
        return self._seconds_by_key.get(make_likeness_key(spec))

    @cached_property
    def _seconds_by_key(self) -> dict[str, float]:
        ended = []
        for folder in list_complete_folders(self._runs):
            record, spec = _read_or_empty(folder / "record.json"), _read_or_empty(folder / "spec.json")
            with suppress(KeyError, TypeError, ValueError):
                if record["status"] == "ok" and record.get("source") != "external":
                    started, finished = (float(record["provenance"][key]) for key in ("started", "finished"))
                    ended.append((finished, finished - started, make_likeness_key(spec)))
        return {key: seconds for _, seconds, key in sorted(ended)}


def make_likeness_key(spec: dict[str, Any]) -> str:
    """Return a key that similar runs share: those that differ only in their launch and seed."""
    return canonical_json({key: value for key, value in spec.items() if key not in IGNORED_KEYS})


def _read_or_empty(path: Path) -> dict[str, Any]:
    try:
        return parse_json(read_regular_file(path, MAX_BYTES), str(path))
    except (OSError, UserError):
        return {}


# The time limit of a run, and of a job with several runs.

MARGIN = 2.0
"""The requested time of a run, as a multiple of the time of the last similar run."""
START_MINUTES = 1.0
"""Minutes that do not depend on the run: starting Python on all nodes, a busy file system."""


class RunMinutes(NamedTuple):
    """The minutes of a run on a cluster."""

    asked: float
    """The time that a job requests for the run. The run does not start with less."""
    limit: float
    """The time after which the run is ended as a timeout."""


def estimate_run_minutes(
    spec: dict[str, Any], slurm: Slurm, history: RunHistory, predicted: float | None = None
) -> RunMinutes:
    """Return the requested time and the time limit of a run.

    The limit is the machine card's `minutes`, or more if the last similar run or the predicted seconds need more. The
    requested time is MARGIN times that of the last similar run plus START_MINUTES, or the limit if there is no similar
    run. Earlier runs and predictions never shorten a limit, because a machine may be slower today.
    """
    last = history.find_seconds(spec)
    known = MARGIN * ((predicted or 0) if last is None else last) / 60 + START_MINUTES
    limit = max(slurm.minutes, known)
    return RunMinutes(limit if last is None else known, limit)


def estimate_job_minutes(each: Sequence[float], slurm: Slurm) -> float:
    """Return the time limit of a job whose runs follow each other: the sum of their limits, with one START_MINUTES.

    The limit is at most the machine card's `job_minutes`, unless a single run needs more. Runs for which no time is
    left go to another job.
    """
    most = max(each, default=START_MINUTES)
    known = sum(minutes - START_MINUTES for minutes in each) + START_MINUTES
    return min(max(known, most), max(slurm.job_minutes, most)) + OVERHEAD_MINUTES


# Batches: the runs that share a job. They depend only on the plan, the cards and the jobs that have ended, so a second
# call returns the same batches.
#
# A block holds all runs of one launch and seed on one graph and one number of nodes, which are compared with each
# other. They run one after another on the same nodes, in an order that is rotated by both, so that each comes first
# once. Ratios of times are taken within blocks. A job holds complete blocks: as many as fit its time limit, or one
# block of large runs, all with the same number of ranks. Only a block that exceeds the time of a job is split.

Runs = Mapping[str, Mapping[str, Any]]
"""The runs of a plan by run id, each with its spec."""
RUNS_PER_JOB = 16
"""The most runs of a job on a machine without Slurm."""


def make_batches(runs: Runs, slurm: Mapping[str, Slurm | None]) -> dict[str, list[str]]:
    """Return the runs of each job, by the name of the job. `slurm` holds the Slurm section of each machine card."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for run_id, run in runs.items():
        groups.setdefault(_group_key(run["spec"], slurm), []).append(run_id)
    shared = [part for group in groups.values() for part in _split_group(group, runs, slurm)]
    return {_name_batch(part): part for part in shared}


def _group_key(spec: Mapping[str, Any], slurm: Mapping[str, Slurm | None]) -> tuple[object, ...]:
    machine = spec["machine"]["name"]
    card = slurm[machine]
    if card is None:
        return (machine, spec["dataset"]["name"])
    nodes = plan_nodes(spec["ranks"], card).nodes
    shared = (machine, nodes, spec["dataset"]["name"])
    return shared if nodes <= card.shared_nodes else (*shared, spec["ranks"], *_number_launch(spec))


def _number_launch(spec: Mapping[str, Any]) -> tuple[int, int]:
    return int(spec.get("launch", 0)), int(spec.get("seed", 0))


def _split_group(group: list[str], runs: Runs, slurm: Mapping[str, Slurm | None]) -> Iterable[list[str]]:
    """Split a group into jobs with as many runs as fit, if each takes the `minutes` of the machine card."""
    card = slurm[runs[group[0]]["spec"]["machine"]["name"]]
    together = max(1, int(card.job_minutes // card.minutes)) if card else RUNS_PER_JOB
    blocks: dict[tuple[int, int], list[str]] = {}
    for run_id in group:
        blocks.setdefault(_number_launch(runs[run_id]["spec"]), []).append(run_id)
    part: list[str] = []
    for launch, block in sorted(blocks.items()):
        first = sum(launch) % len(block)
        if part and len(part) + len(block) > together:
            yield part
            part = []
        part = [*part, *block[first:], *block[:first]]
        while len(part) > together:
            yield part[:together]
            part = part[together:]
    if part:
        yield part


def _name_batch(part: list[str]) -> str:
    return part[0] if len(part) == 1 else digest(part)


class EndedJobs(NamedTuple):
    """The jobs of a project that have ended, as their markers show."""

    names: frozenset[str] = frozenset()
    runs: Callable[[str], Collection[str]] = lambda _: ()
    """Returns the runs of an ended job."""


def keep_ended_batches(
    runs: Runs, slurm: Mapping[str, Slurm | None], ended: EndedJobs
) -> dict[str, list[str]]:
    """Return batches in which runs of ended jobs stay with those jobs, so that a change of limits repeats no run."""
    asked = make_batches(runs, slurm)
    kept = {name: part for name, part in asked.items() if name in ended.names}
    left = set(runs).difference(*kept.values())
    for name in sorted(ended.names - kept.keys()) if left else ():
        if part := [run_id for run_id in ended.runs(name) if run_id in left]:
            kept[name] = part
            left.difference_update(part)
    return {**kept, **make_batches({run_id: run for run_id, run in runs.items() if run_id in left}, slurm)}


class Jobs:
    """The jobs of one plan at one site.

    Without `ended` all runs belong to one submitted job, even if the cards or the site have changed since.
    """

    def __init__(
        self, root: Path, runs: Runs, site: Site, records: Path, ended: EndedJobs | None = None
    ) -> None:
        self._runs, self._records, self._site = runs, records, site
        self._history = RunHistory(records)
        machines = {run["spec"]["machine"]["name"] for run in runs.values()}
        self._slurm = {name: load_slurm(root, name, site) for name in machines}
        self._asked: dict[tuple[str, int], Resources] = {}
        self.batches = {} if ended is None else keep_ended_batches(runs, self._slurm, ended)

    def request_place(self) -> Resources:
        """Return the account, partition, QOS and constraint, which all jobs of a plan share."""
        return request_place(self._site, next(iter(self._slurm.values()), None))

    def request_runs(self, batch: str, attempt: int) -> Resources:
        """Return the resources of a job for the runs of a batch that have no result yet."""
        if (batch, attempt) not in self._asked:
            history = self._history if attempt == 1 else RunHistory(self._records)
            self._asked[batch, attempt] = self._request_runs(batch, history, attempt)
        return self._asked[batch, attempt]

    def request_build(self, entries: int | None = None) -> Resources:
        """Return the place and the resources of a job that builds a graph with this number of entries."""
        return request_build(self._site, next(iter(self._slurm.values()), None), entries)

    def estimate_cost(self, batch: str) -> "JobCost":
        """Return the cost of a job before its submission."""
        asked = self.request_place() | self.request_runs(batch, 1)
        left = [run_id for run_id in self._list_runs(batch) if not self._history.has_result(run_id)]
        runs = [self._runs[run_id] for run_id in left]
        known = [self._history.find_seconds(run["spec"]) or _predicted_seconds(run) for run in runs]
        expected = None if None in known else sum(seconds or 0 for seconds in known) / 60
        cards = {run["spec"]["ranks"]: self._slurm[run["spec"]["machine"]["name"]] for run in runs}
        steps = {ranks: card for ranks, card in sorted(cards.items()) if card}
        return JobCost(batch, len(left), asked, expected, steps)

    def _list_runs(self, batch: str) -> list[str]:
        return self.batches.get(batch) or list(self._runs)

    def _request_runs(self, batch: str, history: RunHistory, attempt: int) -> Resources:
        specs = [self._runs[run_id]["spec"] for run_id in self._list_runs(batch)]
        slurm = self._slurm[specs[0]["machine"]["name"]]
        if slurm is None:
            return request_node(max(map(_count_processors, specs)), None, UNKNOWN_MINUTES)
        left = [self._runs[run_id] for run_id in self._list_runs(batch) if not history.has_result(run_id)]
        minutes = [
            estimate_run_minutes(run["spec"], slurm, history, read_predicted_limit(run)) for run in left
        ]
        # The first attempt may have been too short, so others request all the time that the runs may take.
        each = [run.asked if attempt == 1 else run.limit for run in minutes]
        return request_job([spec["ranks"] for spec in specs], slurm, estimate_job_minutes(each, slurm))


class JobCost(NamedTuple):
    """The cost of a job before its submission."""

    batch: str
    runs: int
    """The runs that have no result yet."""
    asked: Resources
    expected: float | None
    """The minutes of its runs by earlier runs and predictions; None if the time of a run is unknown."""
    steps: dict[int, Slurm]
    """The Slurm sections of the steps, by number of ranks."""


class JobGroup(NamedTuple):
    """Jobs that are submitted by the same command."""

    line: str
    """The command that submits each job; empty for jobs on this machine."""
    jobs: Sequence[JobCost]
    refusal: str
    """The reason why Slurm would never start the jobs; empty if the partitions allow them."""

    @property
    def nodes(self) -> int:
        """The nodes of each job."""
        return int(self.jobs[0].asked["nodes"] or 1)

    @property
    def minutes(self) -> int:
        """The minutes that each job requests."""
        return int(self.jobs[0].asked["runtime"] or 0)

    @property
    def runs(self) -> int:
        """The runs of all jobs together."""
        return sum(cost.runs for cost in self.jobs)

    @property
    def expected(self) -> float | None:
        """The mean of the expected minutes; None if the time of a job is unknown."""
        known = [cost.expected for cost in self.jobs if cost.expected is not None]
        return sum(known) / len(known) if len(known) == len(self.jobs) else None

    @property
    def node_hours(self) -> float:
        """The node-hours that all jobs request together."""
        return len(self.jobs) * self.nodes * self.minutes / 60

    @property
    def commands(self) -> list[str]:
        """The commands that start the ranks of each run."""
        steps = [step for cost in self.jobs for step in cost.steps.items()]
        return list(dict.fromkeys(shlex.join(make_step_command(ranks, card)) for ranks, card in steps))


def group_jobs(
    costs: Sequence[JobCost],
    partitions: Mapping[str, SlurmPartition],
    make_line: Callable[[Resources, str], str],
) -> list[JobGroup]:
    """Return the jobs in groups of equal commands, the smallest jobs first and jobs on this machine last."""
    alike: dict[str, list[JobCost]] = {}
    for cost in costs:
        schedulers = [card.scheduler for card in cost.steps.values()]
        alike.setdefault(make_line(cost.asked, schedulers[0]) if schedulers else "", []).append(cost)
    groups = [
        JobGroup(line, jobs, explain_refusal(jobs[0].asked, partitions) or "" if line else "")
        for line, jobs in alike.items()
    ]
    return sorted(groups, key=lambda group: (not group.line, group.nodes, group.minutes, group.line))


def sum_costs(groups: Sequence[JobGroup]) -> str:
    """Return a description of the node-hours of all jobs together."""
    jobs = [cost for group in groups for cost in group.jobs]
    foreseen = [cost for cost in jobs if cost.steps and cost.expected is not None]
    hours = sum(int(cost.asked["nodes"] or 1) * (cost.expected or 0) for cost in foreseen) / 60
    asked = sum(group.node_hours for group in groups)
    known = (
        f"{hours:,.1f} expected of {format_count(len(foreseen), 'job')}"
        if foreseen
        else "the expected time unknown"
    )
    return f"in all {format_count(len(jobs), 'job')}: at most {asked:,.1f} node-hours asked, {known}"


def describe_costs(
    costs: Sequence[JobCost],
    partitions: Mapping[str, SlurmPartition],
    make_line: Callable[[Resources, str], str],
) -> str:
    """Return a description of jobs before their submission: nodes, minutes, commands, and limits that they exceed.

    Jobs with equal commands are described together.
    """
    lines = []
    groups = group_jobs(costs, partitions, make_line)
    there = [group for group in groups if group.line]
    for group in there:
        is_known = group.expected is not None
        expected = f"{group.expected:.3g} expected" if is_known else "expected time unknown"
        size = f"{format_count(len(group.jobs), 'job')} of {format_count(group.nodes, 'node')}"
        lines += [
            f"{size} for {group.minutes} min each ({expected}), {format_count(group.runs, 'run')}:",
            f"  {group.line}",
            *(f"    {command}" for command in group.commands),
        ]
        if group.refusal:
            lines.append(f"  Slurm would never start these: {group.refusal}.")
    lines += [
        f"{format_count(len(group.jobs), 'job')} on this machine, {format_count(group.runs, 'run')}"
        for group in groups
        if not group.line
    ]
    if sum(group.node_hours for group in there):
        lines.append(sum_costs(there))
    return "\n".join(lines)


def _predicted_seconds(run: Mapping[str, Any]) -> float | None:
    """Return the predicted seconds of a run; None without a prediction."""
    cost = run.get("cost")
    return cost["seconds"] if cost else None


def read_predicted_limit(run: Any) -> float | None:
    """Return the most seconds that a run of a plan or of a job's file is predicted to take; None if unknown."""
    cost = run.get("cost") if isinstance(run, Mapping) else None
    most = cost.get("most") if isinstance(cost, Mapping) else None
    if most is None or (isinstance(most, int | float) and not isinstance(most, bool)):
        return most
    raise UserError(
        f"cost.most = {format_value(most)} is not accepted: the seconds that a run takes at most are expected. "
        "`harness plan --experiment FILE --out FILE` writes the plan anew."
    )


def _count_processors(spec: Mapping[str, Any]) -> int:
    threads: int = spec["ranks"] * spec["machine"]["threads_per_rank"]
    return threads


# Orphans: jobs whose Snakemake ended before they did.
#
# Jobs of the executor have PREFIX in their names (workflows/profiles/slurm) and this folder as working directory.
# Before a workflow submits its first job, any such job is an orphan: Snakemake's lock excludes other workflows.

PREFIX = "harness_"


def find_orphans(folder: Path) -> list[str]:
    """Return the numbers of the orphans in a folder; empty without Slurm. Wait for a controller that is away."""
    answer = ask_slurm("squeue", "--me", "--noheader", "--format=%i|%j|%Z", outage=OUTAGE_SECONDS) or ""
    jobs = [line.split("|", 2) for line in answer.splitlines() if line.count("|") > 1]
    paths = {str(folder), str(folder.resolve())}
    return [number for number, name, place in jobs if name.startswith(PREFIX) and place in paths]
