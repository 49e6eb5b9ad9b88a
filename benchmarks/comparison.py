"""All strategies on one graph, model, precision and machine: the time to an accuracy, the elements and the memory."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf, isnan, nan
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from benchmarks.comparison_figures import draw_elements_and_time, draw_predicted, draw_times_to_target
from benchmarks.compose import describe_choices
from benchmarks.fairness import Comparison, Competitor, find_best
from benchmarks.graphs import load_matrix
from benchmarks.launches import RATIO_LAUNCHES, format_interval, measure_launch, seed_launch, select_near
from benchmarks.measuring import card_of_hosts, seconds_of, trainer_of
from benchmarks.registry import Drawing, Hosts, Results, Table, benchmark
from harness.experiment.defaults import read_choice
from harness.experiment.expand import combine
from harness.experiment.experiment_file import load_experiment
from harness.graph.partitions.partition import Method, partition_graph
from harness.ledger import AxisName
from harness.results.launch_intervals import compare_launches, correct_level, count_pairs, judge_ratio
from harness.runtime.launch.worker_pool import Pool
from harness.runtime.open_run import open_run
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.strategy import Promise

EXPERIMENT = Path("workflows") / "experiments" / "all-strategies.yaml"
RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "comparison.csv"
PLACE = ["graph", "machine", "ranks"]
CHOICE = ["strategy", "options", "grid"]
KEY = [*PLACE, *CHOICE, "launch"]
MACHINE, PUBLISHED, WORLDS = "perlmutter", "ogbn-products", (64, 256, 1024)
MILLION = 1e6


# Measured: every strategy of the experiment, on this machine and on emulated hosts.


def read_comparison() -> Comparison:
    """Return the comparison that the experiment makes: its strategies, its model and its training."""
    experiment = load_experiment(find_root() / EXPERIMENT)
    requests = [each for entry in experiment.runs for each in combine(entry, experiment.name)]
    competitors, training = dict[str, Competitor](), dict[str, Any]()
    for request in requests:
        choice, training = read_choice(request, "strategy", experiment.name), dict(request["training"])
        batch = training.pop("batch", 0)
        each = Competitor(choice["name"], (choice.get("params", {}),), batch)
        competitors.setdefault(str(each), each)
    return Comparison(
        f"seconds and elements until {training['target']:.0%} of the test vertices are right, set-up included",
        tuple(competitors.values()),
        requests[0]["model"],
        training,
        requests[0]["machine"],
        unequal=("a sampler has one batch, of 4,096 vertices for subgraphs and of 512 for neighbours",),
    )


def count_epochs(specs: Sequence[Spec]) -> "list[Reached]":
    """Return what each spec reaches.

    Exact strategies compute the same numbers: the first of them is trained for all.
    """
    reached, exact = list[Reached](), None
    for spec in specs:
        promise = open_run(find_root(), spec)[0].effective_promise
        if promise is Promise.EXACT and exact:
            reached.append(exact)
            continue
        trainer, share, number = trainer_of(spec, recording=False), 0.0, 0
        while share < spec.training.target and number < spec.training.epochs:
            trainer.epoch()
            number += 1
            if number % spec.training.evaluate_every == 0:
                share = trainer.evaluate()[0]["test"].ratio
        reached.append((number if share >= spec.training.target else None, share))
        exact = reached[-1] if promise is Promise.EXACT else exact
        trainer.ctx.grid.drain()
    return reached


@benchmark
def measured(
    dataset: str = "sbm-100k",
    hosts: int = 4,
    rate: int = 200,
    launches: int = RATIO_LAUNCHES,
    epochs: int = 3,
    keep_epochs: bool = False,
) -> Results:
    """Measure the time to an accuracy, the elements and the memory of all strategies on slow links. Needs root.

    The strategies and their parameters are from workflows/experiments/all-strategies.yaml, each with the partition and
    on the grid whose epoch is predicted to be the shortest. Every launch has its own seed, and trains each strategy
    twice: until the target accuracy, on this machine alone, which says how many epochs training takes (links change no
    number, and all exact strategies have the same); and for a few epochs on emulated hosts, which says how long set-up
    and an epoch take. The time to the target is the set-up and the product.

    A strategy that takes five times as long as the fastest in each of four launches is not launched again.

    Seconds are the slowest rank's, the median of epochs, without evaluations. Elements and bytes are from the rank
    that has most. Rows are kept in benchmarks/results/comparison.csv.

    Args:
        hosts: emulated hosts
        rate: of the links, in Mbit/s
        keep_epochs: take the epochs until the target from rows that are kept: they depend on the launch's seed alone
    """
    comparison = read_comparison()
    yield comparison.describe()
    yield Table(*KEY, "epochs to the target", "seconds an epoch:.3g", "set-up s:.3g")
    found = find_best(comparison, dataset, hosts, card_of_hosts(rate))
    specs, cluster = [option.strategy.spec for option in found.options], Hosts(hosts, f"{rate}mbit")
    rows = list(measure_choices(specs, cluster, launches, epochs, read_kept() if keep_epochs else {}))
    keep_rows(rows)
    for row in rows:
        yield *(row[key] for key in KEY), row["epochs_to_target"], row["seconds"], row["setup_seconds"]
    yield from found.describe()
    yield from time_partitions(specs)


@benchmark
def predicted() -> Results:
    """Predict the fastest grid of every strategy on a published graph, on a machine of many GPUs.

    Asks `harness advise` for two layers of hidden 64, from the graph's card alone: where vertices are split into parts,
    neighbours are anywhere. Rows are kept in benchmarks/results/comparison.csv.
    """
    yield Table(*PLACE, *CHOICE, "seconds an epoch:.3g", "refused because")
    for world in WORLDS:
        rows, refused = predict_choices(world)
        keep_rows(rows)
        for row in rows:
            yield *(row[key] for key in (*PLACE, *CHOICE)), row["seconds"], None
        for refusal in refused:
            yield PUBLISHED, MACHINE, world, refusal["strategy"], None, None, None, refusal["reason"]


@benchmark
def table() -> Results:
    """Show what comparison.measured and comparison.predicted have found, the fastest first; draw both.

    A row is the median over launches, with the interval of the seconds to the target. The verdict says whether a
    strategy is slower than the first of its table; the intervals behind it are corrected for all pairs.
    """
    rows = read_rows()
    yield read_comparison().describe()
    on_links = summarize_launches(rows[rows.machine != MACHINE])
    for (graph, machine, ranks), group in on_links.groupby(PLACE, sort=False):
        launches = rows[(rows[PLACE] == [graph, machine, ranks]).all(axis=1)].launch.nunique()
        yield Table(
            *("strategy", "grid", "s to the target:.3g", "interval", "than the first", "epochs:.3g"),
            *("s an epoch:.3g", "set-up s:.3g"),
            *("M elements an epoch:.3g", "before training:.3g", "MB held:.3g"),
            title=f"{graph}, {ranks} ranks, links of {machine}, target {group.target.iloc[0]:g}, launches: {launches}",
        )
        for row in group.to_dict("records"):
            reached = not isnan(row["epochs_to_target"])
            to_target = row["seconds_to_target"] if reached else f"{row['accuracy']:.3f} only"
            name = f"{row['strategy']} {row['options']}".strip()
            times = (
                to_target,
                row["interval"],
                row["verdict"],
                *(row[key] for key in ("epochs_to_target", "seconds", "setup_seconds")),
            )
            amounts = (row[key] / MILLION for key in ("elements", "setup_elements", "bytes"))
            yield name, row["grid"], *times, *amounts
    ours = rows[rows.machine == MACHINE]
    if len(ours):
        title = f"{PUBLISHED} on {MACHINE}, predicted: ms an epoch (interval) by number of ranks"
        yield Table("strategy", *map(str, WORLDS), title=title)
        for strategy, group in ours.groupby("strategy", sort=False):
            yield strategy, *(show_interval(group[group.ranks == world]) for world in WORLDS)
    yield Drawing("comparison", draw_elements_and_time(on_links))
    yield Drawing("comparison-epochs", draw_times_to_target(on_links))
    if len(ours):
        yield Drawing("comparison-predicted", draw_predicted(ours))


def summarize_launches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each choice, with medians over launches, the fastest to the target first.

    A choice has no time to the target if one of its launches does not reach it.
    """
    parts = [_summarize_place(place) for _, place in rows.groupby(PLACE, sort=False)]
    return pd.concat(parts, ignore_index=True).sort_values("ranks", kind="stable")


def _summarize_place(rows: pd.DataFrame) -> pd.DataFrame:
    groups = rows.groupby([*PLACE, *CHOICE], sort=False)
    launches = {choice: group.seconds_to_target for choice, group in groups}
    reached = {choice: bool(seconds.notna().all()) for choice, seconds in launches.items()}
    frame = groups.median(numeric_only=True)
    for choice in (choice for choice in frame.index if not reached[choice]):
        frame.loc[choice, ["epochs_to_target", "seconds_to_target", "elements_to_target"]] = nan
    frame = frame.sort_values(["seconds_to_target", "seconds"])
    first, level = launches[frame.index[0]], correct_level(count_pairs(sum(reached.values())))
    frame["interval"] = [format_interval(launches[each]) if reached[each] else "" for each in frame.index]
    frame["verdict"] = [judge(first, launches[each], level) if reached[each] else "" for each in frame.index]
    frame.loc[frame.index[0], "verdict"] = ""
    return frame.reset_index()


def judge(first: "pd.Series[float]", other: "pd.Series[float]", level: float) -> str:
    """Say whether a strategy is slower than the first; of one with fewer launches, by how much at least."""
    if len(other) < len(first):
        return f"at least {other.min() / first.max():.2g} times in each of {len(other)} launches"
    return judge_ratio(compare_launches(first, other, level).interval)


def time_partitions(specs: Sequence[Spec]) -> Iterator[str]:
    """Yield a sentence with the seconds of each partition, which are not part of any set-up."""
    for choice in dict.fromkeys(spec.dataset for spec in specs if spec.dataset.partitioned):
        A, method = load_matrix(choice.name), cast(Method, choice.partition)
        seconds = seconds_of(partial(partition_graph, A, method, choice.parts, choice.effective_seed))
        yield f"Not counted: {method} takes {seconds:.2g} s for {choice.parts} parts, once for a graph."


Reached = tuple[int | None, float]
"""The epochs until the target accuracy, None if it is not reached, and the last accuracy."""
Kept = Mapping[tuple[object, ...], Reached]
"""What launches reached, by the values of KEY."""


def measure_choices(
    specs: Sequence[Spec], hosts: Hosts, launches: int, epochs: int, kept: Kept
) -> Iterator[dict[str, Any]]:
    """Measure specs on emulated hosts, in several launches; those that are far from the fastest in a few only.

    Launches train until the target in order to count epochs, unless they are among those that are kept.
    """
    shortest = dict.fromkeys(range(len(specs)), inf)
    with Pool() as pool:
        for launch in range(launches):
            near = select_near(shortest, launch)
            rows = measure_launch([specs[number] for number in near], hosts, launch, epochs)
            rows["spec"] = [near[number] for number in rows.spec]
            keys = {number: identify(specs[number], hosts, launch) for number in near}
            reached = {number: kept[key] for number in near if (key := tuple(keys[number].values())) in kept}
            if others := [number for number in near if number not in reached]:
                seeded = [seed_launch(specs[number], launch) for number in others]
                counted = pool.run(hosts.count, count_epochs, seeded, patience=3600)[0]
                reached |= zip(others, counted, strict=True)
            for row in rows.sort_values("spec").to_dict("records"):
                number = row["spec"]
                target = specs[number].training.target
                found = keys[number] | describe_launch(row, target, *reached[number])
                shortest[number] = float(np.fmin(shortest[number], found["seconds_to_target"]))
                yield found


def identify(spec: Spec, hosts: Hosts, launch: int) -> dict[str, Any]:
    """Return the values of KEY."""
    values = (
        *(spec.dataset.name, f"{hosts.mbits:.0f} Mbit/s", hosts.count),
        *(spec.strategy.name, describe_choices(spec), format_grid(spec.grid), launch),
    )
    return dict(zip(KEY, values, strict=True))


def describe_launch(
    row: Mapping[Any, Any], target: float, needed: int | None, share: float
) -> dict[str, Any]:
    """Return the values of a row of the file: a launch that needs a number of epochs, None if they are not enough."""
    seconds, elements = row["seconds"], row["received"]
    return {
        "epochs_to_target": needed,
        "accuracy": share,
        "target": target,
        "seconds": seconds,
        "elements": elements,
        "bytes": row["held"],
        "setup_seconds": row["setup_seconds"],
        "setup_elements": row["setup_received"],
        "seconds_to_target": row["setup_seconds"] + needed * seconds if needed else nan,
        "elements_to_target": row["setup_received"] + needed * elements if needed else nan,
    }


def read_rows() -> pd.DataFrame:
    """Return the rows of the file."""
    return pd.read_csv(ROWS).fillna({"options": ""})


def read_kept() -> Kept:
    """Return what the launches of the file have reached."""
    return {
        tuple(row[name] for name in KEY): (
            None if isnan(row["epochs_to_target"]) else int(row["epochs_to_target"]),
            row["accuracy"],
        )
        for row in read_rows().to_dict("records")
    }


# Predicted: the fastest grid of every strategy, on a published graph.


def predict_choices(world: int) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return a row for each strategy on a number of GPUs, and the refusals of the others."""
    command = [sys.executable, "-m", "harness", "advise", "--json", "--dataset", PUBLISHED]
    command += ["--machine", MACHINE, "--ranks", str(world), "--from-card", "--within", "3600"]
    command += ["--set", "model.layers=2", "--set", "model.hidden=64"]
    advice = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows = []
    for kind in ("full_graph", "mini_batch"):
        best = dict[str, dict[str, Any]]()
        for option in advice[kind]:
            best.setdefault(option["strategy"], option)
        for name, option in best.items():
            seconds = option["seconds"]
            row = {
                "graph": PUBLISHED,
                "machine": MACHINE,
                "ranks": world,
                "strategy": name,
                "options": "",
                "grid": format_grid({AxisName(axis): size for axis, size in option["grid"].items()}),
                "seconds": seconds["value"],
                "seconds_low": seconds["low"],
                "seconds_high": seconds["high"],
                "elements": option["elements_received"],
                "bytes": option["peak_bytes"],
            }
            rows.append(row)
    return rows, advice["refused"]


def keep_rows(rows: list[dict[str, Any]]) -> None:
    """Write rows to the file, in the place of all rows of their graph, machine and number of ranks."""
    fresh = pd.DataFrame(rows)
    known = pd.read_csv(ROWS, keep_default_na=False, na_values=[""]) if ROWS.is_file() else fresh[:0]
    replaced = pd.MultiIndex.from_frame(known[PLACE]).isin(pd.MultiIndex.from_frame(fresh[PLACE]))
    pd.concat([known[~replaced], fresh]).fillna({"options": ""}).to_csv(ROWS, index=False)


# The table.


def show_interval(rows: pd.DataFrame) -> str:
    """Return milliseconds of an epoch, with the interval."""
    if rows.empty:
        return ""
    row = rows.iloc[0]
    return f"{1e3 * row['seconds']:.3g} ({1e3 * row.seconds_low:.3g} to {1e3 * row.seconds_high:.3g})"
