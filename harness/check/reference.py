"""Training with dense matrices and nothing of ours: what every strategy must equal.

Z = A (H W) in double precision, PyTorch's own autograd, one process. It shares no kernel, no loss, no layout and
no loop with the code that it judges; only the graph and the initial weights are the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from harness.check.dense import Mask, forward
from harness.graph.model import SPLITS, TRAIN, labelled
from harness.graph.order import Orders
from harness.models import Hits
from harness.models.dropout import dropout_mask
from harness.models.weights import initial_weight
from harness.spec.spec import Spec
from harness.store.blocks import Blocks
from harness.strategy import facts_of, weights_of_model


@dataclass(frozen=True)
class Trained:
    """What training left behind; the gradients are those of the first epoch."""

    losses: list[float]
    gradients: list[Tensor]
    """Of the weights and, where they are trained, of the features."""
    parameters: list[Tensor]
    output: Tensor
    hits: dict[str, Hits]
    weights: int
    """How many of them there are; features come after them."""
    layers: int

    def ordered(self, orders: Orders) -> "Trained":
        """The same in an order of the vertices in which layers alternate (`harness.graph.order`)."""
        weights = self.weights
        return replace(
            self,
            gradients=self.gradients[:weights] + [dX[orders.cols(0)] for dX in self.gradients[weights:]],
            parameters=self.parameters[:weights] + [X[orders.cols(0)] for X in self.parameters[weights:]],
            output=self.output[orders.rows((self.layers - 1) % 2)],
        )


Multiplier = Callable[[Tensor, int, int], Tensor]
"""From A, a layer and a training step to what the layer multiplies by in that step."""


def train_densely(spec: Spec, blocks: Blocks, epochs: int, multiplier: Multiplier | None = None) -> Trained:
    """The same training as the spec's, on dense matrices in the order of the blocks."""
    everyone = range(blocks.n)
    A = dense_matrix(blocks) if spec.model.kind == "gcn" else mean_matrix(blocks)
    X = blocks.feature_block(everyone, range(blocks.features)).double()
    labels = blocks.labels(everyone)
    counted = labelled(labels)
    if spec.protocol == "corrected":
        counted &= blocks.split(everyone) == TRAIN
    model, seed = spec.model, spec.seed
    matrices = weights_of_model(model, facts_of(blocks))
    weights = [
        initial_weight(seed, number, matrix, *map(range, matrix.shape)).requires_grad_()
        for number, matrix in enumerate(matrices)
    ]
    named = list(zip(matrices, weights, strict=True))
    layers = [A] * model.layers

    def of_step(step: int) -> list[Tensor]:
        return [multiplier(A, layer, step) for layer in range(model.layers)] if multiplier else layers

    def mask(step: int) -> Mask | None:
        return partial(_mask, spec, step, 0, torch.arange(blocks.n)) if model.dropout else None

    parameters = weights + ([X.requires_grad_()] if spec.training.features else [])
    optimizer = torch.optim.SGD(parameters, lr=spec.training.lr)
    losses, gradients = [], []
    for step in range(epochs):
        optimizer.zero_grad()
        loss = _loss(forward(of_step(step), X, named, model, mask(step))[counted], labels[counted])
        loss.backward()
        losses.append(loss.item())
        gradients.append([each.grad.clone() for each in parameters if each.grad is not None])
        optimizer.step()
    with torch.no_grad():
        output = forward(layers, X, named, model)
    split = blocks.split(everyone)
    hits = {name: _hits(output[split == value], labels[split == value]) for name, value in SPLITS.items()}
    ended = [each.detach() for each in parameters]
    return Trained(losses, gradients[0], ended, output, hits, len(weights), model.layers)


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


def _mask(spec: Spec, step: int, group: int, vertices: Tensor, layer: int) -> Tensor:
    """Of a layer that is as wide as the hidden ones: the last of a bare model has none."""
    at = (spec.seed, step, group, layer)
    kept, scale = dropout_mask(at, vertices, range(spec.model.hidden), spec.model.dropout)
    return kept.double() * scale


def mean_matrix(blocks: Blocks) -> Tensor:
    """By which GraphSAGE multiplies: every row shared evenly by the neighbours."""
    edges = (dense_matrix(blocks) != 0).double().fill_diagonal_(0)
    return edges / edges.sum(dim=1, keepdim=True).clamp(min=1)


def dense_matrix(blocks: Blocks) -> Tensor:
    """A."""
    A = blocks.adjacency(range(blocks.n), range(blocks.n))
    dense = torch.zeros(blocks.n, blocks.n, dtype=torch.float64)
    row = torch.repeat_interleave(torch.arange(blocks.n), A.rowptr.diff())
    dense[row, A.col.long()] = A.val.double()
    return dense
