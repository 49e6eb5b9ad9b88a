"""harness plan and harness replay: the grids and runs that are possible, their cost, and one rank without a run."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    Progress,
    Verbs,
    add_rank,
    add_request,
    add_verb,
    check_rank,
    columns,
    ranks,
    requested,
    show,
    sizes_of,
)
from harness.errors import UserError
from harness.progress import OnStep, report_steps
from harness.spec.plan import SCALES
from harness.spec.root import find_results_folder, find_root
from harness.spec.spec import format_grid
from harness.validation import validate

if TYPE_CHECKING:
    from harness.graph.blocks import Blocks
    from harness.ledger import Amounts, AxisName, Key
    from harness.replay import ReplayedRank
    from harness.spec.spec import Spec
    from harness.strategy import Facts, Strategy


def add_verbs(verbs: Verbs) -> None:
    plan = add_verb(
        verbs,
        "plan",
        _plan,
        "List the grids of a strategy, or the runs of an experiment, before anything runs.",
        "With --strategy and --ranks, prints every valid grid. With --dataset too, says for each grid whether it can "
        "train on that graph; if the machine card has rates and links, it also predicts the epoch time and puts the "
        "fastest grid first. With --experiment, prints the id and the label of every run.",
    )
    plan.add_argument("--strategy", metavar="NAME", help="the strategy whose grids are listed")
    plan.add_argument("--ranks", type=ranks, default=1, metavar="P", help="the number of ranks (default 1)")
    plan.add_argument("--dataset", metavar="NAME", help="the graph on which the grids are judged")
    plan.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of `harness list settings`, for example machine=perlmutter; may be repeated",
    )
    _add_from_card(plan)
    plan.add_argument(
        "--experiment", type=Path, nargs="+", metavar="FILE", help="the experiments whose runs are listed"
    )
    plan.add_argument(
        "--scale",
        choices=SCALES,
        default="laptop",
        help="of an experiment: tiny runs that try it, those for one machine (default), those that are emulated, or "
        "those of the paper",
    )
    plan.add_argument(
        "--machine",
        metavar="NAME",
        help="of an experiment: the card for runs that name none (default: local); of the scale published, list the "
        "runs for this machine alone",
    )
    plan.add_argument(
        "--cost",
        action="store_true",
        help="of an experiment: print its jobs instead of its runs: nodes, node-hours, expected and asked time, disk, "
        "sbatch and srun lines, and what the partitions of this cluster forbid",
    )
    plan.add_argument(
        "--out",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="write the list of specs here: a file for each experiment",
    )
    replay = add_verb(
        verbs,
        "replay",
        _replay,
        "Show what one rank of a run would do in an epoch, without running it.",
        "Executes the strategy's own code on tensor shapes without data. Prints every kernel and every collective, "
        "with its words, flops and bytes, and the memory of the rank. A run of any size fits on this machine.",
    )
    add_request(replay)
    add_rank(replay)
    _add_from_card(replay)


def _add_from_card(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-card",
        action="store_true",
        help="take the graph's sizes from its card; the graph need not be built",
    )


def _plan(options: argparse.Namespace) -> int:
    if options.cost and not options.experiment:
        raise UserError("--cost is for the jobs of an experiment: name one by --experiment FILE.")
    if (options.experiment is None) == (options.strategy is None):
        raise UserError("plan takes either --experiment FILE or --strategy NAME --ranks P.")
    return _experiment(options) if options.experiment else _grids(options)


def _experiment(options: argparse.Namespace) -> int:
    from harness.experiment.expand import plan
    from harness.experiment.experiment_file import load_experiment
    from harness.experiment.scales import select_scale
    from harness.files import write_text

    if options.out and len(options.out) != len(options.experiment):
        raise UserError(
            f"--out names {len(options.out)} files for {len(options.experiment)} experiments: name one for each."
        )
    root, documents, pages = find_root(options.root), list[dict[str, Any]](), list[str]()
    only = options.machine if options.scale == "published" else None
    with Progress() as on_step:
        files = report_steps(options.experiment, lambda file: f"planning {file}", on_step)
        for number, file in enumerate(files):
            experiment = select_scale(root, load_experiment(file), options.scale)
            document = plan(root, experiment, options.machine or "local", only=only)
            if options.out:
                write_text(options.out[number], json.dumps(document) + "\n")
            runs = columns([(run["run_id"], run["label"]) for run in document["runs"]])
            documents.append(document)
            pages.append(f"{_jobs(root, document) if options.cost else runs}\n\n{document['cost']}")
    show(options, documents[0] if len(documents) == 1 else documents, "\n\n".join(pages))
    return 0


def _jobs(root: Path, document: dict[str, Any]) -> str:
    """The jobs of a plan before their submission."""
    from harness.slurm.executor import make_batch_line
    from harness.slurm.jobs import EndedJobs, Jobs, describe_costs
    from harness.slurm.resources import PARTITION_QUERY, ask_slurm, load_site, parse_partitions

    runs = {run["run_id"]: run for run in document["runs"]}
    jobs = Jobs(root, runs, load_site(root), find_results_folder(root) / "runs", EndedJobs())
    costs = [jobs.estimate_cost(batch) for batch in jobs.batches]
    return describe_costs(costs, parse_partitions(ask_slurm(*PARTITION_QUERY) or ""), make_batch_line)


def _grids(options: argparse.Namespace) -> int:
    from harness.registry import load_strategy

    grids = load_strategy(options.strategy).grids(options.ranks)
    if not grids:
        raise UserError(f"{options.strategy} has no grid of {options.ranks} ranks.")
    if options.dataset is None:
        show(options, grids, "\n".join(format_grid(grid) for grid in grids))
        return 0
    with Progress() as on_step:
        judged = sorted(_judged(options, grids, on_step), key=JudgedGrid.order)
    predicts = any(grid.seconds is not None for grid in judged)
    titles = [("grid", "epoch ms", "waiting ms", "")] if predicts else []
    rows = titles + [grid.row(predicts=predicts) for grid in judged]
    show(options, [grid._asdict() for grid in judged], columns(rows))
    return 0


class JudgedGrid(NamedTuple):
    """A grid, the reason why it is refused or None, and its predicted times in seconds, None without a prediction."""

    grid: dict["AxisName", int]
    refused: str | None
    seconds: float | None = None
    waiting: float | None = None

    def order(self) -> tuple[bool, float]:
        return self.refused is not None, self.seconds or 0.0

    def row(self, *, predicts: bool) -> tuple[str, ...]:
        times = (self.seconds, self.waiting) if predicts else ()
        cells = ("" if time is None else f"{1e3 * time:.3g}" for time in times)
        return format_grid(self.grid), *cells, f"refused: {self.refused}" if self.refused else "runs"


def _judged(
    options: argparse.Namespace, grids: list[dict["AxisName", int]], on_step: OnStep
) -> "Iterator[JudgedGrid]":
    """Every grid, admitted or refused, with the times of `harness predict` if the machine card has rates and links."""
    from harness.experiment.known_graph import look_up_graph
    from harness.predict.prediction import predict
    from harness.registry import load_strategy
    from harness.spec.dataset import DatasetChoice
    from harness.spec.machine_card import load_machine_card
    from harness.store.datasets import open_dataset
    from harness.strategy import Ready, admit

    root, strategy = find_root(options.root), load_strategy(options.strategy)
    know = cache(partial(look_up_graph, root, from_card=options.from_card))
    if not options.from_card:
        open_dataset(root, validate(DatasetChoice, {"name": options.dataset}, "--dataset"))
    specs = [requested(root, argparse.Namespace(**{**vars(options), "grid": grid})) for grid in grids]
    card = load_machine_card(root, specs[0].machine.name)
    for spec in report_steps(specs, lambda spec: f"judging {format_grid(spec.grid)}", on_step):
        grid = spec.grid
        try:
            graph = know(spec.dataset)
            ready = Ready(admit(strategy, spec, graph.facts), graph.blocks)
            predicted = predict(ready, card) if card.rates and card.links else None
        except UserError as refusal:
            yield JudgedGrid(grid, str(refusal))
        else:
            times = (predicted.seconds.value, predicted.waiting) if predicted else ()
            yield JudgedGrid(grid, None, *times)


def _replay(options: argparse.Namespace) -> int:
    from harness.replay import replay

    root = find_root(options.root)
    spec = requested(root, options)
    check_rank(options, spec)
    strategy, blocks = _admitted(root, spec, from_card=options.from_card)
    replayed = replay(strategy, options.rank, blocks)
    show(options, _document(spec, strategy.facts, replayed), _page(spec, strategy.facts, replayed))
    return 0


def _admitted(root: Path, spec: "Spec", *, from_card: bool) -> "tuple[Strategy, Blocks | None]":
    from harness.experiment.known_graph import facts_of_card
    from harness.registry import load_strategy
    from harness.run.open_run import open_run
    from harness.store.catalog import load_card
    from harness.strategy import admit

    if not from_card:
        return open_run(root, spec)
    facts = facts_of_card(load_card(root, spec.dataset.name))
    return admit(load_strategy(spec.strategy.name), spec, facts), None


def _document(spec: "Spec", facts: "Facts", replayed: "ReplayedRank") -> dict[str, Any]:
    return {
        "label": spec.label,
        "rank": replayed.rank,
        "facts": asdict(facts),
        "entries": [_row(key, amounts) for key, amounts in replayed.entries.items()],
        "events": [
            {
                **_row(event.key, event.amounts),
                "products": [product._asdict() for product in event.products],
                "leaves": event.leaves,
                "waits_for": event.waits_for,
            }
            for event in replayed.events
        ],
        "persistent_bytes": {name.value: size for name, size in replayed.persistent_bytes.items()},
        "peak_bytes": replayed.peak_bytes,
    }


COUNTED = ("calls", "words_payload", "words_received", "bytes", "flops", "bytes_touched")


def _row(key: "Key", amounts: "Amounts") -> dict[str, Any]:
    return {**key._asdict(), **{name: getattr(amounts, name) for name in COUNTED}}


def _page(spec: "Spec", facts: "Facts", replayed: "ReplayedRank") -> str:
    """The entries that count anything, in the order of the epoch."""
    head = ("direction", "layer", "phase", "op", "axis", "tensor", "calls", "words", "Gflop", "MB touched")
    rows: list[tuple[str, ...]] = [head]
    for key, amounts in replayed.entries.items():
        counted = (amounts.calls, amounts.words_payload, amounts.flops / 1e9, amounts.bytes_touched / 1e6)
        if any(counted):
            layer = "" if key.layer < 0 else key.layer
            parts = (key.direction, layer, key.phase, key.op, key.axis, key.tensor)
            numbers = (f"{counted[0]:,}", f"{counted[1]:,.0f}", f"{counted[2]:.3g}", f"{counted[3]:.3g}")
            rows.append((*("" if part is None else str(part) for part in parts), *numbers))
    held = ", ".join(f"{name} {size / 1e6:.3g}" for name, size in replayed.persistent_bytes.items())
    return (
        f"{spec.label}, rank {replayed.rank} of {spec.ranks}; sizes {sizes_of(facts)}\n\n{columns(rows)}\n\n"
        f"{len(replayed.events):,} events. Held during the whole epoch, MB: {held}. With activations, gradients and "
        f"buffers of messages at most {replayed.peak_bytes / 1e6:.3g}."
    )
