"""Ranks runs that several groups contributed, and says how sure the order is.

The rules of comparison depend only on the rows, so a contributor cannot bend them. Runs have the same task if they
train the same function on the same graph. Times are compared between runs of one task that ran on one machine with the
same number of ranks and promise the same results. A run that breaks a rule is shown with its marks, but is not ranked.

Competitors that ran in the same blocks are compared by the ratios within the blocks, others by their launches. The
intervals of a ranking are corrected for all pairs of its configurations, because the launches that are compared also
chose the winner. With too few blocks or launches, the interval is unknown and the order undecided.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple

import pandas as pd

from harness.base.formatting import format_count, format_seconds, format_three_digits
from harness.base.untrusted import fold_name
from harness.results.launch_intervals import (
    Interval,
    compute_median_interval,
    correct_level,
    count_needed_launches,
    count_pairs,
    judge_ratio,
)
from harness.results.schema import OK, RUN_ID
from harness.results.statistics import compare_configurations, find_oversubscribed
from harness.results.table_schema import TEXT, TRUTH, Column, TableSchema

CONTRIBUTIONS = TableSchema(
    "contributions",
    "one run of a report of packs",
    (
        RUN_ID._replace(meaning="the number of its pack and the hash of its spec, as in `runs`", part=""),
        Column("contributor", TEXT, "the group that contributed the run"),
        Column("pack", TEXT, "the file name of its pack"),
        Column("folder", TEXT, "the folder with the packs of the group, in a repository of packs"),
        Column("broken", TEXT, "the checks of the run that are broken, separated by commas"),
        Column("is_certified", TRUTH, "whether its strategy was checked in full, as the same code"),
        Column("task", TEXT, "what was trained: runs with the same task may be compared"),
        Column(
            "on_machine", TEXT, "the machine with its contributor: times are compared on one machine only"
        ),
        Column(
            "results", TEXT, "what the strategy promises: exact, estimator, approximate, or another model"
        ),
        Column("marks", TEXT, "why the run is not ranked, separated by semicolons; empty for a ranked run"),
        Column("is_ranked", TRUTH, "whether the run may be compared with others"),
        Column(
            "sources",
            TEXT,
            "whether the launches of its configuration come from several packs or hosts; empty if from one",
        ),
    ),
)
"""What is known about a contributed run besides its row in `runs`."""

# The rules.

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


class Rule(NamedTuple):
    """One reason for which a run is not ranked."""

    mark: str
    meaning: str
    applies: Callable[[pd.DataFrame], "pd.Series[bool]"]
    """Returns True for the measured runs that break it; runs that it leaves out do not."""


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
    """Return the runs whose times another run has, too. Both are marked: nobody knows whose they are."""
    timed = rows[rows.times != ""]
    return timed.groupby("times").run_id.transform("size") > 1


def _is_contested(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return the runs of contributors whose name is in several folders of a repository. One of them is another's."""
    placed = rows[rows.folder != ""]
    return placed.groupby(placed.contributor.map(fold_name)).folder.transform("nunique") > 1


def _is_repeated(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return the runs that their contributor ran again on the same machine and commit, except for the latest."""
    same = [rows[name] for name in ("contributor", "on_machine", "run_id", "provenance.commit")]
    launches = rows["provenance.finished"].groupby(same, dropna=False)
    return launches.rank(method="first", ascending=False) > 1


NOT_OK, EARLIER = "not ok", "earlier commit"
RULES = (
    Rule(NOT_OK, "the run did not end well", lambda rows: rows.status != OK),
    Rule("broken", "a check of its pack is broken", lambda rows: rows.broken != ""),
    Rule(
        "contested name",
        "packs with the name of its group are in several folders, so one of them is another group's",
        _is_contested,
    ),
    Rule("copied", "another run has the same times, or the same times but for a factor", _is_copied),
    Rule("repeated", "its group ran it again later, on this machine and at this commit", _is_repeated),
    Rule(
        "unknown graph",
        "the record has no hash of its graph",
        lambda rows: rows["provenance.graph_hash"] == "",
    ),
    Rule(
        "uncertified",
        "no full check of this code of the strategy is known",
        lambda rows: ~rows.is_certified.astype(bool),
    ),
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

    `results` has what each strategy promises that is installed here. The certificates of others say it.
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
    judged = rows.assign(marks=marks, is_ranked=(is_measured & (marks == "")).astype("boolean"))
    return judged.assign(sources=describe_sources(judged))


def describe_sources(rows: pd.DataFrame) -> "pd.Series[str]":
    """Say of each ranked run from how many packs and hosts the launches of its configuration come, if from several."""
    ranked = rows[rows.is_ranked]
    launches = ranked.groupby([name for name in RUNS_OF_LAUNCHES if name != "seed"], dropna=False)
    packs, hosts = (launches[name].transform("nunique") for name in ("pack_number", "provenance.host"))
    texts = [
        ", ".join([f"{number} {noun}" for number, noun in ((of, "packs"), (on, "hosts")) if number > 1])
        for of, on in zip(packs, hosts, strict=True)
    ]
    return pd.Series(texts, ranked.index, dtype=str).reindex(rows.index, fill_value="")


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
    graphs = graphs.where(is_known, _find_single(graphs[is_known], settings))
    texts = settings + " " + graphs
    names = rows["dataset.name"] + "-" + rows["model.kind"]
    digests = {text: sha256(text.encode()).hexdigest()[:8] for text in set(texts)}
    return names + "-" + texts.map(digests)


def _find_single(values: "pd.Series[str]", keys: "pd.Series[str]") -> "pd.Series[str]":
    """Return for each key the only value of its rows in `values`; empty if they have several values or none."""
    found = values.groupby(keys).unique()
    single = {key: several[0] for key, several in found.items() if len(several) == 1}
    return keys.map(lambda key: single.get(key, ""))


def _join_columns(rows: pd.DataFrame, columns: Sequence[str]) -> "pd.Series[str]":
    """Return the values of columns as one text for each row."""
    values = rows[list(columns)].itertuples(index=False, name=None)
    return pd.Series([str(tuple(map(str, row))) for row in values], rows.index, dtype=str)


def name_machines(rows: pd.DataFrame) -> "pd.Series[str]":
    """Return a name of the machine of each row: its contributor, its processor, and what tells it from others.

    A value that was not measured belongs to the machine of its contributor that has its card, if there is only one.
    """
    texts = rows[list(MACHINE)].astype(object).where(rows[list(MACHINE)].notna(), "").astype(str)
    cores = texts["provenance.cores"] + " cores of " + texts["provenance.cpu"]
    host = cores.where(texts["provenance.cpu"] != "", "the card " + texts["machine.name"])
    gpu = texts["provenance.gpu"]
    names = texts.contributor + ": " + gpu.where(gpu != "", host)
    for column, label in DISTINGUISHING.items():
        differs = texts[column].groupby(names).transform("nunique") > 1
        names = names.where(~differs | (texts[column] == ""), names + f", {label} " + texts[column])
    is_measured = rows.source == "measured"
    of_card = _find_single(names[is_measured], texts.contributor + " " + texts["machine.name"])
    return names.where(is_measured | (of_card == ""), of_card)


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


# The ranking.

EPOCH = "epoch_seconds_median"
MIN_SEEDS = 5
"""The fewest seeds for which a time to a target counts."""


@dataclass(frozen=True)
class Contender:
    """One configuration among those that are compared."""

    name: str
    """The strategy, with what else distinguishes it."""
    strategy: str
    runs: pd.DataFrame
    seconds: float
    """The median over launches."""
    ratio: float = 1.0
    """Its time over the fastest one's."""
    interval: Interval | None = None
    """Covers the ratio; None without enough launches or blocks."""


@dataclass(frozen=True)
class Ranking:
    """The configurations of a task on one machine and one number of ranks, the fastest first."""

    task: str
    machine: str
    ranks: int
    results: str
    contenders: Sequence[Contender]

    @property
    def is_decided(self) -> bool:
        """True if every other configuration is slower than the first one."""
        return all(judge_ratio(each.interval) == "slower" for each in self.contenders[1:])

    def describe_winner(self) -> str:
        """Return who wins, by how much, and how sure that is, in one sentence."""
        first, *others = self.contenders
        if not others:
            return f"{first.name}: {format_seconds(first.seconds)} an epoch; nothing to compare with"
        second = others[0]
        margin = f"{format_three_digits(second.ratio)} times as fast as {second.name}"
        if second.interval:
            margin += f" ({format_ratio(second.interval)})"
        told = f"{first.name}: {format_seconds(first.seconds)} an epoch, {margin}"
        verdicts = [judge_ratio(each.interval) for each in others]
        close, undecided = verdicts.count("within noise"), verdicts.count("undecided")
        if close:
            told += f"; {format_count(close, 'other is', 'others are')} too close to call"
        if undecided:
            needed = count_needed_launches(find_level(self.contenders))
            told += f"; {undecided} undecided (an interval needs {needed} launches of each)"
        return told


def format_ratio(interval: Interval | None) -> str:
    """Format the interval of a ratio; an empty text without one."""
    return f"{format_three_digits(interval.low)} to {format_three_digits(interval.high)}" if interval else ""


def rank_runs(rows: pd.DataFrame) -> list[Ranking]:
    """Return the rankings of all ranked runs, by task, machine, number of ranks, and promised results."""
    ranked = rows[rows.is_ranked & rows[EPOCH].notna()]
    rankings = []
    groups: Iterable[tuple[Any, pd.DataFrame]] = ranked.groupby(list(COMPARED), sort=True, dropna=False)
    for (task, machine, ranks, results), runs in groups:
        rankings.append(Ranking(str(task), str(machine), int(ranks), str(results), rank_configurations(runs)))
    return rankings


def rank_configurations(runs: pd.DataFrame) -> list[Contender]:
    """Return the configurations of runs that may be compared, the fastest first, each compared with the fastest.

    Blocks may say that another one is faster than the one with the lowest median; it then takes its place.
    """
    names = name_configurations(runs)
    contenders = [
        Contender(str(name), str(group["strategy.name"].iloc[0]), group, float(group[EPOCH].median()))
        for name, group in runs.groupby(names, sort=False)
    ]
    first = min(contenders, key=lambda each: (each.seconds, each.name))
    level = find_level(contenders)
    compared = _compare_others(first, contenders, level)
    for _ in contenders:  # ends even if blocks say that each of three is faster than another one
        fastest = min(compared, key=lambda each: each.ratio, default=first)
        if fastest.ratio >= 1:
            break
        first = next(each for each in contenders if each.name == fastest.name)
        compared = _compare_others(first, contenders, level)
    return [first, *sorted(compared, key=lambda each: (each.ratio, each.name))]


def find_level(contenders: Sequence[Contender]) -> float:
    """Return the level of each interval of a ranking."""
    return correct_level(count_pairs(len(contenders)))


def _compare_others(first: Contender, contenders: Sequence[Contender], level: float) -> list[Contender]:
    return [compare_contenders(first, each, level) for each in contenders if each is not first]


def compare_contenders(first: Contender, other: Contender, level: float) -> Contender:
    """Return the other configuration with the ratio of its time to the time of the first."""
    ratio, interval = compare_configurations(first.runs, other.runs, level).estimate
    return replace(other, ratio=ratio, interval=interval)


def name_configurations(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return the name of each run's configuration: its strategy, and the open settings that distinguish it."""
    names = runs["strategy.name"].astype(object) + " " + runs["grid"].astype(object)
    for setting in (each for each in OPEN if each not in ("strategy.name", "grid")):
        if runs[setting].nunique(dropna=False) < 2:
            continue
        texts = (
            runs[setting]
            .astype(object)
            .map(lambda value, setting=setting: _format_setting(setting, str(value)))
        )
        is_needed = texts.groupby(names).transform("nunique") > 1
        names = names.where(~is_needed, names + " " + texts)
    return names


def _format_setting(setting: str, text: str) -> str:
    name = setting.rpartition(".")[2]
    return (
        "defaults"
        if text in ("{}", "")
        else text
        if name in ("params", "partition", "order")
        else f"{name}={text}"
    )


@dataclass(frozen=True)
class TargetResult:
    """The times in which the seeds of a configuration reached an accuracy."""

    name: str
    machine: str
    ranks: int
    target: float
    seeds: int
    reached: int
    seconds: float | None
    """The median over all seeds; None if half of them or more did not reach the target."""
    interval: Interval | None
    remark: str
    """Why it does not count; empty if it does."""


def summarize_targets(rows: pd.DataFrame) -> list[TargetResult]:
    """Return the time to target of each configuration over all its seeds. A seed that did not reach it counts."""
    is_sound = ~rows.marks.str.contains(f"broken|copied|repeated|contested|{EARLIER}")
    wanted = rows[is_sound & (rows["training.target"] > 0) & (rows.source == "measured")]
    wanted = wanted.astype({"seconds_to_target": float})
    found = []
    groups: Iterable[tuple[Any, pd.DataFrame]] = wanted.groupby(["on_machine", "ranks", "training.target"])
    for (machine, ranks, target), runs in groups:
        for name, group in runs.groupby(name_configurations(runs), sort=False):
            found.append(_summarize_target(str(name), str(machine), int(ranks), float(target), group))
    return sorted(found, key=lambda each: (bool(each.remark), each.seconds is None, each.seconds or 0.0))


def _summarize_target(name: str, machine: str, ranks: int, target: float, runs: pd.DataFrame) -> TargetResult:
    by_seed = runs.groupby("seed").seconds_to_target.median().fillna(float("inf"))
    seeds = sorted(int(seed) for seed in by_seed.index)
    remark = ""
    if len(seeds) < MIN_SEEDS:
        remark = f"fewer than {MIN_SEEDS} seeds"
    elif seeds != list(range(len(seeds))):
        remark = "the seeds are not 0, 1, 2 and so on: others may have been left out"
    median = float(by_seed.median())
    reached = int((by_seed < float("inf")).sum())
    interval = compute_median_interval(by_seed)
    return TargetResult(
        name,
        machine,
        ranks,
        target,
        len(seeds),
        reached,
        median if median < float("inf") else None,
        interval,
        remark,
    )
