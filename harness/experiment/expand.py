"""Expands an experiment, the YAML file that lists the runs behind a figure, into specs.

Each entry of `runs` is the cross product of its lists; `exclude` removes combinations.
"""

from itertools import product
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.validation import format_value
from harness.experiment.defaults import BEST, count_ranks, read_choice
from harness.experiment.experiment_file import Experiment, Runs
from harness.experiment.paper_figures import check_figure_ids
from harness.experiment.plan_cost import add_costs, predict_costs
from harness.experiment.requests import make_spec
from harness.graph.cards.catalog import load_card
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.plan import make_plan
from harness.spec.spec import Spec, digest
from harness.strategy.admit import parse_grid

NESTED = ("model", "training", "measure")


def expand(
    root: Path,
    experiment: Experiment,
    machine: str = "local",
    *,
    only: str | None = None,
    any_grid: bool = False,
    best_grids: dict[str, dict[AxisName, int]] | None = None,
) -> list[Spec]:
    """Return the specs of an experiment without duplicates, in the order of the file.

    `machine` is the default machine, and `only` selects the specs of one machine. Runs that differ only in their launch
    share one search for the best grid. With `any_grid`, a strategy's default grid replaces the best one, which saves
    the predictions. `best_grids` has grids that are known to be the best, by the digest of the request; those that are
    searched for are added.
    """
    machine = experiment.machine or machine
    if experiment.reproduces:
        check_figure_ids(root, experiment.reproduces, experiment.name)
    specs: dict[str, Spec] = {}
    known_grids = {} if best_grids is None else best_grids
    other_machines: list[str] = []
    for number, entry in enumerate(experiment.runs):
        where = f"{experiment.name}, runs[{number}]"
        for combination in combine(entry, where):
            for request in _expand_grids(combination, where):
                filled = {"machine": machine, **request}
                if only and filled["machine"] != only:
                    other_machines.append(filled["machine"])
                    continue
                if filled.get("grid") == BEST and any_grid:
                    del filled["grid"]
                elif filled.get("grid") == BEST:
                    key = digest({**filled, "launch": 0})
                    if key not in known_grids:
                        known_grids[key] = dict(make_spec(root, filled, where).grid)
                    filled["grid"] = known_grids[key]
                spec = make_spec(root, filled, where)
                specs.setdefault(spec.run_id, spec)
    if only and not specs:
        machines = ", ".join(sorted(set(map(str, other_machines))))
        raise UserError(f"{experiment.name} has no runs for the machine {only}; it has runs for {machines}.")
    return list(specs.values())


def plan(
    root: Path, experiment: Experiment, machine: str = "local", *, only: str | None = None
) -> dict[str, Any]:
    """Return the expanded experiment as the document that the workflow reads."""
    content, specs = experiment.model_dump(mode="json"), expand(root, experiment, machine, only=only)
    for name in dict.fromkeys(spec.dataset.name for spec in specs):
        load_card(root, name)  # an unknown one is an error
    costs = predict_costs(root, specs)
    cost_rows = {run_id: cost._asdict() for run_id, cost in costs.items()}
    return make_plan(experiment.name, digest(content), specs, cost_rows, str(add_costs(root, specs, costs)))


def count_runs(runs: Runs, where: str) -> int:
    """Count the runs of a scale without making their specs, so equal runs count twice."""
    return sum(
        len(_expand_grids(combination, where)) for entry in runs.runs for combination in combine(entry, where)
    )


def combine(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the requests of an entry: the cross product of its lists without the excluded combinations."""
    choices = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
    excluded = choices.pop("exclude", [])
    requests = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return [each for each in requests if not any(_matches(rule, each, where) for rule in excluded)]


def _matches(rule: Any, combination: dict[str, Any], where: str) -> bool:
    """Return whether a combination has all values of an exclusion. Strategies and datasets may be given by name."""
    if not isinstance(rule, dict):
        raise UserError(
            f"{where}: exclude = {format_value(rule)} is not accepted: a mapping of keys of the entry to values."
        )
    for key, value in rule.items():
        if key not in combination:
            raise UserError(f"{where}: exclude names {key}, which the entry does not set.")
        chosen = combination[key]
        name = chosen.get("name") if isinstance(chosen, dict) and key not in NESTED else chosen
        if value not in (chosen, name):
            return False
    return True


def _expand_grids(request: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Replace `grid: all` by each grid that the strategy has for the number of ranks."""
    if request.get("grid") != "all":
        return [request]
    strategy = load_strategy(read_choice(request, "strategy", where)["name"])
    ranks = count_ranks(request, where)
    grids: list[dict[AxisName, int]] = strategy.grids(ranks)
    if not grids:
        parse_grid(strategy, None, ranks)
    return [{**request, "grid": grid} for grid in grids]
