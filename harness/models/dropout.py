"""Masks of dropout: each bit a function of the seed, the step, the group, the layer, the vertex and the feature.

So a mask does not depend on how a matrix is split, and ranks that hold the same piece drop the same of it.
"""

import torch
from torch import Tensor

from harness.kernels.random import LANE_BITS, Purpose, mask


def dropout_mask(
    seed: tuple[int, int, int, int], vertices: Tensor, features: range, rate: float
) -> tuple[Tensor, float]:
    """What is kept, (vertices, features), and by what it is multiplied. The seed is of seed, step, group and layer.

    The rate is rounded to a multiple of 2^-16, and so is the scale: the expectation is exact.
    """
    kept = round((1 - rate) * (1 << LANE_BITS))
    return mask(seed, Purpose.DROPOUT, vertices, features, kept), (1 << LANE_BITS) / kept


def dropped(H: Tensor, kept: Tensor, scale: float) -> Tensor:
    """H where it is kept, scaled up."""
    return torch.where(kept, H * scale, 0)
