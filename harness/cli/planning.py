"""harness plan and replay: lists grids, or the runs and jobs of experiments, and replays one rank on shapes."""

import argparse
import json
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.options import (
    ProgressLine,
    Verbs,
    add_verb,
    format_columns,
    make_requested_spec,
    print_answer,
    rank_count,
)
from harness.errors import UserError
from harness.progress import OnStep, report_steps
from harness.spec.plan import SCALES
from harness.spec.root import find_results_folder, find_root
from harness.spec.spec import format_grid
from harness.validation import validate

if TYPE_CHECKING:
    from harness.ledger import AxisName


def add_verbs(verbs: Verbs) -> None:
    _add_plan(verbs)


def _add_plan(verbs: Verbs) -> None:
    plan = add_verb(
        verbs,
        "plan",
        _plan_runs,
        "List the grids of a strategy, or the runs of an experiment, before anything runs.",
        "With --strategy and --ranks, prints every valid grid. With --dataset, also prints whether each grid can train "
        "on that graph; if the machine card has rates and links, predicts the epoch times and lists the fastest grid "
        "first. With --experiment, prints the id and the label of every run.",
    )
    plan.add_argument("--strategy", metavar="NAME", help="the strategy whose grids are listed")
    plan.add_argument(
        "--ranks", type=rank_count, default=1, metavar="P", help="the number of ranks (default 1)"
    )
    plan.add_argument("--dataset", metavar="NAME", help="the graph for which the grids are checked")
    plan.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of `harness list settings`, for example machine=perlmutter; may be repeated",
    )
    _add_from_card_option(plan)
    plan.add_argument(
        "--experiment", type=Path, nargs="+", metavar="FILE", help="the experiments whose runs are listed"
    )
    plan.add_argument(
        "--scale",
        choices=SCALES,
        default="laptop",
        help="with --experiment: the size of its runs: tiny for a trial, laptop for one machine (default), emulated, "
        "or published as in the paper",
    )
    plan.add_argument(
        "--machine",
        metavar="NAME",
        help="with --experiment: the card for runs that name none (default: local); with --scale published, only the "
        "runs for this machine are listed",
    )
    plan.add_argument(
        "--cost",
        action="store_true",
        help="with --experiment: print its jobs instead of its runs: nodes, node-hours, expected and requested time, "
        "disk, sbatch and srun lines, and limits of this cluster's partitions that they exceed",
    )
    plan.add_argument(
        "--out",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="with --experiment: write the plan, which lists the specs of all runs; one file for each experiment",
    )


def _add_from_card_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-card",
        action="store_true",
        help="take the sizes of the graph from its card; the graph need not be built",
    )


def _plan_runs(options: argparse.Namespace) -> int:
    if options.cost and not options.experiment:
        raise UserError("--cost prints the jobs of an experiment: name one by --experiment FILE.")
    if options.out and not options.experiment:
        raise UserError(
            "--out writes the runs of an experiment: name one by --experiment FILE. The grids of a strategy are not a "
            "plan; --json prints them."
        )
    if options.machine and not options.experiment:
        raise UserError(
            f"--machine is for the runs of an experiment: for grids, write --set machine={options.machine}."
        )
    if (options.experiment is None) == (options.strategy is None):
        raise UserError("plan takes either --experiment FILE or --strategy NAME --ranks P.")
    return _plan_experiments(options) if options.experiment else _list_grids(options)


def _plan_experiments(options: argparse.Namespace) -> int:
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
    with ProgressLine() as on_step:
        files = report_steps(options.experiment, lambda file: f"planning {file}", on_step)
        for number, file in enumerate(files):
            experiment = select_scale(root, load_experiment(file), options.scale)
            document = plan(root, experiment, options.machine or "local", only=only)
            if options.out:
                write_text(options.out[number], json.dumps(document) + "\n")
            runs = format_columns([(run["run_id"], run["label"]) for run in document["runs"]])
            documents.append(document)
            pages.append(f"{_describe_jobs(root, document) if options.cost else runs}\n\n{document['cost']}")
    print_answer(options, documents[0] if len(documents) == 1 else documents, "\n\n".join(pages))
    return 0


def _describe_jobs(root: Path, document: dict[str, Any]) -> str:
    """Return a description of the jobs of a plan before their submission."""
    from harness.slurm.executor import make_batch_line
    from harness.slurm.jobs import EndedJobs, Jobs, describe_costs
    from harness.slurm.resources import PARTITION_QUERY, ask_slurm, load_site, parse_partitions

    runs = {run["run_id"]: run for run in document["runs"]}
    jobs = Jobs(root, runs, load_site(root), find_results_folder(root) / "runs", EndedJobs())
    costs = [jobs.estimate_cost(batch) for batch in jobs.batches]
    return describe_costs(costs, parse_partitions(ask_slurm(*PARTITION_QUERY) or ""), make_batch_line)


def _list_grids(options: argparse.Namespace) -> int:
    from harness.registry import load_strategy

    grids = load_strategy(options.strategy).grids(options.ranks)
    if not grids:
        raise UserError(f"{options.strategy} has no grid of {options.ranks} ranks.")
    if options.dataset is None:
        print_answer(options, grids, "\n".join(format_grid(grid) for grid in grids))
        return 0
    with ProgressLine() as on_step:
        judged = sorted(_judge_grids(options, grids, on_step), key=JudgedGrid.sort_key)
    predicts = any(grid.seconds is not None for grid in judged)
    titles = [("grid", "epoch ms", "waiting ms", "")] if predicts else []
    rows = titles + [grid.format_cells(predicts=predicts) for grid in judged]
    print_answer(options, [grid._asdict() for grid in judged], format_columns(rows))
    return 0


class JudgedGrid(NamedTuple):
    """A grid, the reason why the strategy refuses it (or None), and its predicted times in seconds if there are any."""

    grid: dict["AxisName", int]
    refused: str | None
    seconds: float | None = None
    waiting: float | None = None

    def sort_key(self) -> tuple[bool, float]:
        """Return a key that sorts refused grids last and others by time."""
        return self.refused is not None, self.seconds or 0.0

    def format_cells(self, *, predicts: bool) -> tuple[str, ...]:
        """Return the cells of a row of the table; with times if `predicts`."""
        times = (self.seconds, self.waiting) if predicts else ()
        cells = ("" if time is None else f"{1e3 * time:.3g}" for time in times)
        return format_grid(self.grid), *cells, f"refused: {self.refused}" if self.refused else "runs"


def _judge_grids(
    options: argparse.Namespace, grids: list[dict["AxisName", int]], on_step: OnStep
) -> "Iterator[JudgedGrid]":
    """Yield every grid, admitted or refused, with predicted times if the machine card has rates and links."""
    from harness.experiment.known_graph import look_up_graph
    from harness.predict.prediction import predict
    from harness.registry import load_strategy
    from harness.spec.dataset import DatasetChoice
    from harness.spec.machine_card import load_machine_card
    from harness.store.datasets import open_dataset
    from harness.strategy import Ready, admit

    root, strategy = find_root(options.root), load_strategy(options.strategy)
    look_up = cache(partial(look_up_graph, root, from_card=options.from_card))
    if not options.from_card:
        open_dataset(root, validate(DatasetChoice, {"name": options.dataset}, "--dataset"))
    specs = [
        make_requested_spec(root, argparse.Namespace(**{**vars(options), "grid": grid})) for grid in grids
    ]
    card = load_machine_card(root, specs[0].machine.name)
    for spec in report_steps(specs, lambda spec: f"checking {format_grid(spec.grid)}", on_step):
        grid = spec.grid
        try:
            graph = look_up(spec.dataset)
            ready = Ready(admit(strategy, spec, graph.facts), graph.blocks)
            predicted = predict(ready, card) if card.rates and card.links else None
        except UserError as refusal:
            yield JudgedGrid(grid, str(refusal))
        else:
            times = (predicted.seconds.value, predicted.waiting) if predicted else ()
            yield JudgedGrid(grid, None, *times)
