"""Feature recipes: drawn features, and the division by row sums. Any rows can be drawn without the others.

Legend: N vertices, F features, C classes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from harness.graph.model import labelled
from harness.kernels.random import Index, Purpose, normal, rectangle, rectangle_index

CHUNK = 1 << 19
"""Numbers drawn at a time, to bound what is held beside the features themselves."""


def uniform_features(vertices: Index, width: int, seed: int) -> Tensor:
    """Uniform in [0, 1), float32."""
    X_NF = torch.empty(len(vertices), width)
    for rows, place in _chunks(vertices, width):
        X_NF[place] = rectangle(seed, Purpose.FEATURES, rows, range(width), width, dtype=torch.float32)
    return X_NF


def gaussian_features(
    y: Tensor, vertices: Index, classes: int, width: int, separation: float, seed: int
) -> Tensor:
    """`separation` times a unit vector of the vertex's class, plus standard normal noise, float32.

    Of many classes it is the unit vector of their sum. `y` holds the labels of the whole graph; vertices without one
    get noise alone.
    """
    after_noise = len(y) * width
    index = rectangle_index(range(classes), range(width), width, start=after_noise)
    mean_CF = torch.nn.functional.normalize(normal(seed, Purpose.FEATURES, index), dim=1)
    X_NF = torch.empty(len(vertices), width)
    for rows, place in _chunks(vertices, width):
        mean = _mean(y[rows.start : rows.stop] if isinstance(rows, range) else y[rows], mean_CF)
        noise = normal(seed, Purpose.FEATURES, rectangle_index(rows, range(width), width))
        X_NF[place] = (separation * mean + noise).float()
    return X_NF


def _mean(y: Tensor, mean_CF: Tensor) -> Tensor:
    """What the labels of some vertices say of their features."""
    if y.dim() == 1:
        return torch.where(labelled(y)[:, None], mean_CF[y.clamp(min=0)], 0.0)
    return torch.nn.functional.normalize(y.clamp(min=0).to(mean_CF.dtype) @ mean_CF, dim=1)


def row_normalised(X_NF: Tensor) -> Tensor:
    """Each row divided by the sum of its absolute values; rows of zeros stay."""
    return torch.nn.functional.normalize(X_NF, p=1, dim=1, eps=torch.finfo(X_NF.dtype).tiny)


def _chunks(vertices: Index, width: int) -> Iterator[tuple[Index, slice]]:
    """Groups of vertices, and where each group stands among them."""
    step = max(CHUNK // width, 1)
    for start in range(0, len(vertices), step):
        stop = min(start + step, len(vertices))
        yield vertices[start:stop], slice(start, stop)
