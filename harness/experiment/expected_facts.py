"""The facts of a graph before any build, estimated from its card."""

from harness.errors import UserError
from harness.store.dataset_card import DatasetCard, RandomSplit
from harness.strategy.facts import Facts


def facts_of_card(card: DatasetCard) -> Facts:
    """The facts of a graph before any build, by its card. A key that the card lacks is an error.

    Edges are assumed to be distinct. With labels or a split from files, every vertex counts as labelled and training:
    only the value of a loss depends on these counts.
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
        labelled=n,
        training=round(n * share),
        exact=False,
    )


def _size(card: DatasetCard) -> tuple[int | None, int | None]:
    """The vertices and nonzeros that the card expects, or those of the generator."""
    n, edges = card.expected.n, card.edges
    if n is None and (drawn := card.source.size(card.seed, card.classes)):
        n, edges = drawn
    if card.expected.nnz_adj is not None or n is None or edges is None:
        return n, card.expected.nnz_adj
    return n, min((1 if card.directed else 2) * edges + n, n * n)
