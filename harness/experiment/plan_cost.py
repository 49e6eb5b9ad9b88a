"""The cost of an experiment before it runs: the predicted time and nodes of each run, and the disk space of the graphs.

The times set the limits of jobs, so they are predicted only for machines with Slurm, and roughly: from the first rank,
one step, and the sizes on the dataset's card. `harness predict` replays more ranks and takes up to 20 times as long.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from harness.base.errors import UserError
from harness.base.formatting import format_bytes
from harness.experiment.known_graph import facts_of_card
from harness.graph.cards.catalog import load_card
from harness.prediction.epoch import RankEpoch, price_epochs, replay_ranks
from harness.registry import load_strategy
from harness.runtime.slurm.jobs import make_likeness_key
from harness.runtime.slurm.resources import plan_nodes
from harness.spec.dataset import DatasetChoice
from harness.spec.machine_card import MachineCard, load_machine_card
from harness.spec.spec import Spec
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
    """The number of runs whose time is predicted."""
    node_hours: float
    disk_bytes: int
    """The bytes of the graphs whose cards give their sizes."""

    def __str__(self) -> str:
        disk = f"graphs of {format_bytes(self.disk_bytes)}"
        if not self.predicted:
            return f"{self.runs} runs, {disk}"
        times = f"{self.node_hours:.3g} node-hours predicted for {self.predicted} of them"
        return f"{self.runs} runs, {disk}, {times}"


def predict_costs(root: Path, specs: Iterable[Spec]) -> dict[str, RunCost]:
    """Return the costs of the runs that can be predicted, by run id.

    Runs that differ only in seed, launch or machine share one replay of one step, which is precise enough for a limit.
    """
    groups = defaultdict[str, list[Spec]](list)
    for spec in specs:
        groups[make_likeness_key({**spec.model_dump(mode="json"), "machine": None})].append(spec)
    costs: dict[str, RunCost] = {}
    for runs in groups.values():
        names = {spec.machine.name for spec in runs}
        cards = [card for card in (load_machine_card(root, name) for name in names) if _has_prices(card)]
        epochs = _replay_first_rank(root, runs[0]) if cards else None
        if epochs:
            by_machine = {card.name: _price(runs[0], epochs, card) for card in cards}
            priced = [spec for spec in runs if spec.machine.name in by_machine]
            costs |= {spec.run_id: by_machine[spec.machine.name] for spec in priced}
    return costs


def _has_prices(card: MachineCard) -> bool:
    return bool(card.slurm and card.rates and card.links)


def _replay_first_rank(root: Path, spec: Spec) -> list[RankEpoch] | None:
    """Replay an epoch of the first rank. Return None if its sizes are not on the card or depend on the edges."""
    try:
        facts = facts_of_card(load_card(root, spec.dataset.name))
        ready = Ready(admit(load_strategy(spec.strategy.name), spec, facts))
        return replay_ranks(ready, [0], steps=1)
    except UserError:
        return None


def _price(spec: Spec, epochs: list[RankEpoch], card: MachineCard) -> RunCost:
    assert card.slurm
    training, epoch = spec.training, price_epochs(epochs, card).seconds
    evaluations = training.epochs // training.evaluate_every if training.evaluate_every else 0
    count = training.warmup + training.epochs + evaluations
    return RunCost(count * epoch.value, count * epoch.high, plan_nodes(spec.ranks, card.slurm).nodes)


def add_costs(root: Path, specs: Iterable[Spec], costs: Mapping[str, RunCost]) -> PlanCost:
    """Return the cost of a plan. Each graph counts once."""
    specs = list(specs)
    stores = {spec.dataset for spec in specs}
    node_hours = sum(cost.nodes * cost.seconds for cost in costs.values()) / HOUR
    disk_bytes = sum(estimate_store_bytes(root, choice) for choice in stores)
    return PlanCost(len(specs), len(costs), node_hours, disk_bytes)


def estimate_store_bytes(root: Path, choice: DatasetChoice) -> int:
    """Return the bytes of a store; 0 for a graph whose card does not give its size."""
    try:
        facts = facts_of_card(load_card(root, choice.name))
    except UserError:
        return 0
    n, orders = facts.vertices, 2 if choice.permutation == "double" else 1
    adjacency = 4 * facts.nonzeros + 16 * n  # columns; row pointers of two blocks of columns
    labels = 8 if facts.task == "single-label" else facts.classes
    place = 4 if choice.partitioned else 0  # in the partition
    per_vertex = orders * (labels + 4 + 1) + place  # 4 bytes of degree, 1 of split
    return adjacency + n * (4 * facts.features + per_vertex)
