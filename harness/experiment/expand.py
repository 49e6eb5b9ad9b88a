"""An experiment: the YAML file that lists the runs behind a figure, expanded into specs.

Each entry of `runs` is the cross product of its lists; `exclude` removes combinations.
"""

from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.documents import read_yaml
from harness.errors import UserError
from harness.experiment.defaults import make_spec, named, ranks_of
from harness.experiment.plan_cost import costs, total
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.plan import plan_of
from harness.spec.spec import Spec, digest
from harness.strategy.admit import parse_grid
from harness.validation import Frozen, shown, validated

NESTED = ("model", "training", "measure")


class Runs(Frozen):
    """Runs, and the machine of the runs that name no machine."""

    machine: str | None = None
    runs: list[dict[str, Any]] = Field(min_length=1)


class Experiment(Runs):
    """The keys of an experiment file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)
    description: str = ""
    published: Runs | None = None
    """The runs of the paper for the same figure."""


def load_experiment(path: Path) -> Experiment:
    """The experiment of a file."""
    if not path.is_file():
        raise UserError(f"There is no experiment file {path}. The experiments are in workflows/experiments/.")
    return validated(Experiment, read_yaml(path, str(path)), str(path))


def as_published(experiment: Experiment) -> Experiment:
    """The experiment with the paper's own graphs and numbers of devices."""
    if experiment.published is None:
        raise UserError(f"{experiment.name} has no key `published`, which lists the runs of a paper.")
    ran = experiment.published
    name = f"{experiment.name}-published"
    return experiment.model_copy(
        update={"name": name, "machine": ran.machine, "runs": ran.runs, "published": None}
    )


def expand(root: Path, experiment: Experiment, machine: str = "local") -> list[Spec]:
    """Every spec of the experiment, in the order of the file, each once; `machine` is the default machine."""
    machine = experiment.machine or machine
    specs: dict[str, Spec] = {}
    for number, entry in enumerate(experiment.runs):
        where = f"{experiment.name}, runs[{number}]"
        for request in _combinations(entry, where):
            spec = make_spec(root, {"machine": machine, **request}, where)
            specs.setdefault(spec.run_id, spec)
    return list(specs.values())


def plan(root: Path, experiment: Experiment, machine: str = "local") -> dict[str, Any]:
    """The expanded experiment as a document, which the workflow reads."""
    content, specs = experiment.model_dump(mode="json"), expand(root, experiment, machine)
    each = costs(root, specs)
    of_runs = {run_id: cost._asdict() for run_id, cost in each.items()}
    return plan_of(experiment.name, digest(content), specs, of_runs, str(total(root, specs, each)))


def _combinations(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    choices = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
    excluded = choices.pop("exclude", [])
    combinations = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    kept = [one for one in combinations if not any(_matches(rule, one, where) for rule in excluded)]
    return [request for one in kept for request in _every_grid(one, where)]


def _matches(rule: Any, combination: dict[str, Any], where: str) -> bool:
    """True if a combination has all values of an exclusion, which may name a strategy or a dataset alone."""
    if not isinstance(rule, dict):
        raise UserError(
            f"{where}: exclude = {shown(rule)} is not accepted: a mapping of keys of the entry to values."
        )
    for key, value in rule.items():
        if key not in combination:
            raise UserError(f"{where}: exclude names {key}, which the entry does not set.")
        chosen = combination[key]
        name = chosen.get("name") if isinstance(chosen, dict) and key not in NESTED else chosen
        if value not in (chosen, name):
            return False
    return True


def _every_grid(request: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """`grid: all` stands for each grid that the strategy has for this number of ranks."""
    if request.get("grid") != "all":
        return [request]
    strategy, ranks = load_strategy(named(request, "strategy", where)["name"]), ranks_of(request, where)
    grids: list[dict[AxisName, int]] = strategy.grids(ranks)
    if not grids:
        parse_grid(strategy, None, ranks)
    return [{**request, "grid": grid} for grid in grids]
