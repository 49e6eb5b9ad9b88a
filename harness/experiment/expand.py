"""An experiment: the YAML file that lists the runs behind a figure, expanded into specs.

Each entry of `runs` is the cross product of its lists; `exclude` removes combinations.
"""

from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.documents import read_yaml
from harness.errors import UserError
from harness.experiment.defaults import BEST, make_spec, named, ranks_of
from harness.experiment.paper_figures import check_known
from harness.experiment.plan_cost import costs, total
from harness.ledger import AxisName
from harness.registry import load_strategy
from harness.spec.plan import plan_of
from harness.spec.spec import Spec, digest
from harness.strategy.admit import parse_grid
from harness.validation import Frozen, format_value, validate

NESTED = ("model", "training", "measure")


class Runs(Frozen):
    """Runs, and the machine of the runs that name no machine."""

    machine: str | None = None
    runs: list[dict[str, Any]] = Field(min_length=1)


class Experiment(Runs):
    """The keys of an experiment file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=100)
    description: str = ""
    reproduces: tuple[str, ...] = ()
    """The figures and tables of papers that the runs reproduce, by their ids (`harness list figures`)."""
    published: Runs | None = None
    """The runs of the paper for the same figure."""
    emulated: Runs | None = None
    """Runs of more ranks than there are cores, each with a tape that is played on the links of the run's machine."""


def load_experiment(path: Path) -> Experiment:
    """The experiment of a file."""
    if not path.is_file():
        raise UserError(f"There is no experiment file {path}. The experiments are in workflows/experiments/.")
    return validate(Experiment, read_yaml(path, str(path)), str(path))


def expand(
    root: Path,
    experiment: Experiment,
    machine: str = "local",
    *,
    only: str | None = None,
    any_grid: bool = False,
) -> list[Spec]:
    """Every spec of the experiment, in the order of the file, each once; `machine` is the default machine.

    With `only`, the specs of that machine. The best grid is looked for once for all runs that differ in their launch
    alone; with `any_grid`, a strategy's usual grid stands in its place, which takes no prediction.
    """
    machine = experiment.machine or machine
    if experiment.reproduces:
        check_known(root, experiment.reproduces, experiment.name)
    specs: dict[str, Spec] = {}
    best: dict[str, dict[AxisName, int]] = {}
    others: list[str] = []
    for number, entry in enumerate(experiment.runs):
        where = f"{experiment.name}, runs[{number}]"
        for combination in combinations(entry, where):
            for request in _every_grid(combination, where):
                asked = {"machine": machine, **request}
                if only and asked["machine"] != only:
                    others.append(asked["machine"])
                    continue
                if asked.get("grid") == BEST and any_grid:
                    del asked["grid"]
                elif asked.get("grid") == BEST:
                    alike = digest({**asked, "launch": 0})
                    best[alike] = best.get(alike) or make_spec(root, asked, where).grid
                    asked["grid"] = best[alike]
                spec = make_spec(root, asked, where)
                specs.setdefault(spec.run_id, spec)
    if only and not specs:
        machines = ", ".join(sorted(set(map(str, others))))
        raise UserError(f"{experiment.name} has no runs for the machine {only}; it has runs for {machines}.")
    return list(specs.values())


def plan(
    root: Path, experiment: Experiment, machine: str = "local", *, only: str | None = None
) -> dict[str, Any]:
    """The expanded experiment as a document, which the workflow reads."""
    content, specs = experiment.model_dump(mode="json"), expand(root, experiment, machine, only=only)
    each = costs(root, specs)
    of_runs = {run_id: cost._asdict() for run_id, cost in each.items()}
    return plan_of(experiment.name, digest(content), specs, of_runs, str(total(root, specs, each)))


def combinations(entry: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The requests of an entry: the cross product of its lists, less what it excludes."""
    choices = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
    excluded = choices.pop("exclude", [])
    every = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return [one for one in every if not any(_matches(rule, one, where) for rule in excluded)]


def _matches(rule: Any, combination: dict[str, Any], where: str) -> bool:
    """True if a combination has all values of an exclusion, which may name a strategy or a dataset alone."""
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


def _every_grid(request: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """`grid: all` stands for each grid that the strategy has for this number of ranks."""
    if request.get("grid") != "all":
        return [request]
    strategy, ranks = load_strategy(named(request, "strategy", where)["name"]), ranks_of(request, where)
    grids: list[dict[AxisName, int]] = strategy.grids(ranks)
    if not grids:
        parse_grid(strategy, None, ranks)
    return [{**request, "grid": grid} for grid in grids]
