"""The ratios of `bench` at each commit, and what changed since which commit."""

import csv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.registry import Row, Table
from harness.results.history import MANY_COMMITS, can_decide, find_steps
from harness.runtime.provenance import sort_commits

COLUMNS = ("commit", "started", "cpu", "call", "competitor", "ratio")
WITH_CHANGES = "+"
"""Ends the name of a commit whose checkout had uncommitted changes."""


class Change(NamedTuple):
    """A step in our time relative to a competitor's."""

    call: str
    competitor: str
    ratio: float
    low: float
    high: float
    since: str
    chance: float


def keep_ratios(file: Path, facts: Mapping[str, object], ratios: Mapping[tuple[str, str], float]) -> None:
    """Append the ratios of a run, by call and competitor, to the file. `facts` are those of provenance."""
    commit = f"{facts['commit'] or ''}{WITH_CHANGES if facts['dirty'] else ''}"
    started = datetime.now(UTC).isoformat(timespec="seconds")
    is_new = not file.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerows([COLUMNS] if is_new else [])
        writer.writerows(
            [commit, started, facts["cpu"], *key, f"{ratio:.4g}"] for key, ratio in ratios.items()
        )


def read_ratios(file: Path, cpu: str) -> pd.DataFrame:
    """Return the ratios that the file has of a processor, in the order in which they were measured."""
    rows = pd.read_csv(file, keep_default_na=False)
    return rows[rows.cpu == cpu].sort_values("started", kind="stable")


def find_changes(rows: pd.DataFrame, root: Path) -> list[Change]:
    """Return the last step of each ratio, the largest first."""
    clean = {name.removesuffix(WITH_CHANGES) for name in rows.commit}
    known = sort_commits(root, clean)
    commits = list(dict.fromkeys(rows.commit))
    if known is not None:
        order = list(known)
        commits.sort(key=lambda name: (order.index(name.removesuffix(WITH_CHANGES)), name))
    groups = list(rows.groupby(["call", "competitor"], sort=False))
    found = []
    for key, some in groups:
        own = [name for name in commits if name in set(some.commit)]
        # A ratio is a competitor's time over ours; its inverse grows with our time.
        times = [(1 / some.ratio[some.commit == name]).tolist() for name in own]
        if steps := find_steps(times, len(groups)):
            step = steps[-1]
            assert step.interval
            call, competitor = map(str, key)
            found.append(Change(call, competitor, step.ratio, *step.interval, own[step.at], step.chance))
    return sorted(found, key=lambda change: -max(change.ratio, 1 / change.ratio))


def report_changes(file: Path, root: Path, cpu: str) -> Iterator[Table | Row | str]:
    """Yield a table of what got slower or faster since which commit, or the reason that nothing is shown."""
    rows = read_ratios(file, cpu)
    changes, commits = find_changes(rows, root), rows.commit.nunique()
    launches = rows.groupby("commit").started.nunique().tolist()
    if not changes:
        decided = can_decide([[1.0] * number for number in launches])
        reason = (
            "nothing changed"
            if decided
            else "too few to find changes: two runs before and two after are needed"
        )
        yield f"Over the {commits} commits in {file.name}: {reason}."
        return
    yield Table(
        *(
            "call",
            "competitor",
            "our time is",
            "times:.2f",
            "interval",
            "since commit",
            "chance of a false alarm:.1g",
        ),
        title="What changed, over all commits",
    )
    for change in changes:
        verdict = "slower" if change.ratio > 1 else "faster"
        interval = f"{change.low:.2f} to {change.high:.2f}"
        yield (
            *(change.call, change.competitor, verdict, change.ratio, interval),
            *(change.since[:10], change.chance),
        )
    if commits < MANY_COMMITS:
        yield f"With fewer than {MANY_COMMITS} commits a slow day looks like a slow commit."
