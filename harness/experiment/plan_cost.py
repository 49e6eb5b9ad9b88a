"""The cost of an experiment before it runs: the predicted time of each run, its nodes, and the disk of the graphs.

Times are for the limits of jobs. They are predicted only for machines with Slurm, and roughly: by the first rank, one
step and the sizes on the dataset's card. `harness predict` replays more ranks and takes up to twenty times as long.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.errors import UserError
from harness.experiment.known_graph import facts_of_card
from harness.predict.prediction import RankEpoch, priced, replayed_ranks
from harness.registry import load_strategy
from harness.slurm.jobs import likeness
from harness.slurm.resources import geometry
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.spec import Spec
from harness.store.catalog import load_card
from harness.strategy import Ready, admit

HOUR = 3600


class RunCost(NamedTuple):
    """The predicted cost of a run."""

    seconds: float
    """The time of all epochs."""
    most: float
    """The upper end of the interval."""
    nodes: int


class PlanCost(NamedTuple):
    """The predicted cost of all runs."""

    runs: int
    predicted: int
    """The runs among these whose time is predicted."""
    node_hours: float
    disk_bytes: int
    """The bytes of the graphs, as far as their cards tell."""

    def __str__(self) -> str:
        size, unit = (
            (self.disk_bytes / 1e9, "GB") if self.disk_bytes >= 1e9 else (self.disk_bytes / 1e6, "MB")
        )
        disk = f"graphs of {size:.3g} {unit}"
        if not self.predicted:
            return f"{self.runs} runs, {disk}"
        times = f"{self.node_hours:.3g} node-hours predicted for {self.predicted} of them"
        return f"{self.runs} runs, {disk}, {times}"


def costs(root: Path, specs: Iterable[Spec]) -> dict[str, RunCost]:
    """The costs of those runs that can be predicted, by run id.

    Runs that differ in their seed, their launch or their machine alone are replayed once, in one step: a time limit
    needs no more.
    """
    alike = defaultdict[str, list[Spec]](list)
    for spec in specs:
        alike[likeness({**spec.model_dump(mode="json"), "machine": None})].append(spec)
    found: dict[str, RunCost] = {}
    for runs in alike.values():
        names = {spec.machine.name for spec in runs}
        cards = [card for card in (load_machine_card(root, name) for name in names) if _has_prices(card)]
        epochs = _replayed(root, runs[0]) if cards else None
        if epochs:
            of_machine = {card.name: _cost(runs[0], epochs, card) for card in cards}
            found |= {
                spec.run_id: of_machine[spec.machine.name] for spec in runs if spec.machine.name in of_machine
            }
    return found


def _has_prices(card: MachineCard) -> bool:
    return bool(card.slurm and card.rates and card.links)


def _replayed(root: Path, spec: Spec) -> list[RankEpoch] | None:
    """An epoch of the first rank; None where a card says too little, or the graph alone decides."""
    try:
        facts = facts_of_card(load_card(root, spec.dataset.name))
        ready = Ready(admit(load_strategy(spec.strategy.name), spec, facts))
        return replayed_ranks(ready, [0], steps=1)
    except UserError:
        return None


def _cost(spec: Spec, epochs: list[RankEpoch], card: MachineCard) -> RunCost:
    assert card.slurm
    training, epoch = spec.training, priced(epochs, card).seconds
    evaluations = training.epochs // training.evaluate_every if training.evaluate_every else 0
    count = training.warmup + training.epochs + evaluations
    return RunCost(count * epoch.value, count * epoch.high, geometry(spec.ranks, card.slurm).nodes)


def total(root: Path, specs: Iterable[Spec], known: Mapping[str, RunCost]) -> PlanCost:
    """The cost of a plan, each graph counted once."""
    specs = list(specs)
    stores = {spec.dataset for spec in specs}
    node_hours = sum(cost.nodes * cost.seconds for cost in known.values()) / HOUR
    return PlanCost(len(specs), len(known), node_hours, sum(store_bytes(root, choice) for choice in stores))


def store_bytes(root: Path, choice: DatasetChoice) -> int:
    """The bytes of a store; 0 for a graph whose card does not tell its size."""
    try:
        facts = facts_of_card(load_card(root, choice.name))
    except UserError:
        return 0
    n, orders = facts.vertices, 2 if choice.permutation == "double" else 1
    adjacency = 4 * facts.nonzeros + 16 * n  # columns; row pointers of two blocks of columns
    labels = 8 if facts.task == "single-label" else facts.classes
    of_vertex = orders * (labels + 4 + 1) + (
        4 if choice.partitioned else 0
    )  # degree and split; place in the partition
    return adjacency + n * (4 * facts.features + of_vertex)
