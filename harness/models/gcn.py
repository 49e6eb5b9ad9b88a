"""The graph convolutional network of the papers and its variants, with switchable parts (ScaleGNN, section III).

GraphSAGE is the same with A the mean over the neighbours, and the vertex itself besides: A H W + H W_root. GAT has
attention in place of A (`harness.models.gat`).

Bare, the model is L convolutions without bias and ReLU between them, and the last one gives the classes. With a
projection, features are first brought to the hidden width, each layer keeps that width, and a head gives the classes.
"""

from collections.abc import Callable

from torch import Tensor

from harness.models.operators import AttentionOperators, ConvolutionOperators, Operators, Skip
from harness.models.weights import Part, Weights


def gcn(ops: ConvolutionOperators, X: Tensor, weights: Weights, *, residual: bool = False) -> Tensor:
    """H_l = finish(A H_(l-1) W_l) + H_(l-1); the output is linear, its softmax is part of the loss."""

    def convolve(layer: int, H: Tensor) -> Tensor:
        return ops.convolve(layer, H, weights.layers[layer][0])

    return _layer_by_layer(ops, X, weights, convolve, residual)


def gat(ops: AttentionOperators, X: Tensor, weights: Weights, *, residual: bool = False) -> Tensor:
    """The same with attention over a vertex's neighbours in place of A."""

    def attend(layer: int, H: Tensor) -> Tensor:
        return ops.attend(layer, H, weights.layers[layer][0], weights.attentions[layer])

    return _layer_by_layer(ops, X, weights, attend, residual)


MODELS: dict[str, Callable[..., Tensor]] = {"gcn": gcn, "sage": gcn, "gat": gat}
"""The model of every kind of a spec."""


def _layer_by_layer(
    ops: Operators,
    X: Tensor,
    weights: Weights,
    convolution: Callable[[int, Tensor], Tensor],
    residual: bool,
) -> Tensor:
    """The output of a model whose layer l sums over neighbours by `convolution(l, H)`."""
    projection, head, layers = weights.projection, weights.head, weights.layers
    H = X if projection is None else ops.linear(Part.PROJECTION, X, projection)
    for layer, (_, gamma) in enumerate(layers):
        skip = ops.keep(layer, H) if residual else None
        before = H
        H = convolution(layer, H if skip is None else skip.H)
        if weights.roots:
            own = ops.linear(Part.ROOT, before, weights.roots[layer], layer)
            H = ops.add(layer, H, Skip(own, own))
        if head is not None or layer + 1 < len(layers):
            H = ops.finish(layer, H, gamma)
        if skip is not None:
            H = ops.add(layer, H, skip)
    return H if head is None else ops.linear(Part.HEAD, H, head)
