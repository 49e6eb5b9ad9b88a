"""The graph convolutional network of the papers, each of its parts switchable (ScaleGNN, section III).

GraphSAGE is the same with A the mean over the neighbours and what a vertex itself has beside it: A H W + H W_root.
GAT has attention in place of A (`harness.models.gat`).

Bare, it is L convolutions without bias and ReLU between them, and the last one gives the classes. With a projection,
features are first brought to the hidden width, each layer keeps it, and a head gives the classes.
"""

from torch import Tensor

from harness.models.operators import Operators, Skip
from harness.models.weights import Part, Weights


def gcn(ops: Operators, X: Tensor, weights: Weights, *, residual: bool = False) -> Tensor:
    """H_l = finish(A H_(l-1) W_l) + H_(l-1); the output is linear, its softmax is part of the loss."""
    projection, head, layers = weights.projection, weights.head, weights.layers
    H = X if projection is None else ops.linear(Part.PROJECTION, X, projection)
    for layer, (W, gamma) in enumerate(layers):
        skip = ops.keep(layer, H) if residual else None
        here, H = H, H if skip is None else skip.H
        a = weights.attentions[layer] if weights.attentions else None
        H = ops.convolve(layer, H, W) if a is None else ops.attend(layer, H, W, a)
        if weights.roots:
            own = ops.linear(Part.ROOT, here, weights.roots[layer])
            H = ops.add(layer, H, Skip(own, own))
        if head is not None or layer + 1 < len(layers):
            H = ops.finish(layer, H, gamma)
        if skip is not None:
            H = ops.add(layer, H, skip)
    return H if head is None else ops.linear(Part.HEAD, H, head)
