"""The facts of a graph that nobody has built, as its card lets expect them."""

from harness.errors import UserError
from harness.store.dataset_card import DatasetCard, RandomSplit
from harness.strategy.facts import Facts


def facts_of_card(card: DatasetCard) -> Facts:
    """What a card lets expect of a graph that nobody has built. What it leaves open is an error.

    Edges count as if none were there twice. Labels and splits that files bring count as whole: nothing hangs on them
    but the value of a loss.
    """
    n, nonzeros = _size(card)
    known = {
        "expected.n": n,
        "expected.nnz_adj": nonzeros,
        "expected.features": getattr(card.features, "width", None) or card.expected.features,
    }
    if missing := [key for key, value in known.items() if value is None]:
        raise UserError(
            f"The card of {card.name} does not say {', '.join(missing)}, so sizes cannot be expected from it. "
            f"Build the dataset (harness data build {card.name}) and take them from its store."
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
    """Vertices and nonzeros, as the card expects them or as they will be drawn."""
    n, edges = card.expected.n, card.edges
    if n is None and (drawn := card.source.size(card.seed, card.classes)):
        n, edges = drawn
    if card.expected.nnz_adj is not None or n is None or edges is None:
        return n, card.expected.nnz_adj
    return n, min((1 if card.directed else 2) * edges + n, n * n)
