"""Label recipes for graphs that come without labels. Nothing can be learned from these: never report accuracy."""

import torch
from torch import Tensor

from harness.kernels.random import Purpose, integers


def degree_labels(degrees: Tensor, classes: int) -> Tensor:
    """Vertices ranked by the nonzeros of their rows and cut into classes of equal size, the lowest first (Plexus).

    Ties are ranked by vertex; when the sizes cannot be equal, the first classes have one vertex more.
    """
    ranked = torch.argsort(degrees, stable=True)
    y = torch.empty(len(degrees), dtype=torch.int64)
    for label, members in enumerate(torch.tensor_split(ranked, classes)):
        y[members] = label
    return y


def uniform_labels(vertices: range, classes: int, seed: int) -> Tensor:
    """Drawn uniformly (CAGNET, whose own recipe never draws the last class; this one does)."""
    return integers(seed, Purpose.LABELS, vertices, classes)
