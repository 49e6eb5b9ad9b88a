"""Recipes for features, labels and splits. The features of any rows can be drawn without the other rows.

Legend: N vertices, F features, C classes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from harness.graph.model import TEST, TRAIN, VALID, labelled
from harness.kernels.jit import compiled
from harness.kernels.random import (
    Index,
    Purpose,
    integers,
    normal,
    rectangle_index,
    uniform,
    uniform_rectangle,
)
from harness.ranges import split_evenly

CHUNK = 1 << 19
"""Numbers drawn at a time, which bounds the memory beside the features themselves."""


def uniform_features(vertices: Index, width: int, seed: int) -> Tensor:
    """Features uniform in [0, 1), float32."""
    return uniform_rectangle(seed, Purpose.FEATURES, vertices, range(width), width, dtype=torch.float32)


def gaussian_features(
    y: Tensor, vertices: Index, classes: int, width: int, separation: float, seed: int
) -> Tensor:
    """`separation` times a unit vector of the vertex's class, plus standard normal noise, float32.

    A vertex of several classes has the unit vector of their sum. `y` has the labels of the whole graph; vertices
    without a label get noise alone.
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
    """The mean of the features of some vertices, given their labels."""
    if y.dim() == 1:
        return torch.where(labelled(y)[:, None], mean_CF[y.clamp(min=0)], 0.0)
    return torch.nn.functional.normalize(y.clamp(min=0).to(mean_CF.dtype) @ mean_CF, dim=1)


def row_normalised(X_NF: Tensor) -> Tensor:
    """Divides each row by the sum of its absolute values; rows of zeros stay."""
    return torch.nn.functional.normalize(X_NF, p=1, dim=1, eps=torch.finfo(X_NF.dtype).tiny)


def _chunks(vertices: Index, width: int) -> Iterator[tuple[Index, slice]]:
    """Groups of vertices, and the place of each group among all."""
    step = max(CHUNK // width, 1)
    for start in range(0, len(vertices), step):
        stop = min(start + step, len(vertices))
        yield vertices[start:stop], slice(start, stop)


# Labels for graphs without labels. A model can learn nothing from such labels: never report an accuracy.

LABELS_AT_ONCE = 1 << 22
"""Numbers drawn at a time, since these take more memory than the labels."""


def degree_labels(degrees: Tensor, classes: int) -> Tensor:
    """Classes of equal size, of the vertices ranked by the nonzeros of their rows, the fewest first (Plexus).

    Ties are ranked by vertex; when the sizes cannot be equal, the first classes have one vertex more.
    """
    bounds = torch.tensor([part.stop for part in split_evenly(len(degrees), classes)])
    members = torch.bincount(degrees)
    ranks = members.cumsum(0) - members
    y = torch.empty(len(degrees), dtype=torch.int64)
    label_in_turn(degrees.numpy(), ranks.numpy(), torch.zeros_like(ranks).numpy(), bounds.numpy(), y.numpy())
    return y


def uniform_labels(vertices: range, classes: int, seed: int) -> Tensor:
    """Labels drawn uniformly from all classes (CAGNET; its own code never draws the last class)."""
    return integers(seed, Purpose.LABELS, vertices, classes)


def uniform_label_sets(sets: range, classes: int, seed: int) -> Tensor:
    """Sets of labels, (len(sets), classes) int8; a set contains each class with an even chance."""
    drawn, step = torch.empty(len(sets), classes, dtype=torch.int8), max(LABELS_AT_ONCE // classes, 1)
    for start in range(0, len(sets), step):
        chance = uniform_rectangle(seed, Purpose.LABELS, sets[start : start + step], range(classes), classes)
        drawn[start : start + step] = chance < 0.5
    return drawn


# The compiled loop: a label for every vertex, in one pass and without more memory.


@compiled(nogil=True)
def label_in_turn(degrees: Any, ranks: Any, labels: Any, bounds: Any, y: Any) -> None:
    """Labels the vertices in turn; `ranks` and `labels` are those of the next vertex of each degree.

    The label of a degree grows once its rank passes the bound of the label.
    """
    for vertex in range(degrees.size):
        degree = degrees[vertex]
        while bounds[labels[degree]] <= ranks[degree]:
            labels[degree] += 1
        y[vertex] = labels[degree]
        ranks[degree] += 1


# Splits into vertices that train, validate and test. A vertex without a label is in no split.

SPLITS_AT_ONCE = 1 << 22
"""Vertices drawn at a time, since their numbers take more memory than the split."""


def random_split(y: Tensor, first: int, train: float, valid: float, seed: int) -> Tensor:
    """Each labelled vertex is drawn into TRAIN or VALID with these chances, else into TEST.

    `y` are the labels of the vertices from `first` onwards.
    """
    split = torch.full(y.shape[:1], TEST, dtype=torch.uint8)
    for start in range(0, len(y), SPLITS_AT_ONCE):
        chunk = split[start : start + SPLITS_AT_ONCE]
        chance = uniform(seed, Purpose.SPLIT, range(first + start, first + start + len(chunk)))
        chunk[chance < train + valid] = VALID
        chunk[chance < train] = TRAIN
    return labelled_only(split, y)


def all_train(y: Tensor) -> Tensor:
    """A split in which every labelled vertex trains."""
    return labelled_only(torch.full(y.shape[:1], TRAIN, dtype=torch.uint8), y)


def labelled_only(split: Tensor, y: Tensor) -> Tensor:
    """The split without the vertices that have no label."""
    return split.masked_fill(~labelled(y), 0).to(torch.uint8)
