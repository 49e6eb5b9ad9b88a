"""harness plan: the grids a strategy has, or every spec of an experiment."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import Verbs, add_verb, columns, show
from harness.errors import UserError
from harness.spec.root import project_root
from harness.spec.spec import grid_text

if TYPE_CHECKING:
    from harness.ledger import AxisName


def add_verbs(verbs: Verbs) -> None:
    parser = add_verb(verbs, "plan", _plan, "Valid grids of a strategy, or the spec list of an experiment.")
    parser.add_argument("--experiment", type=Path, metavar="FILE", help="an experiment file to expand")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the spec list here")
    parser.add_argument("--strategy", metavar="NAME")
    parser.add_argument("--dataset", metavar="NAME", help="say of every grid whether it can train on this")
    parser.add_argument("--ranks", type=int, default=1)


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
    reasons = _refusals(options, grids)
    rows = [
        (grid_text(grid), f"refused: {reason}" if reason else "runs")
        for grid, reason in zip(grids, reasons, strict=True)
    ]
    answers = [{"grid": grid, "refused": reason} for grid, reason in zip(grids, reasons, strict=True)]
    show(options, answers, columns(rows))
    return 0


def _refusals(options: argparse.Namespace, grids: list[dict["AxisName", int]]) -> list[str | None]:
    """Why each grid cannot train on this dataset with the default model, or None."""
    from harness.registry import load_strategy
    from harness.store.build import open_dataset
    from harness.store.choice import DatasetChoice
    from harness.strategy import admit, facts_of
    from harness.strategy.request import make_spec

    root, strategy = project_root(options.root), load_strategy(options.strategy)
    facts = facts_of(open_dataset(root, DatasetChoice(name=options.dataset)))
    reasons: list[str | None] = []
    for grid in grids:
        asked = {"strategy": options.strategy, "dataset": options.dataset, "ranks": options.ranks}
        try:
            admit(strategy, make_spec(root, {**asked, "grid": grid}, "the options"), facts)
            reasons.append(None)
        except UserError as refusal:
            reasons.append(str(refusal))
    return reasons


def _experiment(options: argparse.Namespace) -> int:
    from harness.results.files import write_text
    from harness.strategy.experiment import load_experiment, plan

    document = plan(project_root(options.root), load_experiment(options.experiment))
    if options.out:
        write_text(options.out, json.dumps(document, indent=1) + "\n")
    rows = [(run["run_id"], run["label"]) for run in document["runs"]]
    show(options, document, columns(rows))
    return 0
