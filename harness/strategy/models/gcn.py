"""The graph convolutional network of the papers and its variants, with optional parts (ScaleGNN, section III).

The basic model is L convolutions without bias, with ReLU between them; the last one outputs the classes. With a
projection, the features are first projected to the hidden width, all layers have that width, and a head outputs the
classes. GraphSAGE is the same model with a mean aggregator as A and a root term: A H W + H W_root. GAT replaces A by
attention (`harness.strategy.models.gat`).

With `recompute` (activation checkpointing), autograd saves only the input of a layer, and the backward pass recomputes
the layer. The last layer is never recomputed, because its backward pass comes first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from harness.strategy.models.operators import AttentionOperators, ConvolutionOperators, Operators, Skip
from harness.strategy.models.weights import Part, Weights


def gcn(
    ops: ConvolutionOperators, X: Tensor, weights: Weights, *, residual: bool = False, recompute: bool = False
) -> Tensor:
    """Return the logits of a GCN: H_l = finish(A H_(l-1) W_l) + H_(l-1). The softmax is part of the loss."""

    def convolve(layer: int, H: Tensor) -> Tensor:
        return ops.convolve(layer, H, weights.layers[layer][0])

    return _run_layers(ops, X, weights, convolve, residual, recompute)


def gat(
    ops: AttentionOperators, X: Tensor, weights: Weights, *, residual: bool = False, recompute: bool = False
) -> Tensor:
    """Return the logits of a GAT: `gcn` with attention over a vertex's neighbours in place of A."""

    def attend(layer: int, H: Tensor) -> Tensor:
        return ops.attend(layer, H, weights.layers[layer][0], weights.attentions[layer])

    return _run_layers(ops, X, weights, attend, residual, recompute)


MODELS: dict[str, Callable[..., Tensor]] = {"gcn": gcn, "sage": gcn, "gat": gat}
"""The function of each model kind in a spec."""


def _run_layers(
    ops: Operators,
    X: Tensor,
    weights: Weights,
    convolution: Callable[[int, Tensor], Tensor],
    residual: bool,
    recompute: bool,
) -> Tensor:
    """Return the output of a model whose layer l aggregates neighbours by `convolution(l, H)`."""
    projection, head, layers = weights.projection, weights.head, weights.layers

    def layer_of(layer: int, H: Tensor) -> Tensor:
        skip = ops.save_input(layer, H) if residual else None
        before = H
        H = convolution(layer, H if skip is None else skip.H)
        if weights.roots:
            own = ops.linear(Part.ROOT, before, weights.roots[layer], layer)
            H = ops.add_input(layer, H, Skip(own, own))
        if head is not None or layer + 1 < len(layers):
            H = ops.finish(layer, H, layers[layer][1])
        return H if skip is None else ops.add_input(layer, H, skip)

    H = X if projection is None else ops.linear(Part.PROJECTION, X, projection)
    twice = len(layers) - 1 if recompute else 0
    for layer, (W, _) in enumerate(layers):
        compute = partial(layer_of, layer)
        H = RecomputedLayer.apply(compute, H, W) if layer < twice else compute(H)  # type: ignore[no-untyped-call]
    return H if head is None else ops.linear(Part.HEAD, H, head)


class RecomputedLayer(Function):
    """A checkpointed layer: only its input is saved, and the backward pass recomputes the layer.

    Weight gradients are accumulated into the weights' `grad`. A weight is among the inputs so that autograd runs the
    backward pass even if the features need no gradient.
    """

    @staticmethod
    def forward(saved: Any, compute: Callable[[Tensor], Tensor], H: Tensor, _trained: Tensor) -> Tensor:
        saved.compute = compute
        saved.save_for_backward(H)
        return compute(H)

    @staticmethod
    def backward(saved: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        (H,) = saved.saved_tensors
        H = H.detach().requires_grad_(saved.needs_input_grad[1])
        with torch.enable_grad():
            again = saved.compute(H)
        again.backward(*gradients)
        return None, H.grad, None
