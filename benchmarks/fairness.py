"""Comparisons of strategies under equal settings: docs/evidence/fairness.md is the policy.

A comparison declares once what is equal. Its requests and its caption follow from the declaration, and what it does not
fix is searched for each strategy: the order of products, the grid, the partition and the named parameters.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.base.validation import Frozen
from harness.experiment.defaults import BEST, read_choice
from harness.experiment.known_graph import KnownGraph, look_up_graph
from harness.experiment.requests import admit_on_all_grids
from harness.graph.store.building import build_store
from harness.ledger import TensorName
from harness.prediction.advice import Option, advise
from harness.prediction.epoch import Prediction, price_epochs, replay_ranks, representative_ranks
from harness.prediction.replay import replay
from harness.registry import load_strategy
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import MachineCard
from harness.spec.root import find_root
from harness.spec.spec import Measure, ModelChoice, Training
from harness.strategy import Candidate, Ready
from harness.strategy.counts import WORD

Request = dict[str, Any]
CORES = len(os.sched_getaffinity(0))
PARTITIONERS = ("block", "metis", "metis-balanced")
"""The partitions that are searched for strategies that take one."""
OWN_PARTITIONERS = {"distgnn": ("libra",), "g3": (*PARTITIONERS, "g3-guarded")}
"""Those of strategies whose papers have a partitioner."""


class Competitor(NamedTuple):
    """A strategy in a comparison; the best of its settings is searched."""

    strategy: str
    settings: tuple[Mapping[str, Any], ...] = ({},)
    """The parameters of each setting."""
    batch: int = 0

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions among which the best is searched."""
        takes_parts = load_strategy(self.strategy).partitioned_over is not None
        return OWN_PARTITIONERS.get(self.strategy, PARTITIONERS if takes_parts else ("block",))


@dataclass(frozen=True)
class Comparison:
    """What is equal for all competitors of a published comparison."""

    measured: str
    """What is compared, with the set-up that it includes."""
    competitors: tuple[Competitor, ...]
    model: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    machine: str = "ethernet"
    unequal: tuple[str, ...] = ()
    """What could not be made equal, with its effect as a number."""

    def list_requests(self, competitor: Competitor, dataset: str, ranks: int) -> Iterator[Request]:
        """Yield the requests of a competitor, with each of its parameters and partitions, on its best grid."""
        batch = {"batch": competitor.batch} if competitor.batch else {}
        for params in competitor.settings:
            for partition in competitor.partitions:
                yield {
                    "strategy": {"name": competitor.strategy, "params": dict(params)},
                    "dataset": {"name": dataset, "partition": partition},
                    "ranks": ranks,
                    "grid": BEST,
                    "model": dict(self.model),
                    "training": {**self.training, **batch},
                    "machine": self.machine,
                }

    def describe(self) -> str:
        """Return the caption: what is compared, what is equal, what is each strategy's own, and what is unequal."""
        model = ModelChoice(**self.model)
        equal = f"{model.kind.upper()}, {model.layers} layers of hidden width {model.hidden}, float32"
        best = (
            f"order of products{self._describe_orders()}, grid, and partition by METIS or its own partitioner"
        )
        sentences = [
            f"Compared: {self.measured}.",
            f"Equal: {equal}.",
            f"The best of each strategy: {best}.",
            *(f"Not equal: {each}." for each in self.unequal),
        ]
        return " ".join(sentences)

    def _describe_orders(self) -> str:
        """Return the strategies that compute (A H) W in every layer, in brackets."""
        kinds = [load_strategy(name) for name in dict.fromkeys(each.strategy for each in self.competitors)]
        always = [kind.name for kind in kinds if kind.combine_first_refusal]
        stale = [kind.name for kind in kinds if kind.stale_order_reason and not kind.combine_first_refusal]
        parts = [f"{', '.join(always)}: only (A H) W"] if always else []
        parts += [f"{', '.join(stale)}: (A H) W with rows of earlier epochs"] if stale else []
        return f" ({'; '.join(parts)})" if parts else ""


# The search for the best settings of each competitor.


class Found(NamedTuple):
    """What a search found."""

    options: list[Option]
    """The option of each competitor with the shortest predicted epoch."""
    left_out: list[str]
    """The competitors that cannot run, with the reason."""

    def describe(self) -> Iterator[str]:
        """Yield a sentence about the competitors that cannot run; nothing if all can."""
        if self.left_out:
            yield f"Left out: {' '.join(self.left_out)}"


def find_best(comparison: Comparison, dataset: str, ranks: int, card: MachineCard) -> Found:
    """Predict each competitor with all of its settings, on the graph itself.

    All ranks share the cores of this machine, as emulated hosts do.
    """
    look_up, found = open_graphs(), Found([], [])
    for competitor in comparison.competitors:
        name = competitor.strategy
        candidates: list[Candidate] = [
            admit_on_all_grids(find_root(), name, request, look_up, name)
            for request in comparison.list_requests(competitor, dataset, ranks)
        ]
        settings = [ready for candidate in candidates for ready in candidate.ready]
        advice = advise([Candidate(name, settings, candidates[0].reason)], card, predict_on_these_cores)
        if options := [*advice.full_graph, *advice.mini_batch]:
            found.options.append(options[0])
        else:
            found.left_out.append(f"{name}: {advice.refused[0].reason}")
    return found


def open_graphs() -> Callable[[DatasetChoice], KnownGraph]:
    """Return a function that builds a graph in an order and opens it, once."""
    known = dict[DatasetChoice, KnownGraph]()

    def open_graph(choice: DatasetChoice) -> KnownGraph:
        if choice not in known:
            build_store(find_root(), choice)
            known[choice] = look_up_graph(find_root(), choice)
        return known[choice]

    return open_graph


def predict_on_these_cores(ready: Ready, card: MachineCard, ranks: Sequence[int] | None = None) -> Prediction:
    """Predict an epoch of ranks that share the cores of this machine."""
    return price_epochs(replay_ranks(ready, ranks or representative_ranks(ready)), card, CORES)


class Received(NamedTuple):
    """The elements that a rank receives in an epoch, and before the first one."""

    epoch: float
    setup: float
    """With the features of other ranks that it reads from files."""


def count_received(ready: Ready) -> Received:
    """Count what a rank receives, of the replayed ranks the most."""
    return find_most(
        Received(*(sum(part.values()) for part in count_on_rank(ready, rank)))
        for rank in representative_ranks(ready)
    )


def find_most(counts: Iterable[Received]) -> Received:
    """Return the most that any rank receives in an epoch, and the most before the first one."""
    return Received(*map(max, zip(*counts, strict=True)))


def count_on_rank(ready: Ready, rank: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the elements that a rank receives in an epoch and before the first one, by row of the ledger."""
    strategy = ready.strategy
    replayed, own = replay(strategy, rank, ready.blocks), strategy.input_piece(strategy.coordinates(rank))
    held = replayed.persistent_bytes.get(TensorName.X, 0) / WORD[strategy.spec.precision]
    epoch, setup = (
        {str(key): amounts.elements_received for key, amounts in entries.items()}
        for entries in (replayed.entries, replayed.setup_messages)
    )
    return epoch, setup | {"read from files": max(0.0, held - len(own.rows) * len(own.cols))}


# What makes requests unequal. Tests ask this of every published comparison.

SECTIONS: dict[str, type[Frozen]] = {"model": ModelChoice, "training": Training, "measure": Measure}
EQUAL = ("machine", "precision", "protocol")
OWN = ("model.order", "training.batch")
"""Settings with other rules: the order, and the mini-batches that only some strategies have."""


def find_unequal(requests: Iterable[Request]) -> list[str]:
    """Return a sentence for each setting by which requests hold some strategies to worse terms than others."""
    by_strategy = defaultdict[str, list[Request]](list)
    for request in requests:
        by_strategy[read_choice(request, "strategy", "request")["name"]].append(request)
    return [
        *_find_different({name: _collect_settings(own) for name, own in by_strategy.items()}),
        *_find_different(
            {name: wires for name, own in by_strategy.items() if (wires := _collect_wires(own))}
        ),
        *_find_orders(by_strategy),
        *_find_grids(by_strategy),
        *_find_partitions(by_strategy),
    ]


def _find_different(values: Mapping[str, Mapping[str, set[str]]]) -> Iterator[str]:
    """Yield the settings whose values are not the same for all strategies."""
    for key in sorted({key for settings in values.values() for key in settings}):
        groups = defaultdict[str, list[str]](list)
        for name, settings in values.items():
            groups[" and ".join(sorted(settings[key]))].append(name)
        if len(groups) > 1:
            parts = (f"{value} for {', '.join(names)}" for value, names in groups.items())
            yield f"{key} differs: {'; '.join(parts)}"


def _collect_settings(requests: Sequence[Request]) -> dict[str, set[str]]:
    """Return the values of the settings that must be equal, by dotted key."""
    values = defaultdict[str, set[str]](set)
    for request in requests:
        for section, kind in SECTIONS.items():
            for key, value in kind.model_validate(request.get(section) or {}).model_dump().items():
                if f"{section}.{key}" not in OWN:
                    values[f"{section}.{key}"].add(str(value))
        for key in EQUAL:
            values[key].add(str(request.get(key, "the default")))
    return values


def _collect_wires(requests: Sequence[Request]) -> dict[str, set[str]]:
    """Return the types in which a strategy sends elements; nothing if it has no choice."""
    choices = [read_choice(request, "strategy", "request") for request in requests]
    if "wire" not in load_strategy(choices[0]["name"]).Params.model_fields:
        return {}
    return {"strategy.params.wire": {str(each.get("params", {}).get("wire", "full")) for each in choices}}


def _find_orders(by_strategy: Mapping[str, Sequence[Request]]) -> Iterator[str]:
    """Yield the strategies that are held to one order of products."""
    for name, requests in by_strategy.items():
        orders = {(request.get("model") or {}).get("order", "best") for request in requests}
        if "best" not in orders and load_strategy(name).combine_first_refusal is None:
            yield f"{name} is held to model.order={' and '.join(sorted(orders))}: leave it at best"


def _find_grids(by_strategy: Mapping[str, Sequence[Request]]) -> Iterator[str]:
    """Yield the strategies whose requests allow only some of their grids."""
    for name, requests in by_strategy.items():
        for ranks in dict.fromkeys(request["ranks"] for request in requests):
            count = len(load_strategy(name).grids(ranks))
            grids = [request.get("grid") for request in requests if request["ranks"] == ranks]
            if count > 1 and not any(grid in (BEST, "all") for grid in grids):
                yield f"{name} on {ranks} ranks has {count} grids and is held to one: set grid to best"


def _find_partitions(by_strategy: Mapping[str, Sequence[Request]]) -> Iterator[str]:
    """Yield the strategies that have only blocks although others have a partition, and they would take one."""
    partitioned = {name for name, requests in by_strategy.items() if any(map(_is_partitioned, requests))}
    for name in by_strategy if partitioned else ():
        if load_strategy(name).partitioned_over and name not in partitioned:
            yield f"{name} takes a partition and has none, unlike {', '.join(sorted(partitioned))}"


def _is_partitioned(request: Request) -> bool:
    dataset = read_choice(request, "dataset", "request")
    return bool(dataset.get("partition", "block") != "block")
