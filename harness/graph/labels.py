"""Label recipes for graphs that come without labels. Nothing can be learned from these: never report accuracy."""

import torch
from torch import Tensor

from harness.kernels.random import Purpose, integers, rectangle
from harness.ranges import balanced

AT_ONCE = 1 << 22
"""Numbers drawn at a time: they take more than the labels."""


def degree_labels(degrees: Tensor, classes: int) -> Tensor:
    """Vertices ranked by the nonzeros of their rows and cut into classes of equal size, the lowest first (Plexus).

    Ties are ranked by vertex; when the sizes cannot be equal, the first classes have one vertex more.
    """
    from harness.graph.labels_compiled import label_in_turn

    bounds = torch.tensor([part.stop for part in balanced(len(degrees), classes)])
    members = torch.bincount(degrees)
    ranks = members.cumsum(0) - members
    y = torch.empty(len(degrees), dtype=torch.int64)
    label_in_turn(degrees.numpy(), ranks.numpy(), torch.zeros_like(ranks).numpy(), bounds.numpy(), y.numpy())
    return y


def uniform_labels(vertices: range, classes: int, seed: int) -> Tensor:
    """Drawn uniformly (CAGNET, whose own recipe never draws the last class; this one does)."""
    return integers(seed, Purpose.LABELS, vertices, classes)


def uniform_label_sets(sets: range, classes: int, seed: int) -> Tensor:
    """Each class is in each set with an even chance, (len(sets), classes) int8."""
    drawn, step = torch.empty(len(sets), classes, dtype=torch.int8), max(AT_ONCE // classes, 1)
    for start in range(0, len(sets), step):
        chance = rectangle(seed, Purpose.LABELS, sets[start : start + step], range(classes), classes)
        drawn[start : start + step] = chance < 0.5
    return drawn
