"""The training step of a strategy as its paper's recurrence, on dense matrices of the whole graph.

A strategy whose ranks multiply by stale, rounded or delayed rows names a `Recurrence`. `harness check` trains by it, in
double precision and by PyTorch's autograd, and compares losses, gradients and weights with those of the ranks. It
shares no code with the ranks' operators, except for random numbers.

Legend: P ranks, n vertices in the order of the dataset, F features in, H features out.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

Multiply = Callable[[slice, Tensor], Tensor]
"""Returns some rows of A T; with attention, of the attention over T. The arguments are the rows, and T."""


class DenseGraph(NamedTuple):
    """The matrix that a model multiplies by, dense."""

    A: Tensor
    entries: Tensor
    """Whether A has an entry, which may be 0."""
    parts: Tensor | None = None
    """The part of each entry, if the dataset has a vertex cut."""


class Recurrence:
    """Training steps on the full graph. Override the method in which the strategy differs from serial training."""

    def __init__(self, strategy: Any, graph: DenseGraph) -> None:
        """Prepare the first step of a strategy, a `harness.strategy.Strategy`."""
        self.strategy, self.graph, self.A = strategy, graph, graph.A
        self.params = strategy.params
        self.ranks = strategy.spec.ranks

    @cached_property
    def parts(self) -> list[slice]:
        """The vertices of each rank."""
        return [slice(rows.start, rows.stop) for rows in self.strategy.facts.blocks(self.ranks)]

    @cached_property
    def own(self) -> Tensor:
        """Whether each rank has each vertex, (P, n, 1)."""
        own = torch.zeros(self.ranks, len(self.A), 1, dtype=torch.bool)
        for rank, rows in enumerate(self.parts):
            own[rank, rows] = True
        return own

    @staticmethod
    def count_epochs(strategy: Any) -> int:  # noqa: ARG004  overrides use it
        """Return the number of first epochs in which each kind of step occurs; a check trains at least three."""
        return 3

    def start(self, X: Tensor) -> Tensor:
        """Return the input features."""
        return X

    def convolve(self, step: int, layer: int, H: Tensor, W: Tensor, multiply: Multiply) -> Tensor:
        """Return A H W, or the attention, as the ranks compute it: each from the rows that it sees."""
        is_combined = self.strategy.combines_first(layer)
        seen = self.see(step, layer, H @ W if is_combined else H)
        T = seen if is_combined else seen @ W
        return torch.cat([multiply(rows, T_nH) for rows, T_nH in zip(self.parts, T, strict=True)])

    def see(self, step: int, layer: int, H_nF: Tensor) -> Tensor:
        """Return the rows as each rank multiplies by them, (P, n, F)."""
        return H_nF.expand(self.ranks, *H_nF.shape)

    def finish(self, Z: Tensor) -> Tensor:
        """Return the model's output (n, classes)."""
        return Z

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss. Override this if gradients arrive late."""
        loss.backward()
