"""All strategies on one graph, model, precision and machine: the time to an accuracy, the words and the memory."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.comparison_figures import draw_elements_and_time, draw_predicted, draw_times_to_target
from benchmarks.measuring import gather, named, train_in_turns, trainer_of
from benchmarks.registry import FOUR_HOSTS, Drawing, Hosts, Results, Table, benchmark
from benchmarks.runner import measure_on_hosts
from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName
from harness.runtime.open_run import open_run
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.store.datasets import build_store
from harness.strategy import Promise

EXPERIMENT = Path("workflows") / "experiments" / "all-strategies.yaml"
RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "comparison.csv"
PLACE = ["graph", "machine", "ranks"]
KEY = [*PLACE, "strategy", "options", "grid"]
MACHINE, PUBLISHED, WORLDS = "perlmutter", "ogbn-products", (64, 256, 1024)
EPOCHS = 2
MILLION = 1e6


# Measured: every choice of the experiment, on this machine and on emulated hosts.


def list_choices(dataset: str, ranks: int) -> list[Spec]:
    """Return the runs of the experiment on some number of ranks, on another graph."""
    experiment = load_experiment(find_root() / EXPERIMENT)
    runs = [
        {**entry, "dataset": name_dataset(entry["dataset"], dataset), "ranks": ranks}
        for entry in experiment.runs
    ]
    return expand(find_root(), experiment.model_copy(update={"runs": runs}))


def name_dataset(choice: Any, name: str) -> dict[str, Any]:
    """Return the choice of another dataset, in the same order."""
    return {**(choice if isinstance(choice, dict) else {}), "name": name}


def count_epochs(specs: Sequence[Spec]) -> list[tuple[int | None, float]]:
    """Return for each spec the epochs until its target accuracy, None if it is not reached; and the last accuracy.

    Exact strategies compute the same numbers: the first of them is trained for all.
    """
    reached, exact = list[tuple[int | None, float]](), None
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
def on_hosts(specs: Path, hosts: Hosts = FOUR_HOSTS) -> Results:
    """Train the specs of a file on emulated hosts: seconds and words of an epoch, and bytes held.

    Args:
        specs: a JSON file with a list of specs
    """
    yield Table("strategy", "seconds", "words", "bytes", title=f"links of {hosts.rate}")
    for document in json.loads(specs.read_text()):
        trainer = trainer_of(Spec.model_validate(document))
        held = sum(trainer.ctx.memory.persistent_bytes().values())
        every = gather(trainer.ctx.grid.world, held)
        for turns in train_in_turns([trainer], EPOCHS):
            yield document["strategy"]["name"], turns.median(), turns.most("received"), max(every)
        trainer.ctx.grid.drain()


@benchmark
def measured(dataset: str = "sbm-100k", hosts: tuple[int, ...] = (4, 8), rate: int = 200) -> Results:
    """Measure the time to an accuracy, the words and the memory of all strategies on slow links. Needs root.

    The strategies and their options are from workflows/experiments/all-strategies.yaml, each on the grid that is
    predicted to be the fastest. Each is trained twice: until the target accuracy, on this machine alone, which says how
    many epochs training takes (links change no number, and all exact strategies have the same); and for a few epochs
    on emulated hosts, which says how long an epoch takes. The time to the target is the product.

    Seconds are the slowest rank's, the median of epochs, without evaluations. Words and bytes are from the rank
    that has most. Rows are kept in benchmarks/results/comparison.csv.

    Args:
        hosts: numbers of emulated hosts
        rate: of the links, in Mbit/s
    """
    yield Table(*KEY, "epochs to the target", "seconds an epoch:.3g")
    for count in hosts:
        rows = list(measure_choices(dataset, count, rate))
        keep_rows(rows)
        for row in rows:
            yield *(row[key] for key in KEY), row["epochs_to_target"], row["seconds"]


@benchmark
def predicted() -> Results:
    """Predict the fastest grid of every strategy on a published graph, on a machine of many GPUs.

    Asks `harness advise` for two layers of hidden 64, from the graph's card alone: where vertices are split into parts,
    neighbours are anywhere. Rows are kept in benchmarks/results/comparison.csv.
    """
    yield Table(*KEY, "seconds an epoch:.3g", "refused because")
    for world in WORLDS:
        rows, refused = predict_choices(world)
        keep_rows(rows)
        for row in rows:
            yield *(row[key] for key in KEY), row["seconds"], None
        for refusal in refused:
            yield PUBLISHED, MACHINE, world, refusal["strategy"], None, None, None, refusal["reason"]


@benchmark
def table() -> Results:
    """Show what comparison.measured and comparison.predicted have found, the fastest first; draw both."""
    rows = pd.read_csv(ROWS).fillna({"options": ""})
    on_links = rows[rows.machine != MACHINE].sort_values(["ranks", "seconds_to_target", "seconds"])
    for (graph, machine, ranks), group in on_links.groupby(["graph", "machine", "ranks"], sort=False):
        yield Table(
            *("strategy", "grid", "s to the target:.3g", "epochs:.0f", "s an epoch:.3g"),
            *("M words an epoch:.3g", "MB held:.3g"),
            title=f"{graph}, {ranks} ranks, links of {machine}, target {group.target.iloc[0]:g}",
        )
        for row in group.to_dict("records"):
            reached = not isnan(row["epochs_to_target"])
            to_target = row["seconds_to_target"] if reached else f"{row['accuracy']:.3f} only"
            name, amounts = f"{row['strategy']} {row['options']}".strip(), (row["words"], row["bytes"])
            times = to_target, row["epochs_to_target"], row["seconds"]
            yield name, row["grid"], *times, *(amount / MILLION for amount in amounts)
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


def measure_choices(dataset: str, hosts: int, rate: int) -> Iterator[dict[str, Any]]:
    """Measure each choice on some hosts, with links of a rate in Mbit/s."""
    specs = list_choices(dataset, hosts)
    for spec in specs:
        build_store(find_root(), spec.dataset)
    with Pool() as pool:
        reached = pool.run(hosts, count_epochs, specs, patience=3600)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([spec.model_dump(mode="json") for spec in specs], file)
        file.flush()
        rows = measure_on_hosts("comparison.on-hosts", Hosts(hosts, f"{rate}mbit"), file.name)
    for spec, (epochs, share), row in zip(specs, reached, rows.to_dict("records"), strict=True):
        yield {
            "graph": dataset,
            "machine": f"{rate} Mbit/s",
            "ranks": hosts,
            "strategy": spec.strategy.name,
            "options": describe_options(spec),
            "grid": format_grid(spec.grid),
            "epochs_to_target": epochs,
            "accuracy": share,
            "target": spec.training.target,
            **{key: row[key] for key in ("seconds", "words", "bytes")},
            "seconds_to_target": epochs * row["seconds"] if epochs else nan,
        }


def describe_options(spec: Spec) -> str:
    """Return the options in which a choice differs from others of its strategy, and the partition."""
    parts = [spec.dataset.partition] if spec.dataset.partitioned else []
    return " ".join([*parts, named("", changed_params(spec)).strip()]).strip()


def changed_params(spec: Spec) -> dict[str, Any]:
    """Return the parameters of a strategy that are not its defaults."""
    from harness.registry import load_strategy

    usual = load_strategy(spec.strategy.name).Params().model_dump(mode="json")
    return {key: value for key, value in spec.strategy.params.items() if usual.get(key) != value}


# Predicted: the fastest grid of every strategy, on a published graph.


def predict_choices(world: int) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return a row for each strategy on a number of GPUs, and the refusals of the others."""
    command = [sys.executable, "-m", "harness", "advise", "--json", "--dataset", PUBLISHED]
    command += ["--machine", MACHINE, "--ranks", str(world), "--from-card", "--within", "3600"]
    command += ["--set", "model.layers=2", "--set", "model.hidden=64", "--set", "model.order=aggregate_first"]
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
                "words": option["elements_received"],
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
