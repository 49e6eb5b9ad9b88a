"""The model on dense matrices, by PyTorch's own operators and autograd: it shares no code with what it judges.

Masks of dropout are data, as initial weights are: both come from the generator that all strategies draw from.
Legend: one matrix a layer; its rows are vertices of the output, its columns those of the input.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

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
            before = weights[number - 1] if number else None
            after = weights[number + 1] if number + 1 < len(weights) else None
            if before and before[0].part is Part.ATTENTION:
                Z = _attend(A[weight.layer] != 0, H @ W, before[1], model)
                Z = Z.flatten(1) if after else Z.mean(dim=1)
            else:
                Z = A[weight.layer] @ (H @ W)
            if before and before[0].part is Part.ROOT:
                Z = Z + H[: len(Z)] @ before[1]
            if model.projection or weight.layer + 1 < model.layers:
                scale = after[1] if after and after[0].part is Part.SCALE else None
                Z = _finish(Z, scale, model, mask(weight.layer) if mask else None)
            H = Z + H[: len(Z)] if model.residual else Z
    return H


def _attend(edges: Tensor, T: Tensor, a: Tensor, model: ModelChoice) -> Tensor:
    """Every head by itself, (rows, heads, features of a head)."""
    heads = []
    for T_of, a_of in zip(T.chunk(model.heads, dim=1), a.chunk(model.heads, dim=1), strict=True):
        target, source = T_of[: len(edges)] @ a_of[0], T_of @ a_of[1]
        score = leaky_relu(target[:, None] + source, negative_slope=0.2)
        heads.append(score.masked_fill(~edges, -torch.inf).softmax(dim=1) @ T_of)
    return torch.stack(heads, dim=1)


def _finish(Z: Tensor, gamma: Tensor | None, model: ModelChoice, mask: Tensor | None) -> Tensor:
    if gamma is not None:
        Z = Z / torch.sqrt((Z * Z).mean(dim=1, keepdim=True) + EPSILON) * gamma
    if model.activation == "relu":
        Z = Z.clamp(min=0)
    return Z if mask is None else Z * mask
