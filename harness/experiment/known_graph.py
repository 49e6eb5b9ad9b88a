"""What is known of a graph: counted in its store; or, before any build, expected from its card."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from harness.errors import UserError
from harness.graph.blocks import Blocks, shared
from harness.spec.dataset import DatasetChoice
from harness.store.build import build, is_built, open_dataset
from harness.store.catalog import load_card
from harness.store.dataset_card import DatasetCard, RandomSplit
from harness.strategy import Facts, Ready, Strategy, admit, facts_of


class KnownGraph(NamedTuple):
    """The facts of a graph, and its blocks if they are at hand."""

    facts: Facts
    blocks: Blocks | None


KnowGraph = Callable[[DatasetChoice], KnownGraph]


def known_graph(
    root: Path, choice: DatasetChoice, dtype: torch.dtype = torch.float32, *, from_card: bool = False
) -> KnownGraph:
    """The graph in its store; if it is not built, or `from_card`, the facts that its card expects.

    A card tells nothing of a partition.
    """
    if not from_card and is_built(root, choice):
        blocks = shared(open_dataset(root, choice, dtype))
        return KnownGraph(facts_of(blocks), blocks)
    if choice.partitioned:
        raise UserError(
            f"dataset.partition = {choice.partition}: the card of {choice.name} tells nothing of a partition. Build it "
            f"({choice.build_command}), or take the sizes from twins (--twins)."
        )
    return KnownGraph(facts_of_card(load_card(root, choice.name)), None)


def on_twins(
    root: Path, strategy: Strategy, scales: Iterable[str], say: Callable[[str], None]
) -> list[Ready]:
    """A strategy on twins of its graph, the smallest first; those that are missing are built."""
    spec, ready = strategy.spec, []
    for scale in scales:
        choice = spec.dataset.model_copy(update={"name": f"{spec.dataset.name}@{scale}"})
        if not is_built(root, choice):
            say(f"building {choice.name}")
            build(root, choice)
        twin, blocks = _opened(root, choice)
        on_twin = spec.model_copy(update={"dataset": choice})
        ready.append(Ready(admit(type(strategy), on_twin, twin), blocks))
    return sorted(ready, key=lambda each: each.strategy.facts.vertices)


_opened = lru_cache(maxsize=16)(known_graph)


def facts_of_card(card: DatasetCard) -> Facts:
    """The facts of a graph before any build, by its card. A key that the card lacks is an error.

    Edges are assumed to be distinct. With labels or a split from files, every vertex counts as labelled and training,
    unless the card expects other numbers.
    """
    n, nonzeros = _size(card)
    known = {
        "expected.n": n,
        "expected.nnz_adj": nonzeros,
        "expected.features": getattr(card.features, "width", None) or card.expected.features,
    }
    if missing := [key for key, value in known.items() if value is None]:
        raise UserError(
            f"The card of {card.name} lacks {', '.join(missing)}, so sizes cannot be estimated from it. "
            f"Build the dataset (harness data build {card.name}) to take the sizes from its store."
        )
    assert n is not None
    assert nonzeros is not None
    share = card.split.train if isinstance(card.split, RandomSplit) else 1.0
    return Facts(
        vertices=n,
        nonzeros=nonzeros,
        features=int(known["expected.features"] or 0),
        task=card.task,
        classes=card.classes,
        directed=card.directed,
        labelled=card.expected.labelled or n,
        training=card.expected.training or round(n * share),
        exact=False,
        weights=card.weights,
    )


def _size(card: DatasetCard) -> tuple[int | None, int | None]:
    """The vertices and nonzeros that the card expects, or those of the generator."""
    n, edges = card.expected.n, card.edges
    if n is None and (drawn := card.source.size(card.seed, card.classes)):
        n, edges = drawn
    if card.expected.nnz_adj is not None or n is None or edges is None:
        return n, card.expected.nnz_adj
    return n, min((1 if card.directed else 2) * edges + n, n * n)
