"""Split recipes: which vertices train, validate and test. A vertex without a label does none of these."""

import torch
from torch import Tensor

from harness.graph.model import TEST, TRAIN, VALID, labelled
from harness.kernels.random import Purpose, uniform

AT_ONCE = 1 << 22


def random_split(y: Tensor, first: int, train: float, valid: float, seed: int) -> Tensor:
    """Each labelled vertex is drawn into TRAIN or VALID with these chances, else into TEST.

    `y` are the labels of the vertices `first` onwards. Some are drawn at a time: the numbers take more than the split.
    """
    split = torch.full(y.shape[:1], TEST, dtype=torch.uint8)
    for start in range(0, len(y), AT_ONCE):
        some = split[start : start + AT_ONCE]
        chance = uniform(seed, Purpose.SPLIT, range(first + start, first + start + len(some)))
        some[chance < train + valid] = VALID
        some[chance < train] = TRAIN
    return labelled_only(split, y)


def all_train(y: Tensor) -> Tensor:
    """Every labelled vertex trains."""
    return labelled_only(torch.full(y.shape[:1], TRAIN, dtype=torch.uint8), y)


def labelled_only(split: Tensor, y: Tensor) -> Tensor:
    """The split without the vertices that have no label."""
    return split.masked_fill(~labelled(y), 0).to(torch.uint8)
