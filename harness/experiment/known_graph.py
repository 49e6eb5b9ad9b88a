"""What is known about a graph: its counts in a built store, or the counts that its card expects."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from harness.base.errors import UserError
from harness.base.progress import Log
from harness.graph.blocks import Blocks
from harness.graph.cards.catalog import load_card
from harness.graph.cards.dataset_card import DatasetCard, RandomSplit
from harness.graph.shared_blocks import share_blocks
from harness.graph.store.datasets import open_dataset
from harness.graph.store.location import is_built, suggest_build
from harness.spec.dataset import DatasetChoice
from harness.strategy import Facts, Ready, Strategy, admit, facts_of


class KnownGraph(NamedTuple):
    """The facts of a graph, and its blocks if it is built."""

    facts: Facts
    blocks: Blocks | None


GraphLookup = Callable[[DatasetChoice], KnownGraph]


def look_up_graph(
    root: Path, choice: DatasetChoice, dtype: torch.dtype = torch.float32, *, from_card: bool = False
) -> KnownGraph:
    """Return the graph of a built store. If it is not built, or with `from_card`, return the facts of its card.

    A card has no facts of a partition.
    """
    if not from_card and is_built(root, choice):
        blocks = share_blocks(open_dataset(root, choice, dtype))
        return KnownGraph(facts_of(blocks), blocks)
    card = load_card(root, choice.name)
    if choice.partitioned:
        raise UserError(
            f"dataset.partition = {choice.partition}: the card of {choice.name} does not describe partitions. Build it "
            f"({suggest_build(root, card, choice)}), or take the sizes from twins (--twins)."
        )
    return KnownGraph(facts_of_card(card, root), None)


def admit_on_twins(root: Path, strategy: Strategy, scales: Iterable[str], log: Log) -> list[Ready]:
    """Admit a strategy to twins of its graph, the smallest first. Missing twins are built."""
    spec, ready = strategy.spec, []
    for scale in scales:
        choice = spec.dataset.model_copy(update={"name": f"{spec.dataset.name}@{scale}"})
        if not is_built(root, choice):
            from harness.graph.store.building import build_store

            log(f"building {choice.name}")
            build_store(root, choice)
        twin, blocks = _look_up_once(root, choice)
        on_twin = spec.model_copy(update={"dataset": choice})
        ready.append(Ready(admit(type(strategy), on_twin, twin), blocks))
    return sorted(ready, key=lambda each: each.strategy.facts.vertices)


_look_up_once = lru_cache(maxsize=16)(look_up_graph)


def facts_of_card(card: DatasetCard, root: Path | None = None) -> Facts:
    """Return the facts that the card of a graph expects. A key that the card lacks is an error.

    The error names the commands that build the graph; with `root`, also the one that fetches it, if it is not fetched.
    Edges are assumed to be distinct. If labels or the split come from files, all vertices count as labelled and
    training, unless the card gives other numbers.
    """
    n, nonzeros = _find_size(card)
    known = {
        "expected.n": n,
        "expected.nnz_adj": nonzeros,
        "expected.features": getattr(card.features, "width", None) or card.expected.features,
    }
    if missing := [key for key, value in known.items() if value is None]:
        build = suggest_build(root, card) if root else DatasetChoice(name=card.name).build_command
        raise UserError(
            f"The card of {card.name} lacks {', '.join(missing)}, so sizes cannot be estimated from it. "
            f"Build the dataset ({build}) to take the sizes from its store."
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


def _find_size(card: DatasetCard) -> tuple[int | None, int | None]:
    """Return the number of vertices and nonzeros that the card expects, or that its generator draws."""
    n, edges = card.count_edges()
    if card.expected.nnz_adj is not None or n is None or edges is None:
        return n, card.expected.nnz_adj
    return n, min((1 if card.directed else 2) * edges + n, n * n)
