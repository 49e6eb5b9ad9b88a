"""harness plan: the grids a strategy has and what they should cost, or every spec of an experiment."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.cli.request import Verbs, add_verb, columns, ranks, requested, show
from harness.errors import UserError
from harness.spec.root import project_root
from harness.spec.spec import grid_text
from harness.validation import validated

if TYPE_CHECKING:
    from harness.ledger import AxisName
    from harness.strategy import Facts


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "plan", _plan, "Valid grids of a strategy, or the spec list of an experiment.")
    parser.add_argument("--experiment", type=Path, metavar="FILE", help="an experiment file to expand")
    parser.add_argument("--published", action="store_true", help="of an experiment: the paper's own runs")
    parser.add_argument(
        "--machine",
        default="local",
        metavar="NAME",
        help="of an experiment: the card for runs that name none",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the spec list here")
    parser.add_argument("--strategy", metavar="NAME")
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        help="say of every grid whether it can train on this and, where the machine's card has links, how long an "
        "epoch should take: the best first",
    )
    parser.add_argument("--ranks", type=ranks, default=1)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of a spec, as machine=perlmutter",
    )
    parser.add_argument("--from-card", action="store_true", help="take the graph's sizes from its card")


def _plan(options: argparse.Namespace) -> int:
    if (options.experiment is None) == (options.strategy is None):
        raise UserError("plan takes either --experiment FILE or --strategy NAME --ranks P.")
    return _experiment(options) if options.experiment else _grids(options)


def _grids(options: argparse.Namespace) -> int:
    from harness.registry import load_strategy

    grids = load_strategy(options.strategy).grids(options.ranks)
    if not grids:
        raise UserError(f"{options.strategy} has no grid of {options.ranks} ranks.")
    if options.dataset is None:
        show(options, grids, "\n".join(grid_text(grid) for grid in grids))
        return 0
    answers = sorted(_answers(options, grids), key=Answer.rank)
    predicts = any(answer.communication is not None for answer in answers)
    titles = [("grid", "products ms", "communication ms", "epoch ms", "")] if predicts else []
    show(
        options,
        [answer._asdict() for answer in answers],
        columns(titles + [answer.row(predicts=predicts) for answer in answers]),
    )
    return 0


class Answer(NamedTuple):
    """What is known of a grid before anything runs; times in seconds, None where nothing predicts them."""

    grid: dict["AxisName", int]
    refused: str | None
    products: float | None = None
    communication: float | None = None

    def rank(self) -> tuple[bool, float]:
        return self.refused is not None, (self.products or 0) + (self.communication or 0)

    def row(self, *, predicts: bool) -> tuple[str, ...]:
        known = (
            None
            if self.products is None or self.communication is None
            else self.products + self.communication
        )
        times = (self.products, self.communication, known) if predicts else ()
        told = ("" if self.refused else "-" if time is None else f"{1e3 * time:.3g}" for time in times)
        return grid_text(self.grid), *told, f"refused: {self.refused}" if self.refused else "runs"


def _facts(options: argparse.Namespace) -> "Facts":
    from harness.experiment.expected_facts import facts_of_card
    from harness.spec.dataset import DatasetChoice
    from harness.store.build import open_dataset
    from harness.store.catalog import load_card
    from harness.strategy import facts_of

    root = project_root(options.root)
    if options.from_card:
        return facts_of_card(load_card(root, options.dataset))
    return facts_of(open_dataset(root, validated(DatasetChoice, {"name": options.dataset}, "--dataset")))


def _answers(options: argparse.Namespace, grids: list[dict["AxisName", int]]) -> "Iterator[Answer]":
    from harness.cost.epoch import predict
    from harness.registry import load_strategy
    from harness.spec.machine import load_machine_card
    from harness.strategy import BlockCounts, ShapeBlocks, admit

    root, facts, strategy = project_root(options.root), _facts(options), load_strategy(options.strategy)
    specs = [requested(root, argparse.Namespace(**{**vars(options), "grid": grid})) for grid in grids]
    card = load_machine_card(root, specs[0].machine.name)
    counts = BlockCounts(ShapeBlocks(facts, specs[0].dataset.permutation))
    for grid, spec in zip(grids, specs, strict=True):
        try:
            ready = admit(strategy, spec, facts)
        except UserError as refusal:
            yield Answer(grid, str(refusal))
        else:
            yield Answer(grid, None, *(predict(ready, card, counts) if card.links else ()))


def _experiment(options: argparse.Namespace) -> int:
    from harness.experiment.expand import as_published, load_experiment, plan
    from harness.files import write_text

    experiment = load_experiment(options.experiment)
    if options.published:
        experiment = as_published(experiment)
    document = plan(project_root(options.root), experiment, options.machine)
    if options.out:
        write_text(options.out, json.dumps(document, indent=1) + "\n")
    rows = [(run["run_id"], run["label"]) for run in document["runs"]]
    show(options, document, columns(rows))
    return 0
