"""Generates features, labels and splits. The features of any rows can be drawn without the other rows.

Legend: N vertices, F features, C classes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from harness.base.ranges import split_evenly
from harness.graph.model import TEST, TRAIN, VALID, has_label
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

CHUNK_FEATURES = 1 << 19
"""Feature values drawn at a time, which bounds temporary memory."""


def draw_uniform_features(vertices: Index, width: int, seed: int) -> Tensor:
    """Draw features uniformly from [0, 1), float32."""
    return uniform_rectangle(seed, Purpose.FEATURES, vertices, range(width), width, dtype=torch.float32)


def draw_gaussian_features(
    y: Tensor, vertices: Index, classes: int, width: int, separation: float, seed: int
) -> Tensor:
    """Draw features: `separation` times the unit vector of the vertex's class plus standard normal noise, float32.

    A vertex with several classes has the unit vector of their sum; a vertex without a label has only noise. `y` holds
    the labels of the whole graph.
    """
    after_noise = len(y) * width
    index = rectangle_index(range(classes), range(width), width, start=after_noise)
    mean_CF = torch.nn.functional.normalize(normal(seed, Purpose.FEATURES, index), dim=1)
    X_NF = torch.empty(len(vertices), width)
    for rows, positions in _cut_into_chunks(vertices, width):
        mean = _compute_means(y[rows.start : rows.stop] if isinstance(rows, range) else y[rows], mean_CF)
        noise = normal(seed, Purpose.FEATURES, rectangle_index(rows, range(width), width))
        X_NF[positions] = (separation * mean + noise).float()
    return X_NF


def _compute_means(y: Tensor, mean_CF: Tensor) -> Tensor:
    """Return the expected features of some vertices, given their labels."""
    if y.dim() == 1:
        return torch.where(has_label(y)[:, None], mean_CF[y.clamp(min=0)], 0.0)
    return torch.nn.functional.normalize(y.clamp(min=0).to(mean_CF.dtype) @ mean_CF, dim=1)


def normalise_rows(X_NF: Tensor) -> Tensor:
    """Divide each row by the sum of its absolute values; rows of zeros are unchanged."""
    return torch.nn.functional.normalize(X_NF, p=1, dim=1, eps=torch.finfo(X_NF.dtype).tiny)


def _cut_into_chunks(vertices: Index, width: int) -> Iterator[tuple[Index, slice]]:
    """Yield groups of vertices, with the positions of each group."""
    step = max(CHUNK_FEATURES // width, 1)
    for start in range(0, len(vertices), step):
        stop = min(start + step, len(vertices))
        yield vertices[start:stop], slice(start, stop)


# Labels for graphs without labels. A model cannot learn anything from them: never report an accuracy.

CHUNK_LABELS = 1 << 22
"""Random numbers drawn at a time: they take more memory than the labels."""


def label_by_degree(degrees: Tensor, classes: int) -> Tensor:
    """Rank vertices by the nonzeros of their rows, fewest first, and cut them into classes of equal size (Plexus).

    Ties are ranked by vertex number. If sizes cannot be equal, the first classes have one vertex more.
    """
    bounds = torch.tensor([part.stop for part in split_evenly(len(degrees), classes)])
    members = torch.bincount(degrees)
    ranks = members.cumsum(0) - members
    y = torch.empty(len(degrees), dtype=torch.int64)
    labels = torch.zeros_like(ranks)
    assign_labels_by_rank(degrees.numpy(), ranks.numpy(), labels.numpy(), bounds.numpy(), y.numpy())
    return y


def draw_uniform_labels(vertices: range, classes: int, seed: int) -> Tensor:
    """Draw labels uniformly from all classes (CAGNET, whose own code never draws the last class)."""
    return integers(seed, Purpose.LABELS, vertices, classes)


def draw_label_sets(sets: range, classes: int, seed: int) -> Tensor:
    """Draw sets of labels, (len(sets), classes) int8, that contain each class with probability 1/2."""
    drawn, step = torch.empty(len(sets), classes, dtype=torch.int8), max(CHUNK_LABELS // classes, 1)
    for start in range(0, len(sets), step):
        chance = uniform_rectangle(seed, Purpose.LABELS, sets[start : start + step], range(classes), classes)
        drawn[start : start + step] = chance < 0.5
    return drawn


@compiled(nogil=True)
def assign_labels_by_rank(degrees: Any, ranks: Any, labels: Any, bounds: Any, y: Any) -> None:
    """Label all vertices in one pass. `ranks` and `labels` hold the next rank and label of each degree.

    The label of a degree increases once its rank reaches the bound of the label.
    """
    for vertex in range(degrees.size):
        degree = degrees[vertex]
        while bounds[labels[degree]] <= ranks[degree]:
            labels[degree] += 1
        y[vertex] = labels[degree]
        ranks[degree] += 1


# Splits into training, validation and test vertices. A vertex without a label is in none.

CHUNK_VERTICES = 1 << 22
"""Vertices drawn at a time: random numbers take more memory than the split."""


def draw_random_split(y: Tensor, first: int, train: float, valid: float, seed: int) -> Tensor:
    """Assign each labelled vertex to TRAIN or VALID with these probabilities, else to TEST.

    `y` holds the labels of the vertices from `first` onwards.
    """
    split = torch.full(y.shape[:1], TEST, dtype=torch.uint8)
    for start in range(0, len(y), CHUNK_VERTICES):
        chunk = split[start : start + CHUNK_VERTICES]
        chance = uniform(seed, Purpose.SPLIT, range(first + start, first + start + len(chunk)))
        chunk[chance < train + valid] = VALID
        chunk[chance < train] = TRAIN
    return mask_unlabelled(split, y)


def make_train_split(y: Tensor) -> Tensor:
    """Return a split in which every labelled vertex is used for training."""
    return mask_unlabelled(torch.full(y.shape[:1], TRAIN, dtype=torch.uint8), y)


def mask_unlabelled(split: Tensor, y: Tensor) -> Tensor:
    """Return the split with 0 for vertices that have no label."""
    return split.masked_fill(~has_label(y), 0).to(torch.uint8)
