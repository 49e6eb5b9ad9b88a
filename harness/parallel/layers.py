"""Everything of a model but its convolutions and its loss, where a rank has whole rows: all of it is local to a row.

Legend: N this rank's vertices, F features in, H features out.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from harness.kernels.random import Index
from harness.ledger import Phase, TensorName
from harness.models import Part, Skip
from harness.models.dropout import dropout_mask, dropped
from harness.strategy import Context

EPSILON = 1e-6
"""Added to the mean square of a row before its root is taken."""


class LayerOperators:
    """Projection, normalisation, ReLU, dropout, residual and head."""

    def __init__(self, ctx: Context, vertices: Index, group: int = 0) -> None:
        """`vertices` are those of the rows, in the numbers of the whole graph; `group` shares a mini-batch."""
        self.ledger, self.kernels = ctx.ledger, ctx.kernels
        self.model, self.seed, self.group = ctx.spec.model, ctx.spec.seed, group
        self.device, self.vertices = ctx.device, vertices
        self.step: int | None = None
        """The training step whose masks are used; None outside training."""

    def of_step(self, step: int) -> Self:
        """The same with the dropout masks of a step."""
        there = copy.copy(self)
        there.step = step
        return there

    def linear(self, part: Part, H_NF: Tensor, W_FH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.LINEAR):
            return self.kernels.gemm(H_NF, W_FH, TensorName.H if part is Part.PROJECTION else TensorName.Z)

    def finish(self, layer: int, Z_NH: Tensor, gamma: Tensor | None) -> Tensor:
        if gamma is not None:
            Z_NH = self.normalise(layer, Z_NH, gamma)
        if self.model.activation == "relu":
            Z_NH = self.activate(layer, Z_NH)
        return Z_NH if self.step is None or not self.model.dropout else self.drop(layer, Z_NH)

    def normalise(self, layer: int, Z_NH: Tensor, gamma_1H: Tensor) -> Tensor:
        """Each row divided by the root of its mean square, times gamma."""
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(
                lambda Z, gamma: rms_norm(Z, Z.shape[1:], gamma[0], EPSILON),
                Z_NH,
                gamma_1H,
                makes=TensorName.H,
            )

    def activate(self, layer: int, Z_NH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(torch.relu, Z_NH, makes=TensorName.H)

    def drop(self, layer: int, H_NH: Tensor) -> Tensor:
        with self.ledger.phase(Phase.ACTIVATE, layer):
            kept_NH, scale = self.mask(layer, H_NH)
            return self.kernels.elementwise(
                partial(dropped, kept=kept_NH, scale=scale), H_NH, makes=TensorName.H
            )

    def mask(self, layer: int, H_NH: Tensor) -> tuple[Tensor, float]:
        """What dropout keeps of this rank's piece."""
        assert self.step is not None
        at = (self.seed, self.step, self.group, layer)
        return dropout_mask(at, self.rows_of(layer), self.features(layer, H_NH), self.model.dropout)

    def rows_of(self, layer: int) -> Tensor:
        """The vertices of the rows of a layer's output."""
        return as_indices(self.vertices, self.device)

    def features(self, layer: int, H_NH: Tensor) -> range:
        """Which features of the whole the columns of a layer's output are."""
        return range(H_NH.shape[1])

    def keep(self, layer: int, H: Tensor) -> Skip:
        return Skip(H, H)

    def add(self, layer: int, H: Tensor, skip: Skip) -> Tensor:
        """Where a layer's input has more rows than its output, those of the output are the first."""
        kept = skip.kept if len(skip.kept) == len(H) else skip.kept[: len(H)]
        with self.ledger.phase(Phase.ACTIVATE, layer):
            return self.kernels.elementwise(torch.add, H, kept, makes=TensorName.H)

    def settle(self, weights: Sequence[Tensor]) -> None:
        """Nothing is left to be done: every operator has summed what it had to."""


def as_indices(vertices: Index, device: torch.device) -> Tensor:
    """A range as a tensor; a tensor as it is."""
    if isinstance(vertices, Tensor):
        return vertices
    return torch.arange(vertices.start, vertices.stop, device=device)
