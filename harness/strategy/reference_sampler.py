"""The samples of a strategy as its paper describes them, on dense matrices, with NumPy's random numbers.

A strategy that draws mini-batches, or draws from the whole graph in every step, names a `ReferenceSampler`.
`harness check` draws many epochs with it and many with the strategy, and compares the frequencies of vertices and
entries, their values, and what is drawn together. It shares no code and no random numbers with the strategy.

Legend: n vertices in the order of the dataset.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.strategy.recurrence import DenseGraph

Array = NDArray[Any]


class DenseBatch(NamedTuple):
    """The mini-batch of a group in a step, on all vertices of the graph."""

    vertices: Sequence[Array]
    """Whether each vertex is in the input of each layer, then whether it is in the output, (n,)."""
    A: Sequence[Array]
    """The matrix of each layer, (n, n), which is zero outside of the layer's output and input."""
    importance: Array | None = None
    """The weight of each vertex in the loss, (n,); None for equal weights."""


class ReferenceSampler(ABC):
    """Draws the mini-batches of a strategy."""

    def __init__(self, strategy: Any, graph: DenseGraph, targets: Array, rng: np.random.Generator) -> None:
        """Prepare to draw for a strategy, a `harness.strategy.Strategy`; `targets` are the vertices of the loss."""
        self.strategy, self.targets, self.rng = strategy, targets, rng
        self.params, self.groups, self.layers = strategy.params, strategy.groups, strategy.spec.model.layers
        self.batch = strategy.spec.training.batch
        self.A, self.entries = graph.A.numpy(), graph.entries.numpy()
        self.n = len(self.A)

    @abstractmethod
    def draw_epoch(self) -> list[list[DenseBatch]]:
        """Draw an epoch: the mini-batch of each group, in each step."""

    def make_mask(self, vertices: Array) -> Array:
        """Return a mask over all vertices that is true for the given ones."""
        mask = np.zeros(self.n, dtype=bool)
        mask[vertices] = True
        return mask

    def make_subgraph(self, S: Array, A_SS: Array, importance: Array | None = None) -> DenseBatch:
        """Return the mini-batch that multiplies by the same matrix between the vertices S in all layers."""
        A = np.zeros_like(self.A)
        A[np.ix_(S, S)] = A_SS
        return DenseBatch([self.make_mask(S)] * (self.layers + 1), [A] * self.layers, importance)
