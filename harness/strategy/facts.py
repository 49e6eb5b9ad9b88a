"""Facts about a graph and sizes of a model: what formulas, layouts and grids are computed from."""

from dataclasses import dataclass

from harness.errors import UserError
from harness.graph.model import LabelTask
from harness.models.weights import Weight, weights_of
from harness.ranges import between, split
from harness.spec.spec import ModelChoice, Protocol
from harness.store.card import DatasetCard
from harness.store.recipes import RandomSplit


@dataclass(frozen=True)
class Facts:
    """What is known of a graph before any of its blocks is read."""

    vertices: int
    nonzeros: int
    features: int
    classes: int
    directed: bool
    labelled: int
    """Vertices that have a label: the loss of the faithful protocol is a mean over them."""
    training: int
    """Those of the training split: the loss of the corrected protocol is a mean over them."""
    bounds: tuple[int, ...] | None = None
    """Where the parts of a partition begin, and the end; None without a partition."""
    task: LabelTask = "single-label"
    exact: bool = True
    """Counted in a store; or expected, from a card."""

    def trained_on(self, protocol: Protocol) -> int:
        """How many vertices the loss is a mean over, in the whole graph."""
        return self.training if protocol == "corrected" else self.labelled

    def blocks(self, parts: int) -> list[range]:
        """The vertices in so many blocks: the parts of the partition, or blocks of equal size."""
        if self.bounds is None:
            return split(self.vertices, parts)
        assert len(self.bounds) == parts + 1, (self.bounds, parts)
        return between(self.bounds)


def weights_of_model(model: ModelChoice, facts: Facts) -> list[Weight]:
    """Everything that a model trains on a graph, in order."""
    return weights_of(
        facts.features,
        model.hidden,
        facts.classes,
        model.layers,
        projection=model.projection,
        norm=model.norm,
        root=model.kind == "sage",
    )


def facts_of_card(card: DatasetCard) -> Facts:
    """What a card lets expect of a graph that nobody has built. What it leaves open is an error.

    Labels and splits that files bring count as whole: nothing hangs on them but the value of a loss.
    """
    n, nonzeros = card.expected.n, card.expected.nnz_adj
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
