"""The strategies that advice considers, each admitted on all its grids."""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.experiment.known_graph import GraphLookup, look_up_graph
from harness.experiment.requests import admit_on_all_grids, fill_batch
from harness.graph.store.location import is_built
from harness.registry import load_strategy, registered_strategies
from harness.strategy import Candidate, Facts, Promise

if TYPE_CHECKING:
    from harness.prediction.fewer_ranks import AdmitOnRanks
    from harness.prediction.partition_choice import BuiltLookup


class AdviceQuery(NamedTuple):
    """The strategies that advice considers."""

    promises: Collection[Promise]
    """The accepted promises about the results of training."""
    partition: str | None = None
    """The partition for strategies that split the vertices into parts."""
    where: str = "the arguments"
    """The name of the request in errors."""
    names: Collection[str] | None = None
    """The names of the strategies; None for all."""


def list_candidates(
    root: Path, request: Mapping[str, Any], look_up: GraphLookup, facts: Facts, query: AdviceQuery
) -> Iterator[Candidate]:
    """Yield the strategies with an accepted promise, each on the grids that admit the request."""
    for point in registered_strategies():
        if query.names is not None and point.name not in query.names:
            continue
        strategy = load_strategy(point.name)
        if strategy.promise not in query.promises:
            continue
        requested = dict(fill_batch(dict(request), strategy, facts.vertices))
        if query.partition and strategy.partitioned_over:
            requested["dataset"] = {**requested["dataset"], "partition": query.partition}
        yield admit_on_all_grids(root, point.name, requested, look_up, query.where)


def make_admission(
    root: Path, request: Mapping[str, Any], look_up: GraphLookup, facts: Facts, query: AdviceQuery
) -> "AdmitOnRanks":
    """Return a function that admits strategies to the same request on another number of ranks."""

    def admit(ranks: int, names: Collection[str]) -> Iterator[Candidate]:
        wanted = query._replace(names=names)
        return list_candidates(root, {**request, "ranks": ranks}, look_up, facts, wanted)

    return admit


def make_built_lookup(root: Path) -> "BuiltLookup":
    """Return a function that gives the graph of a dataset choice if its store is built, and otherwise None."""
    return cache(lambda choice: look_up_graph(root, choice) if is_built(root, choice) else None)
