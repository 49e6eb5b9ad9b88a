"""The dense reference that every strategy must equal: training with PyTorch's own operators on dense matrices.

Z = A (H W) in double precision, PyTorch's own autograd, one process. The reference shares no kernel, loss, layout or
loop with the strategies; only the graph, the initial weights and the dropout masks are the same.

Legend: A has one matrix for each layer, whose rows are vertices of the output and whose columns are vertices of the
input.
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
from harness.spec.spec import ModelChoice, Spec
from harness.strategy import DenseGraph, Multiply, Recurrence, Strategy
from harness.strategy.models import SplitAccuracy
from harness.strategy.models.operators import dropout_mask
from harness.strategy.models.weights import Part, Weight, init_weight


class SerialSteps(Recurrence):
    """The steps of serial training, also on mini-batches."""

    def convolve(self, step: int, layer: int, H: Tensor, W: Tensor, multiply: Multiply) -> Tensor:
        return multiply(slice(None), H @ W)


EPSILON = 1e-6
Convolve = Callable[[int, Tensor, Tensor, Multiply], Tensor]
"""Returns the output of a convolution, given the layer, its input, its weight, and how rows of A are multiplied."""
Mask = Callable[[int], Tensor]
"""Returns the factors of the elements of a layer's output, given the layer."""


def forward(
    A: Sequence[Tensor],
    X: Tensor,
    weights: Sequence[tuple[Weight, Tensor]],
    model: ModelChoice,
    convolve: Convolve,
    mask: Mask | None = None,
) -> Tensor:
    """Return the output of the model. Layer l outputs the first vertices of its input, one for each row of A[l]."""
    H = X
    for number, (weight, W) in enumerate(weights):
        if weight.part in (Part.PROJECTION, Part.HEAD):
            H = H @ W
        elif weight.part is Part.CONVOLUTION:
            before = weights[number - 1] if number else None
            after = weights[number + 1] if number + 1 < len(weights) else None
            A_l, attention = A[weight.layer], None
            if before and before[0].part is Part.ATTENTION:
                attention = before[1]
            multiply = partial(_multiply_rows, A_l, attention, model)
            Z = convolve(weight.layer, H, W, multiply)
            if attention is not None:
                Z = Z.flatten(1) if after else Z.mean(dim=1)
            if before and before[0].part is Part.ROOT:
                Z = Z + H[: len(Z)] @ before[1]
            if model.projection or weight.layer + 1 < model.layers:
                scale = after[1] if after and after[0].part is Part.SCALE else None
                Z = _finish(Z, scale, model, mask(weight.layer) if mask else None)
            H = Z + H[: len(Z)] if model.residual else Z
    return H


def _multiply_rows(A: Tensor, a: Tensor | None, model: ModelChoice, rows: slice, T: Tensor) -> Tensor:
    """Return some rows of A T; or with attention `a`, of all heads' outputs, (rows, heads, features of a head)."""
    if a is None:
        return A[rows] @ T
    edges, outputs = A[rows] != 0, []
    for T_h, a_h in zip(T.chunk(model.heads, dim=1), a.chunk(model.heads, dim=1), strict=True):
        target, source = T_h[rows][: len(edges)] @ a_h[0], T_h @ a_h[1]
        score = leaky_relu(target[:, None] + source, negative_slope=0.2)
        outputs.append(score.masked_fill(~edges, -torch.inf).softmax(dim=1) @ T_h)
    return torch.stack(outputs, dim=1)


def _finish(Z: Tensor, gamma: Tensor | None, model: ModelChoice, mask: Tensor | None) -> Tensor:
    if gamma is not None:
        Z = Z / torch.sqrt((Z * Z).mean(dim=-1, keepdim=True) + EPSILON) * gamma
    if model.activation == "relu":
        Z = Z.relu()
    return Z if mask is None else Z * mask


@dataclass(frozen=True)
class Trained:
    """The results of training."""

    losses: list[float]
    gradients: list[Tensor]
    """The gradients of the first epoch: of the weights, then of the features if they are trained."""
    parameters: list[Tensor]
    output: Tensor
    hits: dict[str, SplitAccuracy]
    weights: int
    """The number of weights among the parameters; features follow."""
    layers: int

    def reorder(self, orders: Orders[Tensor]) -> "Trained":
        """Return the results in a dataset's vertex orders, which may alternate by layer (`harness.graph.order`)."""
        weights = self.weights
        return replace(
            self,
            gradients=self.gradients[:weights] + [dX[orders.cols(0)] for dX in self.gradients[weights:]],
            parameters=self.parameters[:weights] + [X[orders.cols(0)] for X in self.parameters[weights:]],
            output=self.output[orders.rows((self.layers - 1) % 2)],
        )


Multiplier = Callable[[Tensor, int, int | None], Tensor]
"""Returns the matrix of a layer, given A, the layer and the training step, which is None in evaluation."""


def train_densely(
    strategy: Strategy,
    blocks: Blocks,
    epochs: int,
    multiplier: Multiplier | None = None,
    recurrence: Recurrence | None = None,
    places: Tensor | None = None,
) -> Trained:
    """Train as the strategy does, on dense matrices in the vertex order of `blocks`; by its recurrence, if given.

    `places` are the vertices' numbers in the order of the strategy's dataset, if that differs: dropout depends on them.
    """
    spec, everyone = strategy.spec, torch.arange(blocks.n)
    A = dense_model_matrix(spec.model.kind, blocks)
    X, labels = _read_features(blocks), blocks.labels(range(blocks.n))
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

    def make_batches(step: int) -> list[Batch]:
        if strategy.mini_batches:
            return _draw_batches(
                strategy, step, read_adjacency(select_adjacency(blocks, spec.model.kind)), counted
            )
        if multiplier is None:
            return [whole]
        return [whole._replace(A=[multiplier(A, layer, step) for layer in layers])]

    serial = SerialSteps(strategy, DenseGraph(A, A != 0))
    steps = recurrence or serial

    def compute_output(step: int, batch: Batch, mask: Mask | None) -> Tensor:
        X_step, convolve = steps.start(X[batch.vertices[0]]), partial(steps.convolve, step)
        return steps.finish(forward(batch.A, X_step, named, spec.model, convolve, mask))

    losses, gradients = [], []
    for epoch in range(epochs):
        for step in range(epoch * strategy.steps, (epoch + 1) * strategy.steps):
            for each in parameters:
                each.grad = None
            batches = make_batches(step)
            sums = [
                _loss(compute_output(step, batch, mask), batch, labels, counted)
                for batch, mask in zip(batches, _make_masks(spec, step, batches, places), strict=True)
            ]
            loss = torch.stack([total for total, _ in sums]).sum() / max(sum(count for _, count in sums), 1)
            losses.append(loss.item())
            steps.backward(loss)
            gradients.append([each.grad.clone() for each in parameters if each.grad is not None])
            with torch.no_grad():
                for each in parameters:
                    if each.grad is not None:
                        each.sub_(spec.training.lr * each.grad)
    with torch.no_grad():
        evaluated = [multiplier(A, layer, None) if multiplier else A for layer in layers]
        output = forward(evaluated, X, named, spec.model, partial(serial.convolve, 0))
    hits = {
        name: _count_hits(output[split == value], labels[split == value]) for name, value in SPLITS.items()
    }
    by_epoch = torch.tensor(losses, dtype=torch.float64).view(epochs, -1).mean(dim=1).tolist()
    final = [each.detach() for each in parameters]
    first = gradients[strategy.steps - 1]
    return Trained(by_epoch, first, final, output, hits, len(weights), spec.model.layers)


def make_recurrence(strategy: Strategy, blocks: Blocks) -> Recurrence:
    """Return the recurrence of a strategy on the whole graph."""
    assert strategy.recurrence
    return strategy.recurrence(strategy, make_dense_graph(strategy, blocks))


def make_dense_graph(strategy: Strategy, blocks: Blocks) -> DenseGraph:
    """Return the graph that the strategy's model multiplies by, dense."""
    edge_parts, parts = blocks.edge_parts(range(blocks.n)), None
    if edge_parts is not None:
        A = read_adjacency(blocks)
        parts = _to_dense(A._replace(val=edge_parts)).long()
    return DenseGraph(dense_model_matrix(strategy.spec.model.kind, blocks), find_entries(blocks), parts)


def find_entries(blocks: Blocks) -> Tensor:
    """Return whether A has an entry, which may be 0."""
    A = read_adjacency(blocks)
    return _to_dense(A._replace(val=torch.ones_like(A.val))) > 0


class Batch(NamedTuple):
    """The matrices of a group's layers in a step, and the vertices of their inputs and of the output."""

    A: list[Tensor]
    vertices: Sequence[Tensor]
    importance: Tensor | None = None


def _draw_batches(strategy: Strategy, step: int, A: Csr, counted: Tensor) -> list[Batch]:
    """Return the mini-batch of every group, as the strategy defines it on the whole graph."""
    targets = counted.nonzero()[:, 0]
    drawn = [strategy.mini_batch(step, group, A, targets) for group in range(strategy.groups)]
    return [Batch([_to_dense(each) for each in one.A], one.vertices, one.importance) for one in drawn]


def _make_masks(spec: Spec, step: int, batches: Sequence[Batch], places: Tensor | None) -> list[Mask | None]:
    """Return the dropout masks of every batch, as wide as hidden layers; None without dropout."""

    def mask(group: int, vertices: Sequence[Tensor], layer: int) -> Tensor:
        at, features, rows = (spec.seed, step, group, layer), range(spec.model.width), vertices[layer + 1]
        kept, scale = dropout_mask(at, rows if places is None else places[rows], features, spec.model.dropout)
        return kept.double() * scale

    if not spec.model.dropout:
        return [None] * len(batches)
    return [partial(mask, group, batch.vertices) for group, batch in enumerate(batches)]


def _loss(Z: Tensor, batch: Batch, labels: Tensor, counted: Tensor) -> tuple[Tensor, int]:
    """Return the sum of cross-entropies, for one label per vertex or for each class, and the number of vertices."""
    rows = batch.vertices[-1]
    Z, y = Z[counted[rows]], labels[rows][counted[rows]]
    if y.dim() == 1:
        each = -torch.log_softmax(Z, dim=1).gather(1, y[:, None])[:, 0]
    else:
        each = -torch.where(y == 1, Z.sigmoid(), 1 - Z.sigmoid()).log().mean(dim=1)
    if batch.importance is not None:
        each = each * batch.importance[counted[rows]]
    return each.sum(), len(y)


def _count_hits(Z: Tensor, labels: Tensor) -> SplitAccuracy:
    """Return the accuracy of a split; for multi-label tasks, as in `SplitAccuracy`."""
    Z, labels = Z[has_label(labels)], labels[has_label(labels)]
    if labels.dim() == 1:
        return SplitAccuracy(int((Z.argmax(dim=1) == labels).sum()), len(labels))
    agreed = (Z > 0) & (labels == 1)
    return SplitAccuracy(2 * int(agreed.sum()), int((Z > 0).sum()) + int(labels.sum()))


def dense_model_matrix(kind: str, blocks: Blocks) -> Tensor:
    """Return the dense matrix of a kind of model."""
    return mean_matrix(blocks) if kind == "sage" else dense_matrix(blocks)


def mean_matrix(blocks: Blocks) -> Tensor:
    """Return the matrix of GraphSAGE, whose rows average over the neighbours."""
    edges = (dense_matrix(blocks) != 0).double().fill_diagonal_(0)
    return edges / edges.sum(dim=1, keepdim=True).clamp(min=1)


def dense_matrix(blocks: Blocks) -> Tensor:
    """Return A as a dense matrix."""
    return _to_dense(read_adjacency(blocks))


def read_adjacency(blocks: Blocks) -> Csr:
    """Return the adjacency matrix of the whole graph."""
    return blocks.adjacency(range(blocks.n), range(blocks.n))


def _read_features(blocks: Blocks) -> Tensor:
    return blocks.feature_block(range(blocks.n), range(blocks.features)).double()


def _to_dense(A: Csr) -> Tensor:
    dense = torch.zeros(A.shape, dtype=torch.float64)
    row = torch.repeat_interleave(torch.arange(A.rows), A.rowptr.diff())
    return dense.index_put((row, A.col.long()), A.val.double(), accumulate=True)
