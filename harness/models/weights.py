"""Initial weights: Glorot uniform, each element a function of (seed, layer, its place in the whole matrix)."""

from math import sqrt

from torch import Tensor

from harness.kernels.random import Purpose, rectangle

ROOM = 1 << 40  # elements set aside for one layer


def initial_weight(seed: int, layer: int, shape: tuple[int, int], rows: range, cols: range) -> Tensor:
    """A rectangle of a layer's weights in float64, whoever asks for whichever part."""
    bound = sqrt(6 / (shape[0] + shape[1]))
    return (2 * rectangle(seed, Purpose.WEIGHTS, rows, cols, shape[1], start=layer * ROOM) - 1) * bound
