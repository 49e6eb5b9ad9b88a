"""The graph convolutional network of the papers and its variants, with switchable parts (ScaleGNN, section III).

GraphSAGE is the same with A the mean over the neighbours, and the vertex itself besides: A H W + H W_root. GAT has
attention in place of A (`harness.models.gat`).

With `recompute`, autograd keeps of a layer its input alone, and the backward pass begins by computing the layer once
more. The last layer is not computed twice: its backward pass comes first, when all that it computed is still needed.

Bare, the model is L convolutions without bias and ReLU between them, and the last one gives the classes. With a
projection, features are first brought to the hidden width, each layer keeps that width, and a head gives the classes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from harness.models.operators import AttentionOperators, ConvolutionOperators, Operators, Skip
from harness.models.weights import Part, Weights


def gcn(
    ops: ConvolutionOperators, X: Tensor, weights: Weights, *, residual: bool = False, recompute: bool = False
) -> Tensor:
    """H_l = finish(A H_(l-1) W_l) + H_(l-1); the output is linear, its softmax is part of the loss."""

    def convolve(layer: int, H: Tensor) -> Tensor:
        return ops.convolve(layer, H, weights.layers[layer][0])

    return _run_layers(ops, X, weights, convolve, residual, recompute)


def gat(
    ops: AttentionOperators, X: Tensor, weights: Weights, *, residual: bool = False, recompute: bool = False
) -> Tensor:
    """The same with attention over a vertex's neighbours in place of A."""

    def attend(layer: int, H: Tensor) -> Tensor:
        return ops.attend(layer, H, weights.layers[layer][0], weights.attentions[layer])

    return _run_layers(ops, X, weights, attend, residual, recompute)


MODELS: dict[str, Callable[..., Tensor]] = {"gcn": gcn, "sage": gcn, "gat": gat}
"""The model of every kind of a spec."""


def _run_layers(
    ops: Operators,
    X: Tensor,
    weights: Weights,
    convolution: Callable[[int, Tensor], Tensor],
    residual: bool,
    recompute: bool,
) -> Tensor:
    """The output of a model whose layer l sums over neighbours by `convolution(l, H)`."""
    projection, head, layers = weights.projection, weights.head, weights.layers

    def layer_of(layer: int, H: Tensor) -> Tensor:
        skip = ops.keep(layer, H) if residual else None
        before = H
        H = convolution(layer, H if skip is None else skip.H)
        if weights.roots:
            own = ops.linear(Part.ROOT, before, weights.roots[layer], layer)
            H = ops.add(layer, H, Skip(own, own))
        if head is not None or layer + 1 < len(layers):
            H = ops.finish(layer, H, layers[layer][1])
        return H if skip is None else ops.add(layer, H, skip)

    H = X if projection is None else ops.linear(Part.PROJECTION, X, projection)
    twice = len(layers) - 1 if recompute else 0
    for layer, (W, _) in enumerate(layers):
        compute = partial(layer_of, layer)
        H = RecomputedLayer.apply(compute, H, W) if layer < twice else compute(H)  # type: ignore[no-untyped-call]
    return H if head is None else ops.linear(Part.HEAD, H, head)


class RecomputedLayer(Function):
    """A layer of which nothing is kept but the input. Backward, the layer is computed again, then its gradients.

    The gradients of weights are added to the weights at once, as those of every leaf. The weight among the inputs tells
    autograd that a layer of fixed features is trained, too.
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
