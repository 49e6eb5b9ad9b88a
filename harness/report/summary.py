"""The text of the report: what was run, what failed, where it comes from, and what limits a comparison. No layout."""

import json
from datetime import UTC, datetime
from typing import NamedTuple

import pandas as pd

from harness.figures.palette import place_of
from harness.figures.units import three_digits
from harness.results.collect import describe_cause
from harness.results.schema import MISSING, OK, STATUSES
from harness.results.statistics import find_oversubscribed
from harness.spec.dataset import DatasetChoice

Runs = pd.DataFrame
STORE = [f"dataset.{key}" for key in DatasetChoice.model_fields]
QUOTED = {
    "external": ("run of another program", "runs of other programs"),
    "emulated": ("run emulated on other links", "runs emulated on other links"),
    "predicted": ("number predicted", "numbers predicted"),
    "published": ("number published", "numbers published"),
}
SIGNS = {status: "✓" if status == OK else "×" for status in STATUSES} | {MISSING: "–"}


class Coverage(NamedTuple):
    """For one dataset, the outcome of each strategy on each number of ranks."""

    dataset: str
    ranks: list[int]
    rows: list[tuple[str, list[str]]]


class Failure(NamedTuple):
    """A run that is not ok."""

    label: str
    status: str
    cause: str
    origin: str
    trace: str


def headline(runs: Runs) -> str:
    """The title of the page."""
    strategies, graphs = runs["strategy.name"].nunique(), runs["dataset.name"].nunique()
    return f"{_count(strategies, 'strategy', 'strategies')} on {_count(graphs, 'graph', 'graphs')}"


def facts(runs: Runs) -> list[str]:
    """How much was run, and when."""
    planned = _planned(runs)
    done = int((planned.status == OK).sum())
    lines = [f"{done} of {_count(len(planned), 'run', 'runs')} succeeded"]
    for source, (one, more) in QUOTED.items():
        number = int(((runs.source == source) & (runs.status == OK)).sum())
        lines += [_count(number, one, more)] if number else []
    if len(setup := planned.setup_seconds[planned.status == OK].dropna()):
        lines.append(f"times exclude setup (opening, compiling: up to {three_digits(setup.max())} s a run)")
    begun = runs["provenance.started"][runs["provenance.host"] != ""].dropna()
    if len(begun):
        first, last = (_day(seconds) for seconds in (begun.min(), begun.max()))
        lines.append(first if first == last else f"{first} to {last}")
    return lines


def notes(runs: Runs) -> list[str]:
    """Every fact that makes numbers on this page less comparable than they look."""
    measured = _measured(runs)
    commits = set(measured["provenance.commit"])
    dirty = int(measured["provenance.dirty"].fillna(False).sum())
    hosts = set(measured["provenance.host"])
    protocols = set(runs.protocol[runs.status != MISSING])
    crowded = find_oversubscribed(measured)
    busy = int((~crowded & (measured["provenance.load_average"] > measured["provenance.cores"])).sum())
    stores = measured.groupby(STORE)["provenance.store_manifest"]
    beyond = sorted({setting for extra in runs.extra for setting in _beyond(extra)})
    altered = sorted({str(key[0]) for key, count in stores.nunique().items() if count > 1})  # type: ignore[index]
    applies = {
        f"{_count(dirty, 'run comes', 'runs come')} from a checkout with changes that no commit holds: "
        f"{'its results' if dirty == 1 else 'their results'} cannot be repeated exactly.": dirty,
        "The commit of some runs is unknown.": "" in commits,
        f"The runs come from {len(commits)} commits.": len(commits) > 1,
        f"The runs come from {len(hosts)} machines ({', '.join(sorted(hosts))}).": len(hosts) > 1,
        f"The runs follow the protocols {' and '.join(sorted(protocols))}, which train on different vertices. "
        "No panel mixes protocols.": len(protocols) > 1,
        "All runs follow a paper's code (protocol faithful), not its text.": protocols == {"faithful"},
        f"{_count(int(crowded.sum()), 'run', 'runs')} had more threads than cores ({_crowds(measured[crowded])}): the "
        "ranks shared cores, so the times do not measure scaling.": crowded.any(),
        f"{_count(busy, 'more run', 'more runs') if crowded.any() else _count(busy, 'run', 'runs')} ended on a machine "
        "with more work than cores.": busy,
        "Numbers of other programs (external) come from the programs' logs: the epoch time is a mean, and the program "
        "decides what an epoch includes and how the graph was prepared.": (runs.source == "external").any(),
        f"Other programs also used settings that no spec has: {'; '.join(beyond)}.": beyond,
        f"The stored graph changed between runs of {', '.join(altered)}.": altered,
    }
    return [note for note, holds in applies.items() if holds]


def _beyond(extra: str) -> list[str]:
    """The settings of another program's run that no spec has."""
    values = json.loads(extra or "{}")
    return [str(value) for name, value in values.items() if name.startswith("external.beyond.")]


def _crowds(runs: Runs) -> str:
    """The ranks on a host, the threads of each and the cores, for every such combination."""
    ranks = runs["provenance.ranks_on_host"].fillna(runs.ranks)
    threads = runs["provenance.threads"].fillna(runs["machine.threads_per_rank"])
    kinds = sorted(set(zip(ranks, threads, runs["provenance.cores"], strict=True)))
    several = [
        f"{int(rank)} ranks with {_count(int(thread), 'thread', 'threads')} each on "
        f"{_count(int(core), 'core', 'cores')}"
        for rank, thread, core in kinds
    ]
    return "; ".join(several)


def coverage(runs: Runs) -> list[Coverage]:
    """One table for each dataset, of the runs that were measured or planned."""
    tables = []
    for dataset, group in _planned(runs).groupby("dataset.name"):
        ranks = sorted({int(each) for each in group.ranks})
        strategies = sorted(set(group["strategy.name"]), key=place_of)
        rows = [(name, [_cell(group, name, each) for each in ranks]) for name in strategies]
        tables.append(Coverage(str(dataset), ranks, rows))
    return tables


def unsuccessful(runs: Runs) -> str:
    """How many runs and how many predictions are not ok, by status; nothing if all are."""
    failed = runs[runs.status != OK]
    predicted = failed.source == "predicted"
    lines = []
    for some, nouns in (
        (failed[~predicted], ("run", "runs")),
        (failed[predicted], ("prediction", "predictions")),
    ):
        statuses = ", ".join(
            f"{number} {status}" for status, number in sorted(some.status.value_counts().items())
        )
        lines += [f"{_count(len(some), *nouns)} did not succeed ({statuses})"] if len(some) else []
    return "; ".join(lines)


def failures(runs: Runs) -> list[Failure]:
    """Every run that is not ok, with its cause."""
    failed = runs[runs.status != OK]
    return [
        Failure(run.label, run.status, describe_cause(run), run["error.origin"], run["error.trace"])
        for _, run in failed.iterrows()
    ]


def _planned(runs: Runs) -> Runs:
    """The runs that were measured, or planned and never recorded."""
    return runs[runs.source.isin(["measured", ""])]


def _measured(runs: Runs) -> Runs:
    return runs[(runs.source == "measured") & (runs.status == OK)]


def _cell(runs: Runs, strategy: str, ranks: int) -> str:
    """✓ 3 for three launches, × oom for one that failed, nothing where no run was planned."""
    statuses = runs.status[(runs["strategy.name"] == strategy) & (runs.ranks == ranks)].value_counts()
    done = [f"{SIGNS[OK]} {statuses[OK]}"] if OK in statuses else []
    failed = [_failed(str(status), int(n)) for status, n in sorted(statuses.items()) if status != OK]
    return ", ".join([*done, *failed])


def _failed(status: str, number: int) -> str:
    return f"{SIGNS[status]} {status}" + (f" {number}" if number > 1 else "")


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _day(seconds: float) -> str:
    day = datetime.fromtimestamp(seconds, UTC)
    return f"{day.day} {day:%B %Y}"


# Where the numbers come from: machines, versions, commits.

MACHINE = {
    "provenance.host": "host",
    "machine.name": "machine card",
    "provenance.cpu": "processor",
    "provenance.cores": "cores",
    "provenance.gpu": "accelerator",
    "provenance.engine": "engine",
    "provenance.threads": "threads a rank",
}


class Machines(NamedTuple):
    """Every different machine or setting, a row each, with its number of runs."""

    header: list[str]
    rows: list[list[str]]


class Commit(NamedTuple):
    """A state of the code, and how many runs come from it."""

    name: str
    runs: int
    dirty: int


def machines(runs: Runs) -> Machines:
    """The machines that measured something; a column that is empty in every row is left out."""
    table = _measured(runs)[list(MACHINE)].map(_text)
    table = table[[name for name in table if (table[name] != "").any()]]
    if table.empty:
        return Machines([], [])
    counts = table.value_counts(sort=False)
    rows = [[*map(str, key), str(number)] for key, number in zip(counts.index, counts, strict=True)]
    return Machines([*(MACHINE[str(name)] for name in table), "runs"], rows)


def settings(runs: Runs) -> list[str]:
    """Every different set of versions and of allocator settings, as text."""
    measured = _measured(runs)
    sets = [
        value for name in ("provenance.versions", "provenance.allocator") for value in measured[name].unique()
    ]
    return [text for text in map(_text, sets) if text]


def commits(runs: Runs) -> list[Commit]:
    """The commits that runs come from, with the number of runs."""
    groups = _measured(runs).groupby("provenance.commit")
    return [
        Commit(str(name), len(group), int(group["provenance.dirty"].fillna(False).sum()))
        for name, group in groups
    ]


def _text(value: object) -> str:
    """A value for people; an object of JSON as `key value, key value`."""
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    text = str(value)
    if not text.startswith("{"):
        return text
    return ", ".join(f"{key} {inner}" for key, inner in json.loads(text).items())
