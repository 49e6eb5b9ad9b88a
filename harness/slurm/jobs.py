"""The jobs of a workflow: the runs of each job, the time that runs take, and the resources that a job asks for."""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.documents import parse_json
from harness.errors import UserError
from harness.files import complete_folders, read_regular_file
from harness.results.record import LONGEST
from harness.results.schema import SETTLED
from harness.slurm.resources import (
    AROUND,
    OUTAGE,
    UNKNOWN_MINUTES,
    Resources,
    Site,
    SlurmPartition,
    ask,
    build,
    forbidden,
    geometry,
    job,
    one_node,
    place,
    slurm_of,
)
from harness.slurm.srun import step
from harness.spec.machine_card import Slurm
from harness.spec.spec import canonical_json, digest
from harness.validation import format_value

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
        for folder in complete_folders(self._runs):
            record, spec = _read(folder / "record.json"), _read(folder / "spec.json")
            with suppress(KeyError, TypeError, ValueError):
                if record["status"] == "ok" and record.get("source") != "external":
                    started, finished = (float(record["provenance"][key]) for key in ("started", "finished"))
                    ended.append((finished, finished - started, likeness(spec)))
        return {likeness: seconds for _, seconds, likeness in sorted(ended)}


def likeness(spec: dict[str, Any]) -> str:
    return canonical_json({key: value for key, value in spec.items() if key not in UNLIKE})


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_json(read_regular_file(path, LONGEST), str(path))
    except (OSError, UserError):
        return {}


# The time limit of a run, and of a job with several runs.

MARGIN = 2.0
"""The time that is asked for a run over the time of the last similar run."""
START = 1.0
"""Minutes that do not depend on the run: starting Python everywhere, a busy file system."""


class RunMinutes(NamedTuple):
    """The time of a run on a cluster."""

    asked: float
    """The time for which a job asks, and without which the run is not begun."""
    limit: float
    """The time after which the run counts as one that takes too long."""


def run_minutes(
    spec: dict[str, Any], slurm: Slurm, history: RunHistory, predicted: float | None = None
) -> RunMinutes:
    """The limit is the machine card's `minutes`, or more where the last like run or the predicted seconds need more.

    A job asks for MARGIN times the last like run and START, or for the limit of a run that was never made. Neither an
    earlier run nor a prediction shortens a limit: a machine may be slower today.
    """
    last = history.seconds(spec)
    known = MARGIN * ((predicted or 0) if last is None else last) / 60 + START
    limit = max(slurm.minutes, known)
    return RunMinutes(limit if last is None else known, limit)


def job_minutes(each: Sequence[float], slurm: Slurm) -> float:
    """The limit of a job whose runs go one after the other: the sum of their limits, with one START.

    The limit is at most the machine card's `job_minutes`, unless one run needs more. The remaining runs are left to
    another job.
    """
    most = max(each, default=START)
    known = sum(minutes - START for minutes in each) + START
    return min(max(known, most), max(slurm.job_minutes, most)) + AROUND


# Batches: the runs that share a job. Batches follow from the plan, the cards and the jobs that have ended, so a second
# call gives the same ones.
#
# A block holds all runs of one launch on one graph and equally many nodes: the competitors of a comparison. The runs of
# a block go one after the other on the same nodes, and the order is rotated by the launch, so that each competitor
# comes first once. Ratios of times are taken within blocks. A job holds whole blocks: as many as a job has time for, or
# one block where runs are large, all of them on equally many ranks. Only a block that is longer than a job is cut.

Runs = Mapping[str, Mapping[str, Any]]
"""The runs of a plan by their ids, each with its spec."""
TOGETHER = 16
"""Runs of a job on a machine without Slurm."""


def batches(runs: Runs, slurm: Mapping[str, Slurm | None]) -> dict[str, list[str]]:
    """The runs of every job, by the job's name: the id of a single run. `slurm` has the card of each machine."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for run_id, run in runs.items():
        groups.setdefault(_group_of(run["spec"], slurm), []).append(run_id)
    shared = [part for group in groups.values() for part in _parts(group, runs, slurm)]
    return {_name(part): part for part in shared}


def _group_of(spec: Mapping[str, Any], slurm: Mapping[str, Slurm | None]) -> tuple[object, ...]:
    machine = spec["machine"]["name"]
    card = slurm[machine]
    if card is None:
        return (machine, spec["dataset"]["name"])
    nodes = geometry(spec["ranks"], card).nodes
    shared = (machine, nodes, spec["dataset"]["name"])
    return shared if nodes <= card.shared_nodes else (*shared, spec["ranks"], _launch(spec))


def _launch(spec: Mapping[str, Any]) -> int:
    return int(spec.get("launch", 0))


def _parts(group: list[str], runs: Runs, slurm: Mapping[str, Slurm | None]) -> Iterable[list[str]]:
    """Cuts a group into jobs: as many runs as a job has time for, if each takes the `minutes` of the machine card."""
    card = slurm[runs[group[0]]["spec"]["machine"]["name"]]
    together = max(1, int(card.job_minutes // card.minutes)) if card else TOGETHER
    blocks: dict[int, list[str]] = {}
    for run_id in group:
        blocks.setdefault(_launch(runs[run_id]["spec"]), []).append(run_id)
    part: list[str] = []
    for launch, block in sorted(blocks.items()):
        first = launch % len(block)
        if part and len(part) + len(block) > together:
            yield part
            part = []
        part = [*part, *block[first:], *block[:first]]
        while len(part) > together:
            yield part[:together]
            part = part[together:]
    if part:
        yield part


def _name(part: list[str]) -> str:
    return part[0] if len(part) == 1 else digest(part)


class Ended(NamedTuple):
    """The jobs of a folder that have ended, each with a marker."""

    names: frozenset[str] = frozenset()
    runs: Callable[[str], Collection[str]] = lambda _: ()
    """The runs of an ended job."""


def with_ended(runs: Runs, slurm: Mapping[str, Slurm | None], ended: Ended) -> dict[str, list[str]]:
    """The batches of runs, of which those that an ended job has made stay with that job.

    So other limits of jobs plan no run again.
    """
    asked = batches(runs, slurm)
    kept = {name: part for name, part in asked.items() if name in ended.names}
    left = set(runs).difference(*kept.values())
    for name in sorted(ended.names - kept.keys()) if left else ():
        if part := [run_id for run_id in ended.runs(name) if run_id in left]:
            kept[name] = part
            left.difference_update(part)
    return {**kept, **batches({run_id: run for run_id, run in runs.items() if run_id in left}, slurm)}


class Jobs:
    """The jobs of one plan at one site.

    Without `ended` the runs are those of one job, whatever has become of the cards and the site since its submission.
    """

    def __init__(self, root: Path, runs: Runs, site: Site, records: Path, ended: Ended | None = None) -> None:
        self._runs, self._records, self._site = runs, records, site
        self._history = RunHistory(records)
        machines = {run["spec"]["machine"]["name"] for run in runs.values()}
        self._slurm = {name: slurm_of(root, name, site) for name in machines}
        self._asked: dict[tuple[str, int], Resources] = {}
        self.batches = {} if ended is None else with_ended(runs, self._slurm, ended)

    def place(self) -> Resources:
        """The account, partition and the like of all jobs: the machines of one plan share them."""
        return place(self._site, next(iter(self._slurm.values()), None))

    def run(self, batch: str, attempt: int) -> Resources:
        """The resources of a job for those runs of a batch that have no result yet."""
        if (batch, attempt) not in self._asked:
            history = self._history if attempt == 1 else RunHistory(self._records)
            self._asked[batch, attempt] = self._ask(batch, history, attempt)
        return self._asked[batch, attempt]

    def build(self, entries: int | None = None) -> Resources:
        """The place and the resources of a job that builds a graph of so many entries."""
        return build(self._site, next(iter(self._slurm.values()), None), entries)

    def cost(self, batch: str) -> "JobCost":
        """The cost of a job before its submission."""
        asked = self.place() | self.run(batch, 1)
        left = [run_id for run_id in self._of(batch) if not self._history.settled(run_id)]
        specs = [self._runs[run_id]["spec"] for run_id in left]
        known = [self._history.seconds(spec) for spec in specs]
        known = [last or _seconds(self._runs[run_id]) for last, run_id in zip(known, left, strict=True)]
        expected = None if None in known else sum(seconds or 0 for seconds in known) / 60
        cards = {spec["ranks"]: self._slurm[spec["machine"]["name"]] for spec in specs}
        return JobCost(
            batch, len(left), asked, expected, {ranks: card for ranks, card in sorted(cards.items()) if card}
        )

    def _of(self, batch: str) -> list[str]:
        return self.batches.get(batch) or list(self._runs)

    def _ask(self, batch: str, history: RunHistory, attempt: int) -> Resources:
        specs = [self._runs[run_id]["spec"] for run_id in self._of(batch)]
        slurm = self._slurm[specs[0]["machine"]["name"]]
        if slurm is None:
            return one_node(max(map(_processors, specs)), None, UNKNOWN_MINUTES)
        left = [self._runs[run_id] for run_id in self._of(batch) if not history.settled(run_id)]
        minutes = [run_minutes(run["spec"], slurm, history, predicted(run)) for run in left]
        # A job that is tried again was too short, it may be: it asks for all that its runs may take.
        each = [run.asked if attempt == 1 else run.limit for run in minutes]
        return job([spec["ranks"] for spec in specs], slurm, job_minutes(each, slurm))


class JobCost(NamedTuple):
    """The cost of a job before its submission."""

    batch: str
    runs: int
    """The runs that have no result yet."""
    asked: Resources
    expected: float | None
    """The minutes of all its runs by earlier runs and predictions; None where one of them is unknown."""
    steps: dict[int, Slurm]
    """The card of the steps by their numbers of ranks."""


def bill_text(
    costs: Sequence[JobCost],
    partitions: Mapping[str, SlurmPartition],
    batch_line: Callable[[Resources, str], str],
) -> str:
    """The jobs before their submission, alike ones together: nodes, minutes, lines, and what the partitions forbid."""
    alike: dict[str, list[JobCost]] = {}
    for cost in costs:
        schedulers = [card.scheduler for card in cost.steps.values()]
        alike.setdefault(batch_line(cost.asked, schedulers[0]) if schedulers else "", []).append(cost)
    here, lines, asked = alike.pop("", []), [], 0.0
    for line, jobs in sorted(alike.items(), key=lambda item: (_size(item[1][0]), item[0])):
        first, runs = jobs[0], sum(cost.runs for cost in jobs)
        nodes, minutes = _size(first)
        asked += len(jobs) * nodes * minutes / 60
        known = [cost.expected for cost in jobs if cost.expected is not None]
        expected = (
            f"{sum(known) / len(jobs):.3g} expected" if len(known) == len(jobs) else "expected time unknown"
        )
        size = f"{_counted(len(jobs), 'job')} of {_counted(nodes, 'node')} for {minutes} min"
        lines += [f"{size} each ({expected}), {_counted(runs, 'run')}:", f"  {line}"]
        steps = {shlex.join(step(ranks, card)): None for cost in jobs for ranks, card in cost.steps.items()}
        lines += [f"    {each}" for each in steps]
        if reason := forbidden(first.asked, partitions):
            lines.append(f"  Slurm would never start these: {reason}.")
    if here:
        lines.append(
            f"{_counted(len(here), 'job')} on this machine, {_counted(sum(cost.runs for cost in here), 'run')}"
        )
    if asked:
        foreseen = [cost for cost in costs if cost.steps and cost.expected is not None]
        hours = sum(int(cost.asked["nodes"] or 1) * (cost.expected or 0) for cost in foreseen) / 60
        known_of = f"expected of {_counted(len(foreseen), 'job')}"
        whole = _counted(sum(map(len, alike.values())), "job")
        lines.append(f"in all {whole}: at most {asked:,.1f} node-hours asked, {hours:,.1f} {known_of}")
    return "\n".join(lines)


def _size(cost: JobCost) -> tuple[int, int]:
    """The nodes and the minutes of a job."""
    return int(cost.asked["nodes"] or 1), int(cost.asked["runtime"] or 0)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _seconds(run: Mapping[str, Any]) -> float | None:
    """The seconds that a run is predicted to take."""
    cost = run.get("cost")
    return cost["seconds"] if cost else None


def predicted(run: Any) -> float | None:
    """The seconds that a run of a plan or of a job's file is predicted to take at most."""
    cost = run.get("cost") if isinstance(run, Mapping) else None
    most = cost.get("most") if isinstance(cost, Mapping) else None
    if most is None or (isinstance(most, int | float) and not isinstance(most, bool)):
        return most
    raise UserError(
        f"cost.most = {format_value(most)} is not accepted: the seconds that a run takes at most are expected. "
        "`harness plan --experiment FILE --out FILE` writes the plan anew."
    )


def _processors(spec: Mapping[str, Any]) -> int:
    threads: int = spec["ranks"] * spec["machine"]["threads_per_rank"]
    return threads


# Orphans: jobs whose Snakemake ended before they did.
#
# The executor's jobs carry our prefix in their names (workflows/profiles/slurm) and the folder in which they work.
# Before the first job of a workflow is submitted, any such job is an orphan: Snakemake's lock keeps others out.

PREFIX = "harness_"


def orphans(folder: Path) -> list[str]:
    """The numbers of the orphans in a folder; empty without Slurm. A controller that is away is waited for."""
    answer = ask("squeue", "--me", "--noheader", "--format=%i|%j|%Z", outage=OUTAGE) or ""
    jobs = [line.split("|", 2) for line in answer.splitlines() if line.count("|") > 1]
    paths = {str(folder), str(folder.resolve())}
    return [number for number, name, place in jobs if name.startswith(PREFIX) and place in paths]
