"""Texts of the report: what was run, what failed, where results come from, and what limits a comparison."""

import json
from typing import NamedTuple

import pandas as pd

from harness.base.formatting import format_count, format_three_digits
from harness.report.figures.palette import strategy_sort_key
from harness.results.run_row import describe_cause
from harness.results.schema import MISSING, OK, STATUSES
from harness.results.statistics import find_oversubscribed
from harness.spec.dataset import DatasetChoice

Runs = pd.DataFrame
DATASET_COLUMNS = [f"dataset.{key}" for key in DatasetChoice.model_fields]
SOURCE_NOUNS = {
    "external": ("run of another program", "runs of other programs"),
    "emulated": ("run emulated on other links", "runs emulated on other links"),
    "predicted": ("predicted value", "predicted values"),
    "published": ("published value", "published values"),
}
STATUS_SIGNS = {status: "✓" if status == OK else "×" for status in STATUSES} | {MISSING: "–"}


class Coverage(NamedTuple):
    """The outcome of each strategy on each number of ranks, for one dataset."""

    dataset: str
    ranks: list[int]
    rows: list[tuple[str, list[str]]]


class Failure(NamedTuple):
    """A run that did not succeed."""

    label: str
    status: str
    cause: str
    origin: str
    trace: str


def format_headline(runs: Runs) -> str:
    """Return the title of the page: the numbers of strategies and graphs."""
    strategies, graphs = runs["strategy.name"].nunique(), runs["dataset.name"].nunique()
    return f"{format_count(strategies, 'strategy', 'strategies')} on {format_count(graphs, 'graph')}"


TINY_NONZEROS = 1e6
"""Nonzeros of a graph below which the messages of an epoch take longer than the work that ranks share."""


def are_tiny(runs: Runs) -> bool:
    """Return whether the graphs of runs are known to be tiny."""
    sizes = runs["graph.nonzeros"].dropna()
    return len(sizes) > 0 and float(sizes.max()) < TINY_NONZEROS


def describe_sources(runs: Runs, *, is_of_paper: bool) -> str:
    """Say which values come from a paper, and whether the graphs of the runs that were made here are tiny."""
    parts, here = [], _select_planned(runs)
    known = runs[runs.source.isin(["predicted", "published"])]
    if is_of_paper and len(known):
        parts.append(
            f"The paper's own runs, on {_join_names(known['dataset.name'])}, are predicted for "
            f"{_join_names(known['machine.name'])}, next to what the paper prints."
        )
    if are_tiny(here):
        names = _join_names(here["dataset.name"])
        parts.append(
            f"The runs made here are on tiny graphs ({names}): they test the workflow, and say nothing about speed."
        )
    elif parts and len(here):
        parts.append(
            f"The runs made here, on {_join_names(here['dataset.name'])}, show what this machine can run."
        )
    return " ".join(parts)


def _join_names(names: "pd.Series[str]") -> str:
    *others, last = map(str, names.drop_duplicates())
    return f"{', '.join(others)} and {last}" if others else last


def summarize_runs(runs: Runs) -> list[str]:
    """Describe how many runs succeeded, what other values there are, and when runs took place."""
    planned = _select_planned(runs)
    done = int((planned.status == OK).sum())
    lines = [f"{done} of {format_count(len(planned), 'run')} succeeded"]
    for source, (one, more) in SOURCE_NOUNS.items():
        number = int(((runs.source == source) & (runs.status == OK)).sum())
        lines += [format_count(number, one, more)] if number else []
    if len(setup := planned.setup_seconds[planned.status == OK].dropna()):
        lines.append(
            f"times exclude setup (opening the graph and compiling: up to {format_three_digits(setup.max())} s per run)"
        )
    started = runs["provenance.started"][runs["provenance.host"] != ""].dropna()
    if len(started):
        first, last = map(_format_day, (started.min(), started.max()))
        lines.append(first if first == last else f"{first} to {last}")
    return lines


def list_warnings(runs: Runs) -> list[str]:
    """List every fact that makes the numbers on the page less comparable than they look."""
    measured = _select_measured(runs)
    commits = set(measured["provenance.commit"])
    dirty = int(measured["provenance.dirty"].fillna(False).sum())
    hosts = set(measured["provenance.host"])
    protocols = set(runs.protocol[runs.status != MISSING])
    oversubscribed = find_oversubscribed(measured)
    load = _describe_oversubscription(measured[oversubscribed])
    more_runs = ("more run", "more runs") if oversubscribed.any() else ("run", "runs")
    busy = int((~oversubscribed & (measured["provenance.load_average"] > measured["provenance.cores"])).sum())
    stores = measured.groupby(DATASET_COLUMNS)["provenance.store_manifest"]
    unknown = sorted({setting for extra in runs.extra for setting in _list_unknown_settings(extra)})
    altered = sorted({str(key[0]) for key, count in stores.nunique().items() if count > 1})  # type: ignore[index]
    contradictory = runs[runs.contradiction != ""]
    first = "".join(f"{run.label}: {run.contradiction}" for _, run in contradictory[:1].iterrows())
    applies = {
        f"{format_count(len(contradictory), 'record contradicts itself', 'records contradict themselves')}, so "
        f"{'it is' if len(contradictory) == 1 else 'they are'} not what was measured ({first}).": first,
        f"{format_count(dirty, 'run comes', 'runs come')} from a checkout with uncommitted changes: "
        f"{'its results' if dirty == 1 else 'their results'} cannot be repeated exactly.": dirty,
        "The commit of some runs is unknown.": "" in commits,
        f"The runs come from {len(commits)} commits.": len(commits) > 1,
        f"The runs come from {len(hosts)} machines ({', '.join(sorted(hosts))}).": len(hosts) > 1,
        f"The runs follow the protocols {' and '.join(sorted(protocols))}, which train on different vertices. "
        "No panel mixes protocols.": len(protocols) > 1,
        "All runs follow the code of a paper (protocol faithful), not its text.": protocols == {"faithful"},
        f"{format_count(int(oversubscribed.sum()), 'run')} had more threads than cores ({load}): the "
        "ranks shared cores, so the times do not measure scaling.": oversubscribed.any(),
        f"{format_count(busy, *more_runs)} ended on a machine whose load exceeded its cores.": busy,
        "Numbers of other programs (external) come from the programs' logs: the epoch time is a mean or a median of "
        "what they print, and the program decides what an epoch includes and how the graph was prepared.": (
            runs.source == "external"
        ).any(),
        f"Other programs differ in what a spec cannot express: {'; '.join(unknown)}.": unknown,
        f"The stored graph changed between runs of {', '.join(altered)}.": altered,
    }
    return [note for note, holds in applies.items() if holds]


def _list_unknown_settings(extra: str) -> list[str]:
    """List the settings of another program's run that a spec cannot express."""
    values = json.loads(extra or "{}")
    return [str(value) for name, value in values.items() if name.startswith("external.beyond.")]


def _describe_oversubscription(runs: Runs) -> str:
    """Describe each combination of ranks on a host, threads per rank, and cores."""
    ranks = runs["provenance.ranks_on_host"].fillna(runs.ranks)
    threads = runs["provenance.threads"].fillna(runs["machine.threads_per_rank"])
    combinations = sorted(set(zip(ranks, threads, runs["provenance.cores"], strict=True)))
    several = [
        f"{int(rank)} ranks with {format_count(int(thread), 'thread')} each on "
        f"{format_count(int(core), 'core')}"
        for rank, thread, core in combinations
    ]
    return "; ".join(several)


def tabulate_coverage(runs: Runs) -> list[Coverage]:
    """Make a table for each dataset of the runs that were measured or planned."""
    tables = []
    for dataset, group in _select_planned(runs).groupby("dataset.name"):
        ranks = sorted({int(each) for each in group.ranks})
        strategies = sorted(set(group["strategy.name"]), key=strategy_sort_key)
        rows = [(name, [_format_cell(group, name, each) for each in ranks]) for name in strategies]
        tables.append(Coverage(str(dataset), ranks, rows))
    return tables


def describe_unsuccessful(runs: Runs) -> str:
    """Count the runs and predictions that did not succeed by status; empty if all succeeded."""
    failed = runs[runs.status != OK]
    predicted = failed.source == "predicted"
    lines = []
    for rows, nouns in (
        (failed[~predicted], ("run", "runs")),
        (failed[predicted], ("prediction", "predictions")),
    ):
        statuses = ", ".join(
            f"{number} {status}" for status, number in sorted(rows.status.value_counts().items())
        )
        lines += [f"{format_count(len(rows), *nouns)} did not succeed ({statuses})"] if len(rows) else []
    return "; ".join(lines)


def list_failures(runs: Runs, failures: pd.DataFrame) -> list[Failure]:
    """List every run that did not succeed, with its cause."""
    labels = dict(zip(runs.run_id, runs.label, strict=True))
    return [
        Failure(labels[row.run_id], row.status, describe_cause(row.to_dict()), row.began_in, row.traceback)
        for _, row in failures.iterrows()
    ]


def _select_planned(runs: Runs) -> Runs:
    """Select the runs that were measured, and those that were planned and never recorded."""
    return runs[runs.source.isin(["measured", ""])]


def _select_measured(runs: Runs) -> Runs:
    return runs[(runs.source == "measured") & (runs.status == OK)]


def _format_cell(runs: Runs, strategy: str, ranks: int) -> str:
    """Format the outcome of a cell: ✓ 3 for three launches, × oom for a failure, empty if no run was planned."""
    statuses = runs.status[(runs["strategy.name"] == strategy) & (runs.ranks == ranks)].value_counts()
    done = [f"{STATUS_SIGNS[OK]} {statuses[OK]}"] if OK in statuses else []
    failed = [_format_failure(str(status), int(n)) for status, n in sorted(statuses.items()) if status != OK]
    return ", ".join([*done, *failed])


def _format_failure(status: str, number: int) -> str:
    return f"{STATUS_SIGNS[status]} {status}" + (f" {number}" if number > 1 else "")


def _format_day(day: pd.Timestamp) -> str:
    return f"{day.day} {day:%B %Y}"


# Where the numbers come from: machines, versions, commits.

MACHINE_COLUMNS = {
    "provenance.host": "host",
    "machine.name": "machine card",
    "provenance.cpu": "processor",
    "provenance.cores": "cores",
    "provenance.gpu": "accelerator",
    "provenance.engine": "engine",
    "provenance.threads": "threads per rank",
}


class Machines(NamedTuple):
    """A table with a row for each distinct machine and its settings, and the number of its runs."""

    header: list[str]
    rows: list[list[str]]


class Commit(NamedTuple):
    """A commit, the number of its runs, and how many of them had uncommitted changes."""

    name: str
    runs: int
    dirty: int


def tabulate_machines(runs: Runs) -> Machines:
    """Tabulate the machines of measured runs. Columns without any value are omitted."""
    table = _select_measured(runs)[list(MACHINE_COLUMNS)].map(format_value)
    table = table[[name for name in table if (table[name] != "").any()]]
    if table.empty:
        return Machines([], [])
    counts = table.value_counts(sort=False)
    rows = [[*map(str, key), str(number)] for key, number in zip(counts.index, counts, strict=True)]
    return Machines([*(MACHINE_COLUMNS[str(name)] for name in table), "runs"], rows)


def list_software(runs: Runs) -> list[str]:
    """List every distinct set of package versions and of allocator settings."""
    measured = _select_measured(runs)
    sets = [
        value for name in ("provenance.versions", "provenance.allocator") for value in measured[name].unique()
    ]
    return [text for text in map(format_value, sets) if text]


def list_commits(runs: Runs) -> list[Commit]:
    """List the commits of measured runs."""
    groups = _select_measured(runs).groupby("provenance.commit")
    return [
        Commit(str(name), len(group), int(group["provenance.dirty"].fillna(False).sum()))
        for name, group in groups
    ]


def format_value(value: object) -> str:
    """Format a value for people. JSON objects become `key value, key value`."""
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    text = str(value)
    if not text.startswith("{"):
        return text
    return ", ".join(f"{key} {inner}" for key, inner in json.loads(text).items())
