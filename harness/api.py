"""The Python interface. `import harness` gives these functions; each does the same as the command of its name.

Functions that need a project use `root`, or the nearest project at or above the current folder. `settings` maps dotted
keys of a spec to values, such as `{"training.epochs": 5}`. An invalid request raises `harness.errors.UserError`, whose
message says what to do.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from harness.progress import OnStep, ignore_step, report_steps
from harness.spec.root import find_root

if TYPE_CHECKING:
    from harness.check import Extent, Finding
    from harness.experiment.known_graph import GraphLookup
    from harness.predict.advice import Advice
    from harness.predict.fewer_ranks import AdmitOnRanks
    from harness.predict.partition_choice import BuiltLookup
    from harness.predict.prediction import Prediction
    from harness.results.loaded_tables import LoadedTables
    from harness.spec.spec import Spec
    from harness.strategy import Candidate, Facts, Promise

Settings = Mapping[str, Any]
Root = str | Path | None
WHERE = "the arguments"


def load(tables: str | Path = "results") -> "LoadedTables":
    """Return the collected tables of a folder as pandas data frames: `load().runs`, `load().ledger`.

    Column names are short. Each row of each table has the strategy, dataset, ranks, grid and launch of its run.
    """
    from harness.results.loaded_tables import load as load_tables

    return load_tables(tables)


def check(strategy: str, extent: "Extent" = "usual") -> "list[Finding]":
    """Check a strategy, given by name or path/to/file.py:Class, and return one finding for each law and case.

    The strategy conforms if all findings hold.
    """
    from harness.check import check as check_strategy
    from harness.launch.worker_pool import Pool

    with Pool() as pool:
        return list(check_strategy(strategy, pool.run, extent))


def predict(
    strategy: str,
    dataset: str,
    ranks: int,
    machine: str = "local",
    *,
    grid: str | Mapping[str, int] | None = None,
    settings: Settings | None = None,
    root: Root = None,
) -> "Prediction":
    """Predict the time of an epoch on a machine that has a machine card, and return the prediction of the slowest rank.

    Sizes are counted in the store of the graph. If it is not built, they are estimated from its card.
    """
    from harness.predict.prediction import predict as predict_epoch
    from harness.registry import load_strategy
    from harness.spec.machine_card import load_machine_card
    from harness.strategy import Ready, admit

    home = _find_project(root)
    options = {"ranks": ranks, "grid": grid, "machine": machine}
    spec = _make_spec(home, strategy, dataset, options, settings)
    graph = _make_graph_lookup(home)(spec.dataset)
    ready = Ready(admit(load_strategy(strategy), spec, graph.facts), graph.blocks)
    return predict_epoch(ready, load_machine_card(home, machine))


def advise(
    dataset: str,
    ranks: int,
    machine: str = "local",
    *,
    accuracy: Literal["exact", "estimator"] | None = None,
    settings: Settings | None = None,
    root: Root = None,
) -> "Advice":
    """Predict all strategies on their grids, and return them ranked by epoch time, the fastest first.

    The advice also has the fastest options on fewer ranks, what a METIS partition that is built would change, and the
    strategies that cannot run, with the reasons.
    """
    from harness.experiment.requests import nest_settings
    from harness.predict.advice import advise as rank_options
    from harness.predict.advice import list_accepted_promises
    from harness.predict.fewer_ranks import find_fewer_ranks
    from harness.predict.partition_choice import compare_partitions
    from harness.spec.dataset import DatasetChoice
    from harness.spec.machine_card import load_machine_card
    from harness.validation import validate

    home = _find_project(root)
    look_up = _make_graph_lookup(home)
    request = nest_settings({"dataset.name": dataset, "ranks": ranks, "machine": machine, **(settings or {})})
    facts = look_up(validate(DatasetChoice, {"name": dataset}, WHERE)).facts
    query = AdviceQuery(list_accepted_promises(accuracy))
    candidates = list_candidates(home, request, look_up, facts, query)
    advice = rank_options(candidates, load_machine_card(home, machine))
    admit = make_admission(home, request, look_up, facts, query)
    return compare_partitions(find_fewer_ranks(advice, ranks, admit), make_built_lookup(home))


class AdviceQuery(NamedTuple):
    """The strategies that advice considers."""

    promises: "Collection[Promise]"
    """The accepted promises about the results of training."""
    partition: str | None = None
    """The partition for strategies that split the vertices into parts."""
    where: str = WHERE
    """The name of the request in errors."""
    on_step: OnStep = ignore_step
    names: "Collection[str] | None" = None
    """The names of the strategies; None for all."""


def list_candidates(
    root: Path, request: Mapping[str, Any], look_up: "GraphLookup", facts: "Facts", query: AdviceQuery
) -> "Iterator[Candidate]":
    """Yield the strategies with an accepted promise, each on the grids that admit the request."""
    from harness.experiment.requests import admit_on_all_grids, fill_batch
    from harness.registry import load_strategy, registered_strategies

    points = [
        point
        for point in registered_strategies()
        if (query.names is None or point.name in query.names)
        and load_strategy(point.name).promise in query.promises
    ]
    for point in report_steps(points, lambda point: f"predicting {point.name}", query.on_step):
        strategy = load_strategy(point.name)
        requested = dict(fill_batch(dict(request), strategy, facts.vertices))
        if query.partition and strategy.partitioned_over:
            requested["dataset"] = {**requested["dataset"], "partition": query.partition}
        yield admit_on_all_grids(root, point.name, requested, look_up, query.where)


def make_admission(
    root: Path, request: Mapping[str, Any], look_up: "GraphLookup", facts: "Facts", query: AdviceQuery
) -> "AdmitOnRanks":
    """Return a function that admits strategies to the same request on another number of ranks."""

    def admit(ranks: int, names: "Collection[str]") -> "Iterator[Candidate]":
        quiet = query._replace(names=names, on_step=ignore_step)
        return list_candidates(root, {**request, "ranks": ranks}, look_up, facts, quiet)

    return admit


def make_built_lookup(root: Path) -> "BuiltLookup":
    """Return a function that gives the graph of a dataset choice if its store is built, otherwise None."""
    from harness.experiment.known_graph import look_up_graph
    from harness.store.datasets import is_built

    return cache(lambda choice: look_up_graph(root, choice) if is_built(root, choice) else None)


def _find_project(root: Root) -> Path:
    return find_root(None if root is None else str(root))


def _make_spec(
    root: Path, strategy: str, dataset: str, options: Mapping[str, Any], settings: Settings | None
) -> "Spec":
    from harness.experiment.requests import make_spec, nest_settings

    names = {"strategy.name": strategy, "dataset.name": dataset}
    given = {key: value for key, value in options.items() if value is not None}
    return make_spec(root, nest_settings({**names, **given, **(settings or {})}), WHERE)


def _make_graph_lookup(root: Path) -> "GraphLookup":
    from harness.experiment.known_graph import look_up_graph

    return cache(lambda choice: look_up_graph(root, choice))
