"""The model on dense matrices, by PyTorch's own operators and autograd: it shares no code with what it judges.

Masks of dropout are data, as initial weights are: both come from the generator that all strategies draw from.
Legend: one matrix a layer; its rows are vertices of the output, its columns those of the input.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.models.weights import Part, Weight
from harness.spec.spec import ModelChoice

EPSILON = 1e-6
Mask = Callable[[int], Tensor]
"""Of a layer: by what each element of its output is multiplied."""


def forward(
    A: Sequence[Tensor],
    X: Tensor,
    weights: Sequence[tuple[Weight, Tensor]],
    model: ModelChoice,
    mask: Mask | None = None,
) -> Tensor:
    """The output of the model. Layer l takes as many rows of its input for its own as A[l] has rows."""
    H = X
    for number, (weight, W) in enumerate(weights):
        if weight.part in (Part.PROJECTION, Part.HEAD):
            H = H @ W
        elif weight.part is Part.CONVOLUTION:
            root = weights[number - 1] if number else None
            gamma = weights[number + 1] if number + 1 < len(weights) else None
            Z = A[weight.layer] @ (H @ W)
            if root and root[0].part is Part.ROOT:
                Z = Z + H[: len(Z)] @ root[1]
            if model.projection or weight.layer + 1 < model.layers:
                scale = gamma[1] if gamma and gamma[0].part is Part.SCALE else None
                Z = _finish(Z, scale, model, mask(weight.layer) if mask else None)
            H = Z + H[: len(Z)] if model.residual else Z
    return H


def _finish(Z: Tensor, gamma: Tensor | None, model: ModelChoice, mask: Tensor | None) -> Tensor:
    if gamma is not None:
        Z = Z / torch.sqrt((Z * Z).mean(dim=1, keepdim=True) + EPSILON) * gamma
    if model.activation == "relu":
        Z = Z.clamp(min=0)
    return Z if mask is None else Z * mask
