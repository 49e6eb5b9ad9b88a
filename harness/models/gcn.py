"""The graph convolutional network of the papers: L convolutions, ReLU between them, no bias."""

from collections.abc import Sequence

from torch import Tensor

from harness.models.operators import Operators


def gcn(ops: Operators, H: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """H_l = relu(A H_(l-1) W_l); the last layer is linear: its softmax is part of the loss."""
    for layer, W in enumerate(weights):
        H = ops.convolve(layer, H, W)
        if layer + 1 < len(weights):
            H = ops.activate(layer, H)
    return H
