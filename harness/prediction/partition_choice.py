"""Compares the partition that advice assumes with METIS partitions, for strategies that split the vertices into parts.

Only partitions that are built are predicted, because advice must not start builds. For others, the command that builds
one is given.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness.base.errors import UserError
from harness.graph.blocks import Blocks
from harness.prediction.advice import Advice, Option, PartitionChoice, Predictor
from harness.prediction.epoch import CachingPredictor
from harness.spec.dataset import DatasetChoice
from harness.strategy import Facts, Ready, admit

NEAR = 4.0
"""Strategies within this factor of the fastest are compared."""

OTHERS = ("metis", "metis-volume")

BuiltLookup = Callable[[DatasetChoice], tuple[Facts, Blocks | None] | None]
"""Returns the facts and the blocks of a graph if it is built, otherwise None."""


def compare_partitions(
    advice: Advice,
    look_up: BuiltLookup,
    predicts: Predictor | None = None,
    others: Sequence[str] = OTHERS,
) -> Advice:
    """Return the advice with what the best of other partitions changes, if the graph is built.

    Args:
        advice: The advice, whose strategies split the vertices into blocks of equal size.
        look_up: Returns a graph with the other partition, if it is built.
        predicts: The function that predicts an option; by default, a `CachingPredictor`.
        others: The other partitions.
    """
    predict_option = predicts or CachingPredictor()
    choices = [
        _select_best([_compare(option, advice, look_up, predict_option, other) for other in others])
        for options in (advice.full_graph, advice.mini_batch)
        for option in _select_options(options)
    ]
    return replace(advice, partitions=tuple(choices))


def _select_best(choices: Sequence[PartitionChoice]) -> PartitionChoice:
    """Return the choice that speeds a strategy up most; the first if none was predicted."""
    return max(choices, key=lambda choice: choice.speedup or 0.0)


def _select_options(options: list[Option]) -> Iterator[Option]:
    """Yield the fastest option of each strategy that could use another partition of a built graph."""
    seen = set[str]()
    for option in options:
        strategy = option.strategy
        dataset, axis = strategy.spec.dataset, strategy.partitioned_over
        could_change = (
            axis is not None
            and strategy.grid[axis] > 1
            and option.ready.blocks is not None
            and not dataset.partitioned
            and dataset.permutation == "none"
        )
        if could_change and strategy.name not in seen and option.cost <= NEAR * options[0].cost:
            seen.add(strategy.name)
            yield option


def _compare(
    option: Option, advice: Advice, look_up: BuiltLookup, predicts: Predictor, other: str
) -> PartitionChoice:
    strategy, card = option.strategy, advice.card
    assert card and strategy.partitioned_over
    assumed = strategy.spec.dataset
    parts = strategy.grid[strategy.partitioned_over] * strategy.parts_per_block(strategy.params)
    choice = DatasetChoice(name=assumed.name, partition=other, parts=parts, seed=assumed.seed)

    def refuse(reason: str) -> PartitionChoice:
        return PartitionChoice(strategy.name, assumed.partition, other, None, reason)

    graph = look_up(choice)
    if graph is None:
        return refuse(f"it is not built ({choice.build_command}); then add --partition {other}")
    facts, blocks = graph
    try:
        spec = strategy.spec.model_copy(update={"dataset": choice})
        ready = Ready(admit(type(strategy), spec, facts), blocks)
        found = Option(ready, predicts(ready, card))
    except UserError as refusal:
        return refuse(str(refusal))
    if not found.can_fit(card):
        return refuse("it does not fit the memory")
    return PartitionChoice(strategy.name, assumed.partition, other, found, None, option.cost / found.cost)
