"""The harness from Python. `import harness` gives these functions; each does what the command of its name does.

Functions that need a project take the nearest one upwards, or `root`. `settings` are keys of a spec with dots, as
`{"training.epochs": 5}`. A wrong request raises `harness.errors.UserError`, whose message has the way out.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from harness.errors import UserError
from harness.progress import OnStep, ignore_step, report_steps
from harness.spec.root import find_results_folder, find_root

if TYPE_CHECKING:
    from harness.check import Extent, Finding
    from harness.experiment.known_graph import GraphLookup
    from harness.predict.advice import Advice
    from harness.predict.prediction import Prediction
    from harness.results.record import Record
    from harness.results.statistics import Difference
    from harness.spec.spec import Spec
    from harness.strategy import Candidate, Facts, Promise

Settings = Mapping[str, Any]
Root = str | Path | None
WHERE = "the arguments"
BATCH = 1024
"""The mini-batch of advice, unless training.batch is given."""


def load(tables: str | Path = "results") -> Any:
    """The collected tables of a folder as pandas frames with short names of columns: `load().runs`, `load().ledger`.

    Every row of every table names its strategy, dataset, ranks, grid and launch.
    """
    from harness.results.parquet import load as load_tables

    return load_tables(tables)


def run(
    strategy: str,
    dataset: str,
    ranks: int = 1,
    *,
    grid: str | Mapping[str, int] | None = None,
    settings: Settings | None = None,
    fresh: bool = False,
    root: Root = None,
) -> "Record":
    """Trains, and returns the record: its `record` and `spec` as dictionaries, and a frame for each `table(name)`.

    A run that has a result is not repeated unless `fresh`. The status of the record tells whether the run succeeded; a
    run that its strategy or its graph refuses raises the reason.
    """
    from harness.launch.launch import ensure_result, launch
    from harness.results.record import read_record

    home = _home(root)
    spec = _spec(home, strategy, dataset, {"ranks": ranks, "grid": grid}, settings)
    runs = find_results_folder(home) / "runs"
    start = partial(launch, spec, home, runs, ignore_step)
    with ensure_result(spec, runs, ignore_step, start, fresh=fresh):
        done = read_record(runs / spec.run_id)
    if done.record["status"] == "refused":
        raise UserError(done.record["error"]["message"])
    return done


def check(strategy: str, extent: "Extent" = "usual") -> "list[Finding]":
    """Every law on every case of a strategy, by name or path/to/file.py:Class; it conforms if all findings hold."""
    from harness.check import check as findings_of
    from harness.launch.worker_pool import Pool

    with Pool() as pool:
        return list(findings_of(strategy, pool.run, extent))


def compare(a: str | Path, b: str | Path, *, root: Root = None) -> "list[Difference]":
    """B against A, for each configuration of both: the ratio of epochs, its interval, and the parts that changed.

    Each side is a folder of collected tables, a run folder, or the beginning of a run's id.
    """
    from harness.results.collect import load_side
    from harness.results.statistics import compare_sides as differences

    runs = find_results_folder(_home(root)) / "runs"
    return differences(load_side(str(a), runs), load_side(str(b), runs))


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
    """The predicted epoch of the rank that ends last, on a machine that need not be at hand.

    Sizes are counted in the store of the graph; if it is not built, they are those that its card expects.
    """
    from harness.predict.prediction import predict as predict_epoch
    from harness.registry import load_strategy
    from harness.spec.machine_card import load_machine_card
    from harness.strategy import Ready, admit

    home = _home(root)
    asked = {"ranks": ranks, "grid": grid, "machine": machine}
    spec = _spec(home, strategy, dataset, asked, settings)
    graph = _know(home)(spec.dataset)
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
    """The strategies on their grids, the fastest predicted epoch first; and those that cannot run, with the reason."""
    from harness.experiment.requests import nest_settings
    from harness.predict.advice import advise as ranked
    from harness.predict.advice import list_accepted_promises
    from harness.spec.dataset import DatasetChoice
    from harness.spec.machine_card import load_machine_card
    from harness.validation import validate

    home = _home(root)
    know = _know(home)
    request = nest_settings({"dataset.name": dataset, "ranks": ranks, "machine": machine, **(settings or {})})
    facts = know(validate(DatasetChoice, {"name": dataset}, WHERE)).facts
    found = candidates(home, request, know, facts, Wish(list_accepted_promises(accuracy)))
    return ranked(found, load_machine_card(home, machine))


class Wish(NamedTuple):
    """The strategies that advice is asked for."""

    promises: "Collection[Promise]"
    partition: str | None = None
    """The partition for every strategy that takes one."""
    where: str = WHERE
    on_step: OnStep = ignore_step


def candidates(
    root: Path, request: Mapping[str, Any], know: "GraphLookup", facts: "Facts", wish: Wish
) -> "Iterator[Candidate]":
    """Every strategy that promises enough, on the grids that admit the request."""
    from harness.experiment.requests import admit_on_all_grids
    from harness.registry import load_strategy, registered_strategies

    points = [
        point for point in registered_strategies() if load_strategy(point.name).promise in wish.promises
    ]
    for point in report_steps(points, lambda point: f"predicting {point.name}", wish.on_step):
        kind, asked = load_strategy(point.name), dict(request)
        if kind.mini_batches:
            asked["training"] = {"batch": min(BATCH, facts.vertices), **asked.get("training", {})}
        if wish.partition and kind.partitioned_over:
            asked["dataset"] = {**asked["dataset"], "partition": wish.partition}
        yield admit_on_all_grids(root, point.name, asked, know, wish.where)


def _home(root: Root) -> Path:
    return find_root(None if root is None else str(root))


def _spec(
    root: Path, strategy: str, dataset: str, asked: Mapping[str, Any], settings: Settings | None
) -> "Spec":
    from harness.experiment.requests import make_spec, nest_settings

    names = {"strategy.name": strategy, "dataset.name": dataset}
    given = {key: value for key, value in asked.items() if value is not None}
    return make_spec(root, nest_settings({**names, **given, **(settings or {})}), WHERE)


def _know(root: Path) -> "GraphLookup":
    from harness.experiment.known_graph import look_up_graph

    return cache(lambda choice: look_up_graph(root, choice))
