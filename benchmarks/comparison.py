"""All strategies on one graph, model, precision and machine: the time to an accuracy, the words and the memory.

    python benchmarks/comparison.py measured --hosts 4 8    on links, which needs root; let the machine do nothing else
    python benchmarks/comparison.py predicted               on a machine of many GPUs
    python benchmarks/comparison.py table                   draws and prints what the two have measured and predicted

The strategies and their options are those of workflows/experiments/all-strategies.yaml, each on the grid that is
predicted to be the fastest. `measured` trains each of them twice:

1. until the target accuracy, on this machine alone: that says how many epochs training takes. Links change no number,
   and all exact strategies have the same.
2. for a few epochs on emulated hosts with slow links (benchmarks/testbed): that says how long an epoch takes.

The time to the target is the product. Seconds are the slowest rank's, the median of epochs, without evaluations. Words
and bytes are those of the rank that has most. Ranks share the cores of this machine.

`predicted` asks `harness advise` for two layers of hidden 64 on a published graph, of which it takes the card alone:
where vertices are split into parts, neighbours are anywhere. Rows are kept in results/comparison.csv.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measuring import Table, argument_parser, named, on_hosts, plain_ticks, train_in_turns, trainer_of

from harness.experiment.expand import expand
from harness.experiment.experiment_file import load_experiment
from harness.figures.drawing import render_figure, style_context
from harness.figures.palette import look_of
from harness.launch.worker_pool import Pool
from harness.ledger import AxisName
from harness.run.open_run import open_run
from harness.run.rank_tables import gather_tables
from harness.spec.root import find_root
from harness.spec.spec import Spec, format_grid
from harness.store.datasets import build_store
from harness.strategy import Promise

EXPERIMENT = Path("workflows") / "experiments" / "all-strategies.yaml"
RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "comparison.csv"
KEY = ["graph", "machine", "ranks", "strategy", "options", "grid"]
MACHINE, PUBLISHED, WORLDS = "perlmutter", "ogbn-products", (64, 256, 1024)
EPOCHS = 2
MILLION, MEGABYTE = 1e6, 1e6
USUAL_BYTES = 200e6
"""What a rank holds whose marker has the usual size."""


# Measured: every choice of the experiment, on this machine and on emulated hosts.


def choices(dataset: str, ranks: int) -> list[Spec]:
    """The runs of the experiment on so many ranks, on another graph."""
    experiment = load_experiment(find_root() / EXPERIMENT)
    runs = [{**entry, "dataset": on(entry["dataset"], dataset), "ranks": ranks} for entry in experiment.runs]
    return expand(find_root(), experiment.model_copy(update={"runs": runs}))


def on(choice: Any, name: str) -> dict[str, Any]:
    return {**(choice if isinstance(choice, dict) else {}), "name": name}


def epochs_to_target(specs: Sequence[Spec]) -> list[tuple[int | None, float]]:
    """For each spec the epochs until its target accuracy, None if it is not reached; and the last accuracy.

    Exact strategies compute the same numbers: the first of them is trained for all.
    """
    torch.set_num_threads(1)
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


def measure_on_hosts(file: Path, out: Path) -> None:
    """The part of one rank, on a host of the emulated cluster: a row for each spec of a file."""
    with on_hosts() as place:
        for document in json.loads(file.read_text()):
            trainer = trainer_of(Spec.model_validate(document))
            held = sum(trainer.ctx.memory.persistent_bytes().values())
            every = gather_tables(trainer.ctx.grid.world, held)
            for turns in train_in_turns([trainer], EPOCHS):
                row = {"seconds": turns.median(), "words": turns.most("received"), "bytes": max(every)}
                with out.open("a") as rows:
                    rows.write(json.dumps(row) + "\n")
            trainer.ctx.grid.drain()
            if place.rank == 0:
                print(document["strategy"]["name"], flush=True)


def measured(dataset: str, hosts: int, rate: int) -> Iterator[dict[str, Any]]:
    """A row for each choice on so many hosts, with links of this rate in Mbit/s."""
    specs = choices(dataset, hosts)
    for spec in specs:
        build_store(find_root(), spec.dataset)
    with Pool() as pool:
        reached = pool.run(hosts, epochs_to_target, specs, patience=3600)[0]
    testbed = [sys.executable, str(Path(__file__).parent / "testbed")]
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "specs", Path(folder) / "rows"
        file.write_text(json.dumps([spec.model_dump(mode="json") for spec in specs]))
        subprocess.run([*testbed, "up", "--hosts", str(hosts), "--rate", f"{rate}mbit"], check=True)
        try:
            here = [sys.executable, __file__, "hosts", "--specs", str(file), "--out", str(out)]
            subprocess.run([*testbed, "run", "--", *here], check=True)
        finally:
            subprocess.run([*testbed, "down"], check=True)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    for spec, (epochs, share), row in zip(specs, reached, rows, strict=True):
        yield {
            "graph": dataset,
            "machine": f"{rate} Mbit/s",
            "ranks": hosts,
            "strategy": spec.strategy.name,
            "options": options_of(spec),
            "grid": format_grid(spec.grid),
            "epochs_to_target": epochs,
            "accuracy": share,
            "target": spec.training.target,
            **row,
            "seconds_to_target": epochs * row["seconds"] if epochs else nan,
        }


def options_of(spec: Spec) -> str:
    """The options in which a choice differs from the others of its strategy, and the partition."""
    parts = [spec.dataset.partition] if spec.dataset.partitioned else []
    return " ".join([*parts, named("", asked_params(spec)).strip()]).strip()


def asked_params(spec: Spec) -> dict[str, Any]:
    """The parameters of a strategy that are not its defaults."""
    from harness.registry import load_strategy

    usual = load_strategy(spec.strategy.name).Params().model_dump(mode="json")
    return {key: value for key, value in spec.strategy.params.items() if usual.get(key) != value}


# Predicted: the fastest grid of every strategy, on a published graph.


def predicted(world: int) -> Iterator[dict[str, Any]]:
    """A row for each strategy on so many GPUs; strategies that refuse are left out, with their reason printed."""
    command = [sys.executable, "-m", "harness", "advise", "--json", "--dataset", PUBLISHED]
    command += ["--machine", MACHINE, "--ranks", str(world), "--from-card"]
    command += ["--set", "model.layers=2", "--set", "model.hidden=64"]
    advice = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    for kind in ("full_graph", "mini_batch"):
        best = dict[str, dict[str, Any]]()
        for option in advice[kind]:
            best.setdefault(option["strategy"], option)
        for name, option in best.items():
            seconds = option["seconds"]
            yield {
                "graph": PUBLISHED,
                "machine": MACHINE,
                "ranks": world,
                "strategy": name,
                "options": "",
                "grid": format_grid({AxisName(axis): size for axis, size in option["grid"].items()}),
                "seconds": seconds["value"],
                "seconds_low": seconds["low"],
                "seconds_high": seconds["high"],
                "words": option["words_received"],
                "bytes": option["peak_bytes"],
            }
    for refusal in advice["refused"]:
        print(f"{world} ranks: {refusal['strategy']}: {refusal['reason']}", flush=True)


def keep(rows: Iterator[dict[str, Any]]) -> None:
    """Puts rows in the place of those with the same key."""
    fresh = pd.DataFrame(list(rows))
    known = pd.read_csv(ROWS, keep_default_na=False, na_values=[""]) if ROWS.is_file() else fresh[:0]
    known = pd.concat([known, fresh]).fillna({"options": ""})
    known.drop_duplicates(KEY, keep="last").to_csv(ROWS, index=False)


# The table and the figure.


def table() -> None:
    """Prints the measured rows, the fastest first, and the predicted ones; draws both, and epochs beside targets."""
    rows = pd.read_csv(ROWS).fillna({"options": ""})
    on_links = rows[rows.machine != MACHINE].sort_values(["ranks", "seconds_to_target", "seconds"])
    for (graph, machine, ranks), group in on_links.groupby(["graph", "machine", "ranks"], sort=False):
        print(f"\n{graph}, {ranks} ranks, links of {machine}, target {group.target.iloc[0]:g}\n")
        shown = Table(
            "strategy", "grid", "s to the target", "epochs", "s an epoch", "M words an epoch", "MB held"
        )
        for row in group.to_dict("records"):
            reached = not isnan(row["epochs_to_target"])
            shown.row(
                f"{row['strategy']} {row['options']}".strip(),
                row["grid"],
                f"{row['seconds_to_target']:.3g}" if reached else f"{row['accuracy']:.3f} only",
                f"{row['epochs_to_target']:.0f}" if reached else "",
                f"{row['seconds']:.3g}",
                f"{row['words'] / MILLION:.3g}",
                f"{row['bytes'] / MEGABYTE:.3g}",
            )
    ours = rows[rows.machine == MACHINE]
    if len(ours):
        print(f"\n{PUBLISHED} on {MACHINE}, predicted: ms an epoch (interval) by number of ranks\n")
        shown = Table("strategy", *map(str, WORLDS))
        for name, group in ours.groupby("strategy", sort=False):
            shown.row(name, *(milliseconds(group[group.ranks == world]) for world in WORLDS))
    (RESULTS / "comparison.svg").write_bytes(drawn(on_links, ours))
    (RESULTS / "comparison-epochs.svg").write_bytes(drawn_epochs(on_links))


def milliseconds(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    row = rows.iloc[0]
    return f"{1e3 * row['seconds']:.3g} ({1e3 * row.seconds_low:.3g} to {1e3 * row.seconds_high:.3g})"


def drawn(on_links: pd.DataFrame, ours: pd.DataFrame) -> bytes:
    """Time to the target over words, for each number of hosts; and predicted epochs over ranks, if there are any."""
    with style_context():
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        parts = [(draw_measured, on_links), (draw_predicted, ours)]
        shown = [(draw, rows) for draw, rows in parts if len(rows)]
        labelled = dict[str, Any]()
        for axes, (draw, rows) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            draw(axes, rows)
            known = {label.split()[0] for label in labelled}  # a strategy has the same look in both
            handles, labels = axes.get_legend_handles_labels()
            fresh = zip(labels, handles, strict=True)
            labelled |= {label: handle for label, handle in fresh if label.split()[0] not in known}
        figure.legend(labelled.values(), labelled.keys(), fontsize=6, loc="outside right center")
        return render_figure(figure, "svg", "comparison", "benchmarks/comparison.py")


def drawn_epochs(on_links: pd.DataFrame) -> bytes:
    """Time to the target over the time of an epoch. On a dotted line all train for as many epochs."""
    reached = on_links.dropna(subset=["seconds_to_target"])
    with style_context():
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        draw_targets(axes, reached, "seconds", "an epoch, s")
        ends = [reached.seconds.min(), reached.seconds.max()]
        for epochs in (2, 4, 8, 16, 32):
            line = [epochs * end for end in ends]
            axes.plot(ends, line, linestyle=":", linewidth=0.7, color="0.6", zorder=0.5)
            axes.annotate(
                f"{epochs} epochs", (ends[1], line[1]), xytext=(3, 0), textcoords="offset points",
                va="center", fontsize=6, color="0.4",
            )  # fmt: skip
        figure.legend(fontsize=6, loc="outside right center")
        return render_figure(figure, "svg", "comparison-epochs", "benchmarks/comparison.py")


def draw_measured(axes: Axes, rows: pd.DataFrame) -> None:
    reached = rows.dropna(subset=["seconds_to_target"])
    words = reached.words * reached.epochs_to_target / MILLION
    draw_targets(axes, reached.assign(words=words), "words", "words to the target, millions")


def draw_targets(axes: Axes, reached: pd.DataFrame, along: str, xlabel: str) -> None:
    """The time to the target over a column. Points of the fewest hosts are filled."""
    for number, (_, group) in enumerate(reached.groupby("ranks")):
        draw_points(axes, group, along, hollow=number > 0)
    filled, *hollow = map(str, sorted(reached.ranks.unique()))
    fills = f"filled: {filled} hosts, hollow: {', '.join(hollow)}" if hollow else f"{filled} hosts"
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=xlabel,
        ylabel="time to the target, s",
        title=f"{fills}; area: bytes held",
    )
    plain_ticks(axes.xaxis, axes.yaxis)


def draw_predicted(axes: Axes, rows: pd.DataFrame) -> None:
    for name, group in rows.groupby("strategy", sort=False):
        look, line = look_of(str(name)), group.sort_values("ranks")
        off = [line.seconds - line.seconds_low, line.seconds_high - line.seconds]
        axes.errorbar(
            line.ranks, line.seconds * 1e3, [each * 1e3 for each in off], color=look.colour,
            marker=look.marker, markersize=4, linestyle="--", linewidth=0.8, elinewidth=0.5, label=str(name),
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlabel=f"GPUs of {MACHINE}", ylabel="predicted epoch, ms", title=PUBLISHED
    )
    plain_ticks(axes.yaxis)
    axes.set_xticks(WORLDS, map(str, WORLDS))


def draw_points(axes: Axes, group: pd.DataFrame, along: str, *, hollow: bool) -> None:
    for row in group.to_dict("records"):
        look = look_of(row["strategy"])
        face = "none" if hollow else look.colour
        name = f"{row['strategy']} {row['options']}".strip() if not hollow else None
        style = {
            "marker": look.marker,
            "markersize": 5 * (row["bytes"] / USUAL_BYTES) ** 0.5,
            "linestyle": "none",
            "color": look.colour,
        }
        axes.plot([row[along]], [row["seconds_to_target"]], markerfacecolor=face, label=name, **style)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("measured", "predicted", "table", "hosts"))
    parser.add_argument("--dataset", default="sbm-100k")
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rate", type=int, default=200, help="of the links, in Mbit/s")
    parser.add_argument("--specs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.what:
        case "hosts":
            measure_on_hosts(options.specs, options.out)
        case "measured":
            for hosts in options.hosts:
                keep(measured(options.dataset, hosts, options.rate))
        case "predicted":
            for world in WORLDS:
                keep(predicted(world))
        case "table":
            table()


if __name__ == "__main__":
    main()
