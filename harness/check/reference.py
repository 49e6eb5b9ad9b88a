"""The dense reference that every strategy must equal: training with PyTorch's own operators on dense matrices.

Z = A (H W) in double precision, PyTorch's own autograd, one process. The reference shares no kernel, loss, layout or
loop with the strategies that are judged; only the graph and the initial weights are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from harness.graph.averaged import select_adjacency
from harness.graph.blocks import Blocks
from harness.graph.model import SPLITS, TRAIN, has_label
from harness.graph.order import Orders
from harness.kernels import Csr
from harness.models import SplitAccuracy
from harness.models.operators import dropout_mask
from harness.models.weights import Part, Weight, init_weight
from harness.spec.spec import ModelChoice, Spec
from harness.strategy import Strategy

# Masks of dropout are data, as initial weights are: both come from the generator of all strategies.
# Legend: one matrix a layer; its rows are vertices of the output, its columns vertices of the input.

EPSILON = 1e-6
Mask = Callable[[int], Tensor]
"""A function from a layer to the factors of the elements of its output."""


def forward(
    A: Sequence[Tensor],
    X: Tensor,
    weights: Sequence[tuple[Weight, Tensor]],
    model: ModelChoice,
    mask: Mask | None = None,
) -> Tensor:
    """The output of the model. The output vertices of layer l are the first rows of its input, as many as A[l] has."""
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
    """The heads of an attention layer, (rows, heads, features of a head)."""
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


@dataclass(frozen=True)
class Trained:
    """The results of training."""

    losses: list[float]
    gradients: list[Tensor]
    """The gradients of the first epoch, of the weights and then of the features if these are trained."""
    parameters: list[Tensor]
    output: Tensor
    hits: dict[str, SplitAccuracy]
    weights: int
    """The number of weights among the parameters; features follow."""
    layers: int

    def ordered(self, orders: Orders[Tensor]) -> "Trained":
        """The results in an order of the vertices in which layers alternate (`harness.graph.order`)."""
        weights = self.weights
        return replace(
            self,
            gradients=self.gradients[:weights] + [dX[orders.cols(0)] for dX in self.gradients[weights:]],
            parameters=self.parameters[:weights] + [X[orders.cols(0)] for X in self.parameters[weights:]],
            output=self.output[orders.rows((self.layers - 1) % 2)],
        )


Multiplier = Callable[[Tensor, int, int | None], Tensor]
"""A function from A, a layer and a training step, or None to evaluate, to the matrix of the layer."""


def train_densely(
    strategy: Strategy, blocks: Blocks, epochs: int, multiplier: Multiplier | None = None
) -> Trained:
    """Trains as the strategy does, on dense matrices in the order of the blocks."""
    spec, everyone = strategy.spec, torch.arange(blocks.n)
    A = matrix_of(spec.model.kind, blocks)
    X, labels = _features(blocks), blocks.labels(range(blocks.n))
    split = blocks.split(range(blocks.n))
    counted = has_label(labels) & (split == TRAIN) if spec.protocol == "corrected" else has_label(labels)
    weights = [
        init_weight(spec.seed, number, weight, *map(range, weight.shape)).requires_grad_()
        for number, weight in enumerate(strategy.weights)
    ]
    named = list(zip(strategy.weights, weights, strict=True))
    parameters = weights + ([X.requires_grad_()] if spec.training.features else [])
    layers = range(spec.model.layers)
    whole = Batch([A for _ in layers], [everyone, *(everyone for _ in layers)])

    def batches_of(step: int) -> list[Batch]:
        if strategy.mini_batches:
            return _drawn(strategy, step, _whole(select_adjacency(blocks, spec.model.kind)), counted)
        if multiplier is None:
            return [whole]
        return [whole._replace(A=[multiplier(A, layer, step) for layer in layers])]

    losses, gradients = [], []
    for epoch in range(epochs):
        for step in range(epoch * strategy.steps, (epoch + 1) * strategy.steps):
            for each in parameters:
                each.grad = None
            batches = batches_of(step)
            sums = [
                _loss(forward(batch.A, X[batch.vertices[0]], named, spec.model, mask), batch, labels, counted)
                for batch, mask in zip(batches, _masks(spec, step, batches), strict=True)
            ]
            loss = torch.stack([total for total, _ in sums]).sum() / max(sum(of for _, of in sums), 1)
            loss.backward()
            losses.append(loss.item())
            gradients.append([each.grad.clone() for each in parameters if each.grad is not None])
            with torch.no_grad():
                for each in parameters:
                    if each.grad is not None:
                        each.sub_(spec.training.lr * each.grad)
    with torch.no_grad():
        evaluated = [multiplier(A, layer, None) if multiplier else A for layer in layers]
        output = forward(evaluated, X, named, spec.model)
    hits = {name: _hits(output[split == value], labels[split == value]) for name, value in SPLITS.items()}
    by_epoch = torch.tensor(losses, dtype=torch.float64).view(epochs, -1).mean(dim=1).tolist()
    ended = [each.detach() for each in parameters]
    first = gradients[strategy.steps - 1]
    return Trained(by_epoch, first, ended, output, hits, len(weights), spec.model.layers)


class Batch(NamedTuple):
    """The matrices and vertices of one group in one step: of the full graph or of a mini-batch."""

    A: list[Tensor]
    vertices: Sequence[Tensor]
    importance: Tensor | None = None


def _drawn(strategy: Strategy, step: int, A: Csr, counted: Tensor) -> list[Batch]:
    """The mini-batch of every group, as the strategy defines it on the whole graph."""
    targets = counted.nonzero()[:, 0]
    drawn = [strategy.mini_batch(step, group, A, targets) for group in range(strategy.groups)]
    return [Batch([_dense(each) for each in one.A], one.vertices, one.importance) for one in drawn]


def _masks(spec: Spec, step: int, batches: Sequence[Batch]) -> list[Mask | None]:
    """The masks of every batch, as wide as hidden layers: the last layer of a bare model has no dropout."""

    def mask(group: int, vertices: Sequence[Tensor], layer: int) -> Tensor:
        at, features = (spec.seed, step, group, layer), range(spec.model.width)
        kept, scale = dropout_mask(at, vertices[layer + 1], features, spec.model.dropout)
        return kept.double() * scale

    if not spec.model.dropout:
        return [None] * len(batches)
    return [partial(mask, group, batch.vertices) for group, batch in enumerate(batches)]


def _loss(Z: Tensor, batch: Batch, labels: Tensor, counted: Tensor) -> tuple[Tensor, int]:
    """The sum of cross-entropies by definition, of one class a vertex or of each class, and the number of vertices."""
    rows = batch.vertices[-1]
    Z, y = Z[counted[rows]], labels[rows][counted[rows]]
    if y.dim() == 1:
        each = -torch.log_softmax(Z, dim=1).gather(1, y[:, None])[:, 0]
    else:
        each = -torch.where(y == 1, Z.sigmoid(), 1 - Z.sigmoid()).log().mean(dim=1)
    if batch.importance is not None:
        each = each * batch.importance[counted[rows]]
    return each.sum(), len(y)


def _hits(Z: Tensor, labels: Tensor) -> SplitAccuracy:
    """The hits of a split; for many classes a vertex, twice the common classes, and all classes of both sides."""
    Z, labels = Z[has_label(labels)], labels[has_label(labels)]
    if labels.dim() == 1:
        return SplitAccuracy(int((Z.argmax(dim=1) == labels).sum()), len(labels))
    agreed = (Z > 0) & (labels == 1)
    return SplitAccuracy(2 * int(agreed.sum()), int((Z > 0).sum()) + int(labels.sum()))


def matrix_of(kind: str, blocks: Blocks) -> Tensor:
    """The dense matrix of a kind of model."""
    return mean_matrix(blocks) if kind == "sage" else dense_matrix(blocks)


def mean_matrix(blocks: Blocks) -> Tensor:
    """The matrix of GraphSAGE: every row is the mean over the neighbours."""
    edges = (dense_matrix(blocks) != 0).double().fill_diagonal_(0)
    return edges / edges.sum(dim=1, keepdim=True).clamp(min=1)


def dense_matrix(blocks: Blocks) -> Tensor:
    """The dense A."""
    return _dense(_whole(blocks))


def _whole(blocks: Blocks) -> Csr:
    return blocks.adjacency(range(blocks.n), range(blocks.n))


def _features(blocks: Blocks) -> Tensor:
    return blocks.feature_block(range(blocks.n), range(blocks.features)).double()


def _dense(A: Csr) -> Tensor:
    dense = torch.zeros(A.shape, dtype=torch.float64)
    row = torch.repeat_interleave(torch.arange(A.rows), A.rowptr.diff())
    return dense.index_put((row, A.col.long()), A.val.double(), accumulate=True)
