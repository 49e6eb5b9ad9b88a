"""Facts about a graph and sizes of a model: what formulas, layouts and grids are computed from."""

from dataclasses import dataclass
from itertools import pairwise

from harness.errors import UserError
from harness.graph.model import LabelTask
from harness.models.weights import Part, Weight
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
    """Everything that a model trains on a graph, in the order in which it comes to it.

    With a projection every layer is as wide as it is long. Heads of attention stand side by side.
    """
    heads = model.heads if model.kind == "gat" else 1
    ends = (model.width, model.width) if model.projection else (facts.features, facts.classes * heads)
    widths = [ends[0], *[model.width] * (model.layers - 1), ends[1]]
    found = []
    if model.projection:
        found.append(Weight(Part.PROJECTION, -1, (facts.features, model.width)))
    for layer, (f_in, f_out) in enumerate(pairwise(widths)):
        if model.kind == "sage":
            found.append(Weight(Part.ROOT, layer, (f_in, f_out)))
        if model.kind == "gat":
            found.append(Weight(Part.ATTENTION, layer, (2, f_out)))
        found.append(Weight(Part.CONVOLUTION, layer, (f_in, f_out)))
        if model.norm and (model.projection or layer + 1 < model.layers):
            found.append(Weight(Part.SCALE, layer, (1, f_out)))
    if model.projection:
        found.append(Weight(Part.HEAD, -1, (model.width, facts.classes)))
    return found


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
