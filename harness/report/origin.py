"""Where the numbers come from: machines, versions, commits. Text for a page, no layout."""

import json
from typing import NamedTuple

import pandas as pd

Runs = pd.DataFrame
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
    """Every different machine or setting, a row each, and how many runs it did."""

    header: list[str]
    rows: list[list[str]]


class Commit(NamedTuple):
    """A state of the code and the runs that come from it."""

    name: str
    runs: int
    dirty: int


class Origin(NamedTuple):
    """One run, and where it comes from."""

    label: str
    run_id: str
    commit: str
    host: str
    store: str


def machines(runs: Runs) -> Machines:
    """The machines that measured something; columns that say nothing anywhere are left out."""
    table = _measured(runs)[list(MACHINE)].map(_text)
    table = table[[name for name in table if (table[name] != "").any()]]
    if table.empty:
        return Machines([], [])
    counts = table.value_counts(sort=False)
    rows = [[*map(str, key), str(number)] for key, number in zip(counts.index, counts, strict=True)]
    return Machines([*(MACHINE[str(name)] for name in table), "runs"], rows)


def settings(runs: Runs) -> list[str]:
    """Every different set of versions and of allocator settings, in words."""
    measured = _measured(runs)
    sets = [
        text for name in ("provenance.versions", "provenance.allocator") for text in measured[name].unique()
    ]
    return [text for text in map(_text, sets) if text]


def commits(runs: Runs) -> list[Commit]:
    """The commits that runs come from, with how many."""
    found = []
    for name, group in _measured(runs).groupby("provenance.commit"):
        found.append(Commit(str(name), len(group), int(group["provenance.dirty"].fillna(False).sum())))
    return found


def origins(runs: Runs) -> list[Origin]:
    """Every measured run."""
    return [
        Origin(
            run.label,
            run.run_id,
            run["provenance.commit"][:12] + (" + changes" if run["provenance.dirty"] is True else ""),
            run["provenance.host"],
            run["provenance.store_manifest"][:12],
        )
        for _, run in _measured(runs).iterrows()
    ]


def _measured(runs: Runs) -> Runs:
    return runs[(runs.source == "measured") & (runs.status == "ok")]


def _text(value: object) -> str:
    """A value for people; an object of JSON as `key value, key value`."""
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    text = str(value)
    if not text.startswith("{"):
        return text
    return ", ".join(f"{key} {inner}" for key, inner in json.loads(text).items())
