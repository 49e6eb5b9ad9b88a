"""A mini-batch of the whole graph: what a training step computes from what."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from harness.kernels import Csr


class MiniBatch(NamedTuple):
    """As one rank that has the whole graph draws it.

    The vertices of a layer's input begin with those of its output. A sampled subgraph has the same in all layers.
    """

    vertices: Sequence[Tensor]
    """Of the input of every layer in turn, and of the output."""
    A: Sequence[Csr]
    """By what each layer multiplies: as many rows as its output has vertices, as many columns as its input."""
    importance: Tensor | None = None
    """By what the loss of each vertex of the output is multiplied; None: all alike."""
