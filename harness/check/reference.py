"""Training with dense matrices and nothing of ours: what every strategy must equal.

Z = A (H W) in double precision, PyTorch's own autograd, one process. It shares no kernel, no loss, no layout and
no loop with the code that it judges; only the graph and the initial weights are the same.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from harness.graph.model import SPLITS, TRAIN, labelled
from harness.graph.order import Orders
from harness.models import Hits
from harness.models.weights import initial_weight
from harness.spec.spec import Spec
from harness.store.blocks import Blocks
from harness.strategy import facts_of, widths


@dataclass(frozen=True)
class Trained:
    """What training left behind; the gradients are those of the first epoch."""

    losses: list[float]
    gradients: list[Tensor]
    """Of the weights and, where they are trained, of the features."""
    parameters: list[Tensor]
    output: Tensor
    hits: dict[str, Hits]
    layers: int

    def ordered(self, orders: Orders[Tensor]) -> "Trained":
        """The same in an order of the vertices in which layers alternate (`harness.graph.order`)."""
        layers = self.layers
        return replace(
            self,
            gradients=self.gradients[:layers] + [dX[orders.cols(0)] for dX in self.gradients[layers:]],
            parameters=self.parameters[:layers] + [X[orders.cols(0)] for X in self.parameters[layers:]],
            output=self.output[orders.rows((layers - 1) % 2)],
        )


def train_densely(spec: Spec, blocks: Blocks, epochs: int) -> Trained:
    """The same training as the spec's, on one dense matrix in the order of the blocks."""
    everyone = range(blocks.n)
    A = _dense(blocks)
    X = blocks.feature_block(everyone, range(blocks.features)).double()
    labels = blocks.labels(everyone)
    counted = labelled(labels)
    if spec.protocol == "corrected":
        counted &= blocks.split(everyone) == TRAIN
    sizes = widths(spec.model, facts_of(blocks))
    weights = [
        initial_weight(spec.seed, layer, shape, range(shape[0]), range(shape[1])).requires_grad_()
        for layer, shape in enumerate(pairwise(sizes))
    ]
    parameters = weights + ([X.requires_grad_()] if spec.training.features else [])
    optimizer = torch.optim.SGD(parameters, lr=spec.training.lr)
    losses, gradients = [], []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = _loss(_forward(A, X, weights)[counted], labels[counted])
        loss.backward()
        losses.append(loss.item())
        gradients.append([each.grad.clone() for each in parameters if each.grad is not None])
        optimizer.step()
    with torch.no_grad():
        output = _forward(A, X, weights)
    split = blocks.split(everyone)
    hits = {name: _hits(output[split == value], labels[split == value]) for name, value in SPLITS.items()}
    return Trained(losses, gradients[0], [each.detach() for each in parameters], output, hits, len(weights))


def _loss(Z: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy by its definition: of one class a vertex, or of every class by itself."""
    if labels.dim() == 1:
        return -torch.log_softmax(Z, dim=1).gather(1, labels[:, None]).mean()
    return -torch.where(labels == 1, Z.sigmoid(), 1 - Z.sigmoid()).log().mean()


def _hits(Z: Tensor, labels: Tensor) -> Hits:
    """Right answers, and all; for many classes a vertex twice the agreed ones, and those of both sides."""
    Z, labels = Z[labelled(labels)], labels[labelled(labels)]
    if labels.dim() == 1:
        return Hits(int((Z.argmax(dim=1) == labels).sum()), len(labels))
    agreed = (Z > 0) & (labels == 1)
    return Hits(2 * int(agreed.sum()), int((Z > 0).sum()) + int(labels.sum()))


def _forward(A: Tensor, H: Tensor, weights: list[Tensor]) -> Tensor:
    for layer, W in enumerate(weights):
        H = A @ (H @ W)
        if layer + 1 < len(weights):
            H = H.clamp(min=0)
    return H


def _dense(blocks: Blocks) -> Tensor:
    A = blocks.adjacency(range(blocks.n), range(blocks.n))
    dense = torch.zeros(blocks.n, blocks.n, dtype=torch.float64)
    row = torch.repeat_interleave(torch.arange(blocks.n), A.rowptr.diff())
    dense[row, A.col.long()] = A.val.double()
    return dense
