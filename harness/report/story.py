"""What was run, what was not, and what a reader must know before comparing numbers. Text for a page, no layout."""

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pandas as pd

from harness.figures.layout import three_digits
from harness.figures.palette import place_of
from harness.results.collect import cause
from harness.results.schema import MISSING
from harness.results.statuses import OK, STATUSES
from harness.spec.dataset import DatasetChoice

Runs = pd.DataFrame
STORE = [f"dataset.{key}" for key in DatasetChoice.model_fields]
OTHERS = {
    "external": ("run of another program", "runs of other programs"),
    "predicted": ("number predicted", "numbers predicted"),
    "published": ("number published", "numbers published"),
}
SIGNS = {status: "✓" if status == OK else "×" for status in STATUSES} | {MISSING: "–"}


class Coverage(NamedTuple):
    """For one dataset, what became of each strategy on each number of ranks."""

    dataset: str
    ranks: list[int]
    rows: list[tuple[str, list[str]]]


class Failure(NamedTuple):
    """A run that is not ok."""

    label: str
    status: str
    cause: str
    trace: str


def headline(runs: Runs) -> str:
    """What the page is about, in a line."""
    strategies, graphs = runs["strategy.name"].nunique(), runs["dataset.name"].nunique()
    return f"{_count(strategies, 'strategy', 'strategies')} on {_count(graphs, 'graph', 'graphs')}"


def facts(runs: Runs) -> list[str]:
    """How much was run, and when."""
    measured = runs[runs.source.isin(["measured", ""])]
    done = int((measured.status == "ok").sum())
    told = [f"{done} of {_count(len(measured), 'run', 'runs')} succeeded"]
    for source, (one, more) in OTHERS.items():
        number = int((runs.source == source).sum())
        told += [_count(number, one, more)] if number else []
    if len(setup := measured.setup_seconds[measured.status == OK].dropna()):
        told.append(f"no time includes setup (opening, compiling: up to {three_digits(setup.max())} s a run)")
    begun = runs["provenance.started"][runs["provenance.host"] != ""].dropna()
    if len(begun):
        first, last = (_day(seconds) for seconds in (begun.min(), begun.max()))
        told.append(first if first == last else f"{first} to {last}")
    return told


def notes(runs: Runs) -> list[str]:
    """What makes numbers on this page less comparable than they look."""
    measured = runs[(runs.source == "measured") & (runs.status == "ok")]
    commits = set(measured["provenance.commit"])
    dirty = int(measured["provenance.dirty"].fillna(False).sum())
    hosts = set(measured["provenance.host"])
    protocols = set(runs.protocol[runs.status != MISSING])
    crowded = oversubscribed(measured)
    busy = int((~crowded & (measured["provenance.load_average"] > measured["provenance.cores"])).sum())
    stores = measured.groupby(STORE)["provenance.store_manifest"]
    beyond = sorted({words for extra in runs.extra for words in _beyond(extra)})
    altered = sorted({str(key[0]) for key, count in stores.nunique().items() if count > 1})  # type: ignore[index]
    said = {
        f"{_count(dirty, 'run comes', 'runs come')} from a checkout with changes that no commit holds: "
        "they cannot be repeated exactly.": dirty,
        "Some runs do not know which commit they come from.": "" in commits,
        f"The runs come from {len(commits)} commits.": len(commits) > 1,
        f"The runs come from {len(hosts)} machines ({', '.join(sorted(hosts))}).": len(hosts) > 1,
        f"Runs of the protocols {' and '.join(sorted(protocols))} are shown. They train on different vertices and "
        "are never drawn in one panel.": len(protocols) > 1,
        "All runs follow a paper's code (protocol faithful), not its text.": protocols == {"faithful"},
        f"{_count(int(crowded.sum()), 'run', 'runs')} had more threads than cores (ranks on a host times threads a "
        "rank): their ranks took turns, and their times are no measure of scaling.": crowded.any(),
        f"{_count(busy, 'more run', 'more runs') if crowded.any() else _count(busy, 'run', 'runs')} ended on a machine "
        "with more work than cores.": busy,
        "Runs of other programs (external) are as their logs tell them: their epoch time is a mean, and what it holds "
        "and how a graph was prepared is theirs.": (runs.source == "external").any(),
        f"What runs of other programs did and no setting here says: {'; '.join(beyond)}.": beyond,
        f"The stored graph changed between runs of {', '.join(altered)}.": altered,
    }
    return [text for text, holds in said.items() if holds]


def _beyond(extra: str) -> list[str]:
    """What no spec says of a run of another program."""
    told = json.loads(extra or "{}")
    return [str(words) for name, words in told.items() if name.startswith("external.beyond.")]


def oversubscribed(runs: Runs) -> "pd.Series[bool]":
    """Whether the ranks of a host had more threads than the cores that they might use.

    Records that do not say how many ranks shared a host are taken for runs on one, unless Slurm placed their ranks.
    """
    alone = runs.ranks.where(~runs["provenance.env"].fillna("").str.contains("HARNESS_STEP"))
    ranks = runs["provenance.ranks_on_host"].fillna(alone)
    threads = runs["provenance.threads"].fillna(runs["machine.threads_per_rank"])
    return (ranks * threads > runs["provenance.cores"]).fillna(False).astype(bool)


def coverage(runs: Runs) -> list[Coverage]:
    """One table a dataset, of what was measured or meant to be."""
    ours = runs[runs.source.isin(["measured", ""])]
    tables = []
    for dataset, group in ours.groupby("dataset.name"):
        ranks = sorted({int(each) for each in group.ranks})
        strategies = sorted(set(group["strategy.name"]), key=place_of)
        rows = [(name, [_cell(group, name, each) for each in ranks]) for name in strategies]
        tables.append(Coverage(str(dataset), ranks, rows))
    return tables


def failures(runs: Runs) -> list[Failure]:
    """Every run that is not ok, with its cause."""
    failed = runs[runs.status != "ok"]
    return [Failure(run.label, run.status, cause(run), run["error.trace"]) for _, run in failed.iterrows()]


def _cell(runs: Runs, strategy: str, ranks: int) -> str:
    """✓ 3 for three launches, × oom for one that failed, nothing where nothing was asked."""
    statuses = runs.status[(runs["strategy.name"] == strategy) & (runs.ranks == ranks)].value_counts()
    told = [f"{SIGNS[status]} {statuses[status]}" for status in ("ok",) if status in statuses]
    return ", ".join(
        [*told, *(_failed(status, int(n)) for status, n in sorted(statuses.items()) if status != "ok")]
    )


def _failed(status: Any, number: int) -> str:
    return f"{SIGNS[status]} {status}" + (f" {number}" if number > 1 else "")


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _day(seconds: float) -> str:
    day = datetime.fromtimestamp(seconds, UTC)
    return f"{day.day} {day:%B %Y}"
