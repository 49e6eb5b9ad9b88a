"""The rules by which contributed runs are compared. A contributor cannot bend them: they depend only on the rows.

Runs have the same task if they train the same function on the same graph. Times are compared between runs of one task
that ran on one machine with the same number of ranks and promise the same results. A run that breaks a rule is shown
with its marks, but is not ranked.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import pandas as pd

from harness.results.schema import OK
from harness.results.statistics import find_oversubscribed

GRAPH = (
    "dataset.name",
    "graph.vertices",
    "graph.nonzeros",
    "graph.features",
    "graph.classes",
    "graph.trained",
)
FUNCTION = (
    "model.kind",
    "model.layers",
    "model.hidden",
    "model.heads",
    "model.projection",
    "model.norm",
    "model.activation",
    "model.dropout",
    "model.residual",
    "training.optimizer",
    "training.features",
    "training.batch",
    "protocol",
    "precision",
)
"""The settings in which runs of one task agree, apart from the graph."""
OPEN = (
    "strategy.name",
    "strategy.params",
    "grid",
    "dataset.partition",
    "dataset.permutation",
    "model.order",
    "training.recompute",
    "training.cuda_graph",
)
"""The settings that a contributor chooses: runs that agree in them are launches of one configuration."""
MACHINE = (
    "contributor",
    "machine.name",
    "provenance.cpu",
    "provenance.gpu",
    "provenance.cores",
    "provenance.network",
    "machine.composed_from",
)
"""The columns that tell machines apart. Two contributors never share one: nobody knows how alike their machines are."""
DISTINGUISHING = {
    "machine.name": "card",
    "provenance.cores": "cores",
    "provenance.cpu": "CPU",
    "provenance.network": "network",
    "machine.composed_from": "collectives composed from",
}
"""How a name says in what its machine differs from another one of the same contributor with the same processor."""
COMPARED = ("task", "on_machine", "ranks", "results")
"""The columns in which runs agree whose times are compared."""
RUNS_OF_LAUNCHES = ("contributor", "machine.name", "task", *OPEN, "ranks", "seed", "provenance.commit")
"""The columns in which the launches of one configuration agree."""
SHOWN = (
    *("source", "status", "marks", "is_ranked", "submission", "run_id", "launch", "seed", "epochs", "checks"),
    *("epoch_seconds_median", "elements_received", "bytes_received", "peak_bytes", "accuracy_test"),
    *("training.target", "seconds_to_target", "machine.threads_per_rank"),
    *(
        "provenance.block",
        "provenance.process",
        "provenance.commit",
        "provenance.started",
        "provenance.graph_hash",
    ),
    *(
        "provenance.host",
        "provenance.threads",
        "provenance.env",
        "provenance.ranks_on_host",
        "provenance.versions",
    ),
)
"""Further columns that pages use."""
VALUES = ("run_id", "source", "epoch_seconds_median", "final_loss", "provenance.started")
"""Values that two runs do not share by chance."""


class Rule(NamedTuple):
    """One reason for which a run is not ranked."""

    mark: str
    meaning: str
    applies: Callable[[pd.DataFrame], "pd.Series[bool]"]
    """Returns True for the measured runs that break it; runs that it leaves out do not."""


def _has_broken_check(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows.checks.map(lambda text: "broken" in [verdict for verdict, _ in json.loads(text).values()])


def _is_not_proven(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows.checks.map(lambda text: json.loads(text).get("proof", ["", ""])[0] != "holds")


def _lacks_launches(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return the runs of configurations whose launches are not numbered from 0 without a gap.

    A launch that breaks another rule is missing, or rules could be broken to leave it out; one that failed is not.
    """
    sound = rows[rows.marks.isin(["", NOT_OK])]
    launches = sound.groupby(list(RUNS_OF_LAUNCHES), dropna=False).launch
    return launches.transform("max") != launches.transform("nunique") - 1


def _has_later_commit(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return the ranked runs of configurations that have ranked runs at a later commit."""
    sound = rows[rows.marks == ""]
    configuration = [sound[name] for name in ("task", "on_machine", "ranks", *OPEN)]
    started = sound["provenance.started"]
    of_commit = started.groupby([*configuration, sound["provenance.commit"]], dropna=False).transform("max")
    latest = of_commit.groupby(configuration, dropna=False).transform("max")
    return of_commit < latest


def _is_copied(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return the runs whose values another contributor has, too. Both are marked: nobody knows whose they are."""
    timed = rows[rows.epoch_seconds_median.notna()]
    return timed.groupby(list(VALUES), dropna=False).contributor.transform("nunique") > 1


NOT_OK, EARLIER = "not ok", "earlier commit"
RULES = (
    Rule(NOT_OK, "the run did not end well", lambda rows: rows.status != OK),
    Rule("broken", "a check of its submission is broken", _has_broken_check),
    Rule("copied", "another contributor has a run with the same values", _is_copied),
    Rule(
        "unknown graph",
        "the record has no hash of its graph",
        lambda rows: rows["provenance.graph_hash"] == "",
    ),
    Rule("unproven", "no full check of this code of the strategy is known", _is_not_proven),
    Rule(
        "uncommitted",
        "no commit is known that has its code",
        lambda rows: rows["provenance.dirty"].fillna(True).astype(bool),
    ),
    Rule("shared cores", "its ranks had more threads than cores", find_oversubscribed),
    Rule(
        "launches missing",
        "the launches of its configuration that break no other rule are not numbered from 0 without a gap",
        _lacks_launches,
    ),
    Rule(EARLIER, "its configuration is ranked by runs at a later commit on this machine", _has_later_commit),
)
"""The rules for measured runs, which apply in this order. Other sources are never ranked."""
UNCHECKED = "unchecked card"
"""The mark of predictions and emulations by a machine card that was never compared with a run."""


def apply_rules(
    rows: pd.DataFrame, results: Mapping[str, str], checked_cards: Collection[str] = ()
) -> pd.DataFrame:
    """Return the rows with their task, machine, results and marks.

    `results` has what each strategy promises that is installed here. The proofs of others say it.
    `checked_cards` are the machine cards here that were compared with runs.
    """
    rows = rows.assign(
        task=find_tasks(rows),
        on_machine=name_machines(rows),
        results=[
            results.get(name, own) for name, own in zip(rows["strategy.name"], rows.results, strict=True)
        ],
    )
    is_measured = rows.source == "measured"
    measured = rows[is_measured].assign(marks="")
    for rule in RULES:
        applies = rule.applies(measured).reindex(measured.index, fill_value=False).astype(bool)
        measured.loc[applies, "marks"] = [
            f"{known}; {rule.mark}" if known else rule.mark for known in measured.marks[applies]
        ]
    marks = measured.marks.reindex(rows.index, fill_value="")
    by_card = rows.source.isin(["predicted", "emulated"])
    marks[by_card & ~rows["machine.name"].isin(list(checked_cards))] = UNCHECKED
    return rows.assign(marks=marks, is_ranked=(is_measured & (marks == "")).astype("boolean"))


def find_tasks(rows: pd.DataFrame) -> "pd.Series[str]":
    """Return the name of the task of each row.

    A measured run names its graph by the hash of its content. Numbers from elsewhere, such as predictions, have no
    hash: they belong to the task of measured runs with the same settings on a graph of the same name, if there is only
    one.
    """
    settings = _join_columns(rows, ("dataset.name", *FUNCTION))
    hashes, store = rows["provenance.graph_hash"], rows["provenance.store_manifest"]
    graphs = _join_columns(rows, GRAPH) + " " + hashes.where(hashes != "", store)
    is_known = (rows.source == "measured") & ((hashes != "") | (store != ""))
    known = graphs[is_known].groupby(settings[is_known]).unique()
    only = {setting: found[0] for setting, found in known.items() if len(found) == 1}
    graphs = graphs.where(is_known, settings.map(lambda setting: only.get(setting, "")))
    texts = settings + " " + graphs
    names = rows["dataset.name"] + "-" + rows["model.kind"]
    digests = {text: sha256(text.encode()).hexdigest()[:8] for text in set(texts)}
    return names + "-" + texts.map(digests)


def _join_columns(rows: pd.DataFrame, columns: Sequence[str]) -> "pd.Series[str]":
    """Return the values of columns as one text for each row."""
    values = rows[list(columns)].itertuples(index=False, name=None)
    return pd.Series([str(tuple(map(str, row))) for row in values], rows.index, dtype=str)


def name_machines(rows: pd.DataFrame) -> "pd.Series[str]":
    """Return a name of the machine of each row: its contributor, its processor, and what tells it from others."""
    texts = rows[list(MACHINE)].astype(object).where(rows[list(MACHINE)].notna(), "").astype(str)
    cores = texts["provenance.cores"] + " cores of " + texts["provenance.cpu"]
    host = cores.where(texts["provenance.cpu"] != "", "the card " + texts["machine.name"])
    gpu = texts["provenance.gpu"]
    names = texts.contributor + ": " + gpu.where(gpu != "", host)
    for column, label in DISTINGUISHING.items():
        differs = texts[column].groupby(names).transform("nunique") > 1
        names = names.where(~differs | (texts[column] == ""), names + f", {label} " + texts[column])
    return names


def keep_compared_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that rankings and pages use, with texts as objects: selecting rows is many times as fast."""
    kept = rows[list(dict.fromkeys([*COMPARED, *MACHINE, *OPEN, *GRAPH, *FUNCTION, *SHOWN]))]
    texts = kept.select_dtypes(["str", "Int64", "boolean"]).columns
    return kept.astype({**dict.fromkeys(texts, object), "is_ranked": bool}).copy()


def describe_task(row: "pd.Series[Any]") -> str:
    """Describe the task of a row in one line: the graph, the model, and what differs from the usual."""
    model = f"{str(row['model.kind']).upper()}, {row['model.layers']} layers of {row['model.hidden']}"
    if row["model.heads"] and row["model.kind"] == "gat":
        model += f" × {row['model.heads']} heads"
    parts = [name for name in ("projection", "norm", "residual") if row[f"model.{name}"] is True]
    parts += [f"dropout {row['model.dropout']:g}"] if row["model.dropout"] else []
    parts += ["trained features"] if row["training.features"] is True else []
    batch = row["training.batch"]
    parts += [f"mini-batches of {batch}" if pd.notna(batch) and batch else "full graph"]
    parts += [str(row["precision"])] if row["precision"] != "float32" else []
    parts += [f"{row['protocol']} protocol"] if row["protocol"] != "corrected" else []
    return ", ".join([str(row["dataset.name"]), model, *parts])


def describe_tasks(rows: pd.DataFrame) -> dict[str, str]:
    """Return the description of each task. Tasks with equal descriptions differ in their graphs, which are named."""
    firsts = rows.drop_duplicates("task").set_index("task", drop=False)
    texts = {str(task): describe_task(row) for task, row in firsts.iterrows()}
    counts = pd.Series(texts).value_counts()
    graphs = firsts["provenance.graph_hash"].str[:8].replace("", "unknown")
    return {
        task: text if counts[text] == 1 else f"{text} (graph {graphs[task]})" for task, text in texts.items()
    }
