"""Facts about a graph and the sizes of a model, from which formulas, layouts and grids follow."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from harness.base.ranges import ranges_between, split_range
from harness.graph.blocks import Blocks, assert_within
from harness.graph.model import TRAIN, LabelTask, Permutation, Weighting, has_label
from harness.kernels import Csr
from harness.kernels.csr import META, make_meta_csr
from harness.spec.spec import ModelChoice, Protocol
from harness.strategy.models.weights import Part, Weight


@dataclass(frozen=True)
class Facts:
    """The sizes of a graph, known before any block of it is read."""

    vertices: int
    nonzeros: int
    features: int
    classes: int
    directed: bool
    labelled: int
    """The number of labelled vertices, over which the faithful protocol averages the loss."""
    training: int
    """The number of labelled vertices in the training split, over which the corrected protocol averages the loss."""
    bounds: tuple[int, ...] | None = None
    """The first vertex of each part of a partition, and the end; None without a partition."""
    task: LabelTask = "single-label"
    exact: bool = True
    """True if counted in a store, False if taken from a dataset card."""
    weights: Weighting | None = None
    """How edge weights enter A; None if edges have no weights."""

    def count_trained_vertices(self, protocol: Protocol) -> int:
        """Return the number of vertices over which the loss is averaged."""
        return self.training if protocol == "corrected" else self.labelled

    def blocks(self, parts: int) -> list[range]:
        """Split the vertices into `parts` blocks: the parts of the partition, or blocks of equal size."""
        if self.bounds is None:
            return split_range(self.vertices, parts)
        assert len(self.bounds) == parts + 1, (self.bounds, parts)
        return ranges_between(self.bounds)


def list_weights(model: ModelChoice, facts: Facts) -> list[Weight]:
    """Return the trained matrices of a model on a graph, in the order of their first use.

    With a projection, all layers have equally many input and output features. Attention heads are concatenated.
    """
    heads = model.heads if model.kind == "gat" else 1
    ends = (model.width, model.width) if model.projection else (facts.features, facts.classes * heads)
    widths = [ends[0], *[model.width] * (model.layers - 1), ends[1]]
    weights = []
    if model.projection:
        weights.append(Weight(Part.PROJECTION, -1, (facts.features, model.width)))
    for layer, (f_in, f_out) in enumerate(pairwise(widths)):
        if model.kind == "sage":
            weights.append(Weight(Part.ROOT, layer, (f_in, f_out)))
        if model.kind == "gat":
            weights.append(Weight(Part.ATTENTION, layer, (2, f_out)))
        weights.append(Weight(Part.CONVOLUTION, layer, (f_in, f_out)))
        if model.norm and (model.projection or layer + 1 < model.layers):
            weights.append(Weight(Part.SCALE, layer, (1, f_out)))
    if model.projection:
        weights.append(Weight(Part.HEAD, -1, (model.width, facts.classes)))
    return weights


class ShapeBlocks:
    """Blocks of a graph (`harness.graph.blocks.Blocks`) on the meta device, with the expected numbers of nonzeros.

    Nonzeros are spread evenly, as after a random permutation.
    """

    def __init__(self, facts: Facts, permutation: Permutation = "none") -> None:
        self.n, self.nnz = facts.vertices, facts.nonzeros
        self.features, self.classes, self.directed = facts.features, facts.classes, facts.directed
        self.permutation: Permutation = permutation
        self.task, self.weights = facts.task, facts.weights
        self.bounds = facts.bounds
        self.manifest_hash, self.graph_hash = "shapes", ""

    def adjacency(self, rows: range, cols: range, order: int = 0) -> Csr:
        """Return a rectangle of A."""
        return make_meta_csr(len(rows), len(cols), self.expect_nonzeros(rows, cols))

    def expect_nonzeros(self, rows: range, cols: range) -> int:
        """Return the expected number of nonzeros of a rectangle of A.

        The ends of its rows and columns are rounded, not their difference, so that stripes add up to all nonzeros.
        """
        assert_within(self.n, rows, cols)
        columns = round(self.nnz * cols.stop / self.n) - round(self.nnz * cols.start / self.n)
        return round(columns * rows.stop / self.n) - round(columns * rows.start / self.n)

    def edge_parts(self, rows: range) -> Tensor | None:
        return None

    def feature_block(self, rows: range, cols: range) -> Tensor:
        assert_within(self.n, rows)
        assert_within(self.features, cols)
        return torch.empty(len(rows), len(cols), device=META)

    def labels(self, rows: range, order: int = 0) -> Tensor:
        assert_within(self.n, rows)
        if self.task == "multi-label":
            return torch.empty(len(rows), self.classes, dtype=torch.int8, device=META)
        return torch.empty(len(rows), dtype=torch.int64, device=META)

    def split(self, rows: range, order: int = 0) -> Tensor:
        assert_within(self.n, rows)
        return torch.empty(len(rows), dtype=torch.uint8, device=META)


def facts_of(blocks: Blocks) -> Facts:
    """Count the facts of a store."""
    everyone = range(blocks.n)
    known = has_label(blocks.labels(everyone))
    trains = known & (blocks.split(everyone) == TRAIN)
    return Facts(
        vertices=blocks.n,
        nonzeros=blocks.nnz,
        features=blocks.features,
        task=blocks.task,
        classes=blocks.classes,
        directed=blocks.directed,
        labelled=int(known.sum()),
        training=int(trains.sum()),
        bounds=blocks.bounds,
        weights=blocks.weights,
    )
